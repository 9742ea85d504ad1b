"""This router's part in the ledger: live incarnations, requests sent to them, and the service received (R3, R5, R6, R11).

Reports name an incarnation. It departs when another one answers in its place, or when its replica is no longer
configured; a lost connection is no departure. It is closed for good when it has departed and has no open requests. An
incarnation that only left the configuration could return, so that closing waits. Incarnations that only peers or a
store know are closed too once no router counts them as alive; otherwise their accounts would stay forever.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from operator import attrgetter
from typing import Final

import msgspec
from evenkeel_contract.queueorder import QueueOwner
from evenkeel_contract.reports import ClientReport
from evenkeel_fairshare.cost import Cost
from evenkeel_fairshare.fleet.contract import NOTHING, Usage
from evenkeel_fairshare.ledger import Ledger, ReplicaRow, Seed, promise
from evenkeel_fairshare.ledger.replica_rows import REQUESTS, REST, RUNNING, SERVICE, WAITING

from evenkeel_router.api.identity import WHOLE, Client, Paid
from evenkeel_router.ledger.held_work import HeldWork, RelocationVerdict
from evenkeel_router.ledger.unreported import UNREPORTED, name_of

SEEDED_POLICY: Final = "DLPM"
"""The replica policy that keeps deficits, and starts them from seeds."""
NO_SEED: Final = Seed(0.0, 0.0)
_AUTO, _ROUTER = QueueOwner.AUTO, QueueOwner.ROUTER
_ledger_columns = attrgetter(*ReplicaRow._fields)
MAX_LATENCIES: Final = 10_000
"""Clients of each incarnation whose inter-token latency is kept, about 2 MB."""
JOINING_S: Final = 10.0
"""Replicas that come within this time join together (R5): what a client carries is spread over them."""


class Booking(msgspec.Struct, frozen=True):
    """One request at one incarnation, from its dispatch to its end."""

    incarnation: str
    """Incarnation that the request is sent to; empty where it is unknown: nothing is booked."""
    client: Client
    number: int
    """Number of the booking's first sequence; it rises from dispatch to dispatch."""
    key: str
    """The client key to send."""
    paid: Paid
    sequences: int = 1
    """Sequences of the request: engines queue, admit and report each of them (R19)."""

    @property
    def numbers(self) -> range:
        """Numbers of its sequences."""
        return range(self.number, self.number + self.sequences)


class Accounting:
    """One router's ledger. Deterministic; times are handed in."""

    def __init__(self, ledger: Ledger, *, cost: Cost, return_s: float = 30.0) -> None:
        """`return_s`: how long a replica that left the configuration may return before its incarnation is closed."""
        self.ledger = ledger
        self.cost = cost
        self._return_s = return_s
        self.queue = QueueOwner.AUTO
        """What orders the replicas' queues, as configured."""
        self._alive: frozenset[str] = frozenset()
        self._seen: object = None
        """What peers took for alive when `_alive` was computed; None: it must be computed again."""
        self._at: dict[str, str] = {}
        """Replica → the incarnation that answers there."""
        self._seeded: set[str] = set()
        self._joining_s: dict[str, float] = {}
        """Live incarnation that joined not long ago → when, oldest first."""
        self._left_s: dict[str, float] = {}
        """Departed incarnation that is not closed yet → when it may be closed."""
        self._open: dict[str, dict[str, dict[int, None]]] = {}
        """Incarnation → client → numbers of the sequences of its open requests, oldest first. No empty ones."""
        self._draining: set[str] = set()
        """Incarnations whose queues are to be moved."""
        self._incomplete: set[str] = set()
        """Draining incarnations whose full report is still missing."""
        self._bookings = 0
        self._lost: dict[tuple[str, str], tuple[float, frozenset[int]]] = {}
        """(incarnation, client) → (head of the last report, numbers of the open requests that ran by it)."""
        self._unreported = 0
        self._aborted: dict[str, dict[str, tuple[int, int]]] = {}
        """Incarnation → client → (requests that were broken off once begun, their output tokens). No zeros."""
        self._latencies: dict[str, dict[str, tuple[int, float]]] = {}
        """Incarnation → client → (output tokens after the first of each request, seconds between them). No zeros."""

    # Incarnations.

    def incarnation(self, replica: str) -> str:
        """The incarnation at a replica; empty where it is unknown, and then nothing is booked."""
        return self._at.get(replica, "")

    def meets(self, replica: str, incarnation: str, *, policy: str, now_s: float) -> bool:
        """A report names the incarnation at `replica`. Whether it is counted: not if it was closed before."""
        if self._at.get(replica) != incarnation:
            self._depart(replica, now_s)
            if self.is_closed(incarnation):
                return False
            self._at[replica] = incarnation
            self._joining_s.pop(incarnation, None)
            self._joining_s[incarnation] = now_s
            self._left_s.pop(incarnation, None)
            self._draining.discard(incarnation)
            self._note_change()
        if policy == SEEDED_POLICY:
            self._seeded.add(incarnation)
        return True

    def meets_unreported(self, replica: str, now_s: float) -> None:
        """A replica without reports joins. The ledger will have only the service that this router receives from it."""
        self._unreported += 1
        name = f"{name_of(replica, self.ledger.router)}{self._unreported}"
        self.meets(replica, name, policy="", now_s=now_s)

    def unreported(self, replica: str) -> str:
        """The name under which this router accounts for a replica without reports; empty: it reports, or is unknown."""
        name = self.incarnation(replica)
        return name if name.startswith(UNREPORTED) else ""

    def orders_queue(self, replica: str) -> bool:
        """Whether this router orders the queue of a replica (R12). `Auto`: of one without reports."""
        if self.queue is _AUTO:
            return bool(self.unreported(replica))
        return self.queue is _ROUTER

    def unreported_elsewhere(self, replica: str, router: str) -> str:
        """The name under which another router accounts for a replica without reports; empty: that router does not use
        the replica, or gets its reports."""
        prefix = name_of(replica, router)
        return next(
            (name for name in self.ledger.live_of.get(router, ()) if name.startswith(prefix)), ""
        )

    def received(self, incarnation: str, client: str) -> float:
        """The service that this router received from an incarnation for a client, weighted tokens."""
        account = self.ledger.replica_accounts.get(incarnation)
        own = None if account is None else account.accounts.get(self.ledger.router)
        return 0.0 if own is None else own.clients.cell(client, SERVICE)

    def rows(self, incarnation: str, clients: Iterable[str]) -> dict[str, ReplicaRow]:
        """The rows of clients at an incarnation; zeros where there is none."""
        account = self.ledger.replica_accounts.get(incarnation)
        if account is None:
            return {client: ReplicaRow(client) for client in clients}
        return {client: account.row(client) for client in clients}

    def gated(self, incarnation: str) -> None:
        """This router keeps deficits for an incarnation without reports: they start from seeds, too (R5, R12)."""
        self._seeded.add(incarnation)

    def seed(self, client: Client, incarnation: str, *, now_s: float) -> Seed:
        """The seed of a client at an incarnation (R5)."""
        if incarnation not in self._seeded or self.ledger.is_reported(incarnation, client.identity):
            return NO_SEED
        return promise(
            self.ledger,
            client.identity,
            incarnation,
            live=self.alive,
            joiners=self._joiners(now_s),
        )

    def _joiners(self, now_s: float) -> Collection[str]:
        """Incarnations that join together, now (R5)."""
        joining = self._joining_s
        while joining and now_s - joining[oldest := next(iter(joining))] >= JOINING_S:
            del joining[oldest]
        return joining.keys()

    def drains(self, replica: str) -> None:
        """This router sends nothing to a replica any more, and lets it finish."""
        incarnation = self._at.get(replica)
        if incarnation is not None:
            self.ledger.drained(incarnation)
            if incarnation not in self._draining:
                self._incomplete.add(incarnation)
            self._draining.add(incarnation)

    def serves(self, replica: str) -> None:
        """A replica takes requests, again or for the first time."""
        self._draining.discard(self.incarnation(replica))

    def is_draining(self, incarnation: str) -> bool:
        """Whether requests that wait at an incarnation are to be moved."""
        return incarnation in self._draining

    def is_incomplete(self, incarnation: str) -> bool:
        """Whether an incarnation drains and must send a full report: peers may have delivered a part of it."""
        return incarnation in self._incomplete

    def leaves(self, replica: str, now_s: float) -> None:
        """A replica is no longer configured, or its incarnation is unknown."""
        self._depart(replica, now_s + self._return_s)
        self._note_change()

    def close(self, now_s: float, *, settled: bool) -> None:
        """Close what departed and has nothing open. `settled`: whether this router has had time to look around."""
        for incarnation, at_s in list(self._left_s.items()):
            if now_s >= at_s and incarnation not in self._open:
                del self._left_s[incarnation]
                self.ledger.closed(incarnation)
                self._note_change()
        ledger, alive = self.ledger, self.alive
        if not ledger.live_of.keys() >= ledger.members - {ledger.router}:
            return  # a router has not named its live incarnations yet
        for incarnation, account in list(ledger.open_accounts()):
            if (
                incarnation not in alive
                and incarnation not in self._left_s
                and ledger.router not in account.closed_by
                and incarnation not in self._open
                and (settled or account.closed_by)
            ):
                ledger.closed(incarnation)
        self._lost = {at: lost for at, lost in self._lost.items() if at[0] in self._open}
        for gone in [name for name in self._joining_s if name not in alive]:
            del self._joining_s[gone]
        self._seeded &= alive
        known = alive | self._left_s.keys()
        self._draining &= known
        self._incomplete &= known
        for columns in (self._aborted, self._latencies):
            for gone in columns.keys() - known:
                del columns[gone]

    def _depart(self, replica: str, close_s: float) -> None:
        incarnation = self._at.pop(replica, None)
        if incarnation is not None and incarnation not in self._at.values():
            self._left_s[incarnation] = close_s

    def is_closed(self, incarnation: str) -> bool:
        """Whether this router closed an incarnation for good."""
        account = self.ledger.replica_accounts.get(incarnation)
        if account is not None and self.ledger.router in account.closed_by:
            return True
        return incarnation in self.ledger.closed_totals.folded

    def _note_change(self) -> None:
        self.ledger.live = frozenset(self._at.values())
        self._seen = None

    @property
    def alive(self) -> frozenset[str]:
        """Incarnations that this router or a peer takes for alive."""
        ledger = self.ledger
        seen = ledger.live_changes, ledger.members
        if self._seen != seen:
            theirs = (live for router, live in ledger.live_of.items() if router in ledger.members)
            self._alive = ledger.live.union(*theirs) - self._left_s.keys()
            self._seen = seen
        return self._alive

    # What replicas report.

    def observe(
        self, incarnation: str, reports: Sequence[ClientReport], *, policy: str, sequence: int,
        since: int | None,
    ) -> None:  # fmt: skip
        """Take a report, or a piece of one: `since` is None for all pieces but the last."""
        if not reports and since and sequence <= self.ledger.sequence(incarnation):
            return  # no news, as of most replicas in most seconds; with `since` 0 it is all that there is
        rows = [ReplicaRow._make(_ledger_columns(report)) for report in reports]
        if policy != SEEDED_POLICY:
            # Deficits of other policies than DLPM mean something else.
            rows = [
                row._replace(deficit=0, seed=0, tenant_deficit=0, tenant_seed=0) for row in rows
            ]
        for report in reports:
            if report.client.endswith(REST):  # the client begins at zero if it returns
                for columns in (self._aborted, self._latencies):
                    columns.get(incarnation, {}).pop(report.client.removesuffix(REST), None)
            if report.aborted:
                aborted = self._aborted.setdefault(incarnation, {})
                aborted[report.client] = (report.aborted, report.aborted_tokens)
            if report.itl_tokens:
                latencies = self._latencies.setdefault(incarnation, {})
                if report.client in latencies or len(latencies) < MAX_LATENCIES:
                    latencies[report.client] = (report.itl_tokens, report.itl_s)
        if since == 0:
            self._incomplete.discard(incarnation)
        # A piece claims to be complete from `sequence` on, which is nothing.
        base = sequence if since is None else since
        self.ledger.observe(incarnation, since=base, sequence=sequence, rows=rows)

    def latency(self, incarnation: str, client: str) -> tuple[int, float]:
        """(output tokens after the first of each request, seconds between them) of a client at an incarnation."""
        return self._latencies.get(incarnation, {}).get(client, (0, 0.0))

    # What this router does.

    def sends(
        self, replica: str, client: Client, *, paid: Paid, now_s: float, sequences: int = 1
    ) -> Booking:
        """A request is about to be sent. `paid`: at replicas before (R11)."""
        incarnation = self._at.get(replica, "")
        # The seed first: a client sent there without a seed counts as started from zero.
        key = self._key(client, incarnation, now_s=now_s, paid=paid)
        number = self._bookings = self._bookings + 1
        booking = Booking(incarnation, client, number, key, paid, sequences)
        if incarnation:
            at = self._open.setdefault(incarnation, {})
            of_client = at.setdefault(client.identity, {})
            if not of_client and not incarnation.startswith(UNREPORTED):
                self.ledger.begins(incarnation, client.identity)
            of_client[number] = None
            if sequences > 1:
                self._bookings += sequences - 1
                of_client |= dict.fromkeys(booking.numbers)
        return booking

    def ended(self, booking: Booking, usage: Usage | None) -> None:
        """A request is over at its incarnation, having used `usage`; None where that is unknown."""
        if not booking.incarnation:
            return
        at = self._open[booking.incarnation]
        of_client = at[booking.client.identity]
        del of_client[booking.number]
        if booking.sequences > 1:
            for number in booking.numbers[1:]:
                del of_client[number]
        if not of_client:
            del at[booking.client.identity]
        if not at:
            del self._open[booking.incarnation]
        if usage is not None:
            service = self._service(booking.paid, usage)
            self.ledger.received(booking.incarnation, booking.client.identity, service)

    def failed(self, booking: Booking, estimate: Usage, *, began: bool = False) -> Paid:
        """An attempt failed without output for its client. Returns what is paid by now: with its input, if the replica may have computed
        that (R11).

        The ledger gets the input only if a report shows that it was computed, or content of the answer (`began`).
        """
        computed, paid = began or self.was_running(booking), booking.paid
        shown = (began and bool(booking.incarnation)) or (
            computed and not self.is_in_doubt(booking)
        )
        self.ended(booking, estimate if shown else None)
        if not computed:
            return paid
        return paid._replace(input=True, booked=shown or (paid.input and paid.booked))

    def moved(self, booking: Booking, verdict: RelocationVerdict | None, estimate: Usage) -> Paid:
        """A request was taken back from a draining replica. Returns what of it is paid by now (R11).

        `verdict`: by its reports; None if none came. Then the request counts as begun and is booked there, so that the client
        pays for it once.
        """
        if verdict is not None and verdict.never.issuperset(booking.numbers):
            self.ended(booking, NOTHING)
            return booking.paid
        self.ended(booking, estimate)  # the replica's reports contain all of its output
        there = 0
        if verdict is not None:
            began = (verdict.paid[one] for one in booking.numbers if one in verdict.paid)
            there = sum(one.output_tokens for one in began)
        return Paid(True, min(WHOLE, booking.paid.output_tokens + there))

    def held(self, incarnation: str, client: str) -> HeldWork:
        """What a replica has of a client, by its last report."""
        account = self.ledger.replica_accounts.get(incarnation)
        if account is None:
            return HeldWork(0.0, 0.0, 0.0)
        cell = account.clients.cell
        aborted = self._aborted.get(incarnation, {}).get(client, (0, 0))
        return HeldWork(
            cell(client, REQUESTS), cell(client, RUNNING), cell(client, WAITING), *aborted
        )

    def may_wait_at(self, incarnation: str) -> bool:
        """Whether this router has an open request at an incarnation where requests wait by its last report."""
        if incarnation not in self._open:
            return False
        account = self.ledger.replica_accounts.get(incarnation)
        return account is not None and bool(account.waiting)

    def is_idle(self, incarnation: str) -> bool:
        """Whether no request runs or waits at an incarnation by its last report; not if there was none."""
        account = self.ledger.replica_accounts.get(incarnation)
        return account is not None and not (account.running or account.waiting)

    def open_at(self, incarnation: str, client: str) -> int:
        """Number of the sequences that this router has open for a client at an incarnation."""
        return len(self._open.get(incarnation, {}).get(client, ()))

    def keeps(self, incarnation: str, client: str) -> bool:
        """Whether what routers received there for a client must stay: for an open request of this router, or for a gate's figures."""
        return client in self._open.get(incarnation, ()) or incarnation.startswith(UNREPORTED)

    def is_in_doubt(self, booking: Booking) -> bool:
        """Whether no report shows what the replica has of the request's client."""
        account = self.ledger.replica_accounts.get(booking.incarnation)
        if account is None or not account.head or booking.incarnation.startswith(UNREPORTED):
            return True
        return account.is_in_rest(booking.client.identity)

    def sends_reports(self, booking: Booking) -> bool:
        """Whether the replica reports itself what it computed, now or later."""
        return not booking.incarnation.startswith(UNREPORTED)

    def was_running(self, booking: Booking) -> bool:
        """Whether an open request had begun, by the last report: replicas admit a client's requests roughly in order. Of several
        sequences, at least half had.

        The replica charged nothing for requests that only waited. If they counted as paid, each of them would get its input free.
        """
        if self.is_in_doubt(booking):
            return True  # then nothing may be charged twice
        account = self.ledger.replica_accounts[booking.incarnation]
        client = booking.client.identity
        at = (booking.incarnation, client)
        # One set for each report: with every booking that ends, younger ones would become the oldest.
        if self._lost.get(at, (-1.0, ()))[0] != account.head:
            open_here = self._open[booking.incarnation][client]
            count = self.held(*at).running_here(len(open_here))
            self._lost[at] = account.head, frozenset(islice(open_here, count))
        ran = self._lost[at][1]
        if booking.sequences == 1:
            return booking.number in ran
        return 2 * len(ran.intersection(booking.numbers)) >= booking.sequences

    def _key(self, client: Client, incarnation: str, *, now_s: float, paid: Paid) -> str:
        """The client key for a request to `incarnation`: with its seed until a report shows the client there."""
        unseeded = incarnation.startswith(UNREPORTED)  # the gate took the seed
        seed = NO_SEED if unseeded else self.seed(client, incarnation, now_s=now_s)
        return client.key if seed is NO_SEED and not paid.input else client.keyed(seed, paid)

    def _service(self, paid: Paid, usage: Usage) -> float:
        """What a replica charged for a request of which `paid` was paid before (R11)."""
        input_tokens, cached_tokens, output_tokens = usage
        extend, cost = input_tokens - cached_tokens, self.cost
        paid_tokens = min(paid.output_tokens, output_tokens) if paid.output_tokens else 0
        service = cost.output_cost(extend, paid_tokens, output_tokens)
        if paid.input and paid.booked:
            return service
        return service + cost.input_cost(extend)
