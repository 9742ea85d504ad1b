"""A replica's side of reports: adds up what each client was served, and numbers every change (design R3).

`Accounts` is separate from the policy, because a policy without counters (FCFS) serves clients too. The row of a client that is idle
is given back: its totals go to the row that clients of its tenant share, and a mark reports that (docs/design/0003). One with a
debt, a seed or a request keeps its row.

`ReportBook` makes the answers. A router that does not know this incarnation gets all clients. Other routers get the clients that
changed after the sequence number in their request. A refill changes the deficits of all queued clients without any service, so
the book finds changes by comparison with the last report. It compares the clients that accounts and policy name: all that may have changed.

Memory is bounded, too. Beyond `MAX_CLIENTS`, new clients of a tenant share one row; the sums over clients and per tenant stay right.
Of clients that only waited, the one without a change for the longest time is removed first; no total is lost with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy
from itertools import takewhile
from typing import Final, NamedTuple

from evenkeel_fairshare.cost import Cost
from evenkeel_fairshare.replica.contract import ClientDeficits, ReplicaPolicy, Request

from evenkeel_contract.key import UNKNOWN
from evenkeel_contract.reports import (
    IDLE_LOOK_S,
    REPORT_VERSION,
    ClientReport,
    Report,
    ReportRequest,
    unserved,
)

MAX_CLIENTS: Final = 65_536
"""Clients with their own totals, about 50 MB with their reports; as many as a level of deficits remembers."""
MAX_UNSERVED: Final = 65_536
"""Clients in reports that were never served."""
MAX_CLIENTS_PER_REPORT: Final = 10_000
"""The asker gets the others with its next request."""
MAX_GIVEN_BACK: Final = 500
"""Rows of idle clients that are given back with one look at the engine: in less than a millisecond."""
OTHERS: Final = "*"
"""The last part of the identity that the other clients of a tenant share. Names in identities are percent-escaped, and
`*` is not: a client named `*` has the identity `namespace/tenant/%2A`."""


class Accounts:
    """Adds up every client's service as the engine produces it, at the current weights.

    Output is added when a request leaves the batch or a report is made, not at every token: costs
    telescope, so the sums are the same.
    """

    def __init__(self, cost: Cost, *, max_clients: int = MAX_CLIENTS) -> None:
        self._cost = cost
        self._max_clients = max_clients
        self.clients: dict[str, ClientReport] = {}
        """Identity → report of the client; at most `max_clients`, and one shared row per tenant."""
        self._changed: dict[str, ClientReport] = {}
        """Identity → report of a client that may have changed since the last `news`."""

    def admitted(self, request: Request, *, charged: bool) -> None:
        """A request entered the batch; `charged`: whether its client pays for its input (R11)."""
        totals = self._of(request)
        totals.requests += 1
        totals.running += 1
        totals.cached_tokens += request.matched_tokens
        totals.extend_tokens += request.extend_tokens
        if charged:
            _serve(totals, request, self._cost.input_cost(request.input_work))

    def settle(self, request: Request) -> ClientReport:
        """Add the output tokens that the totals do not include yet; returns the client's row."""
        totals = self._of(request)
        before, after = request.booked_tokens, request.output_tokens
        if after > before:
            totals.output_tokens += after - before
            # No gap comes before the first token.
            totals.itl_tokens += after - max(before, 1)
            totals.itl_s += request.token_s - request.booked_s
            request.booked_tokens, request.booked_s = after, request.token_s
            # Another replica charged the paid tokens (R11): they were produced here, but cost nothing.
            before = max(before, request.paid_output_tokens)
            if after > before:
                cost = self._cost.output_cost(request.extend_tokens, before, after)
                _serve(totals, request, cost)
        return totals

    def copy(self) -> dict[str, ClientReport]:
        """A copy of the totals for a reader while the engine runs."""
        return {client: copy(totals) for client, totals in self.clients.items()}

    def news(self) -> dict[str, ClientReport]:
        """A copy of the totals that changed since the last call, for a reader while the engine runs."""
        changed, self._changed = self._changed, {}
        return {client: copy(totals) for client, totals in changed.items()}

    def left(self, request: Request) -> None:
        """A request left the batch."""
        self.settle(request).running -= 1

    def aborted(self, request: Request) -> None:
        """A request has ended unfinished after it was admitted and had left the batch."""
        totals = self._of(request)
        totals.aborted += 1
        totals.aborted_tokens += max(0, request.output_tokens - request.paid_output_tokens)

    def give_back(self, clients: Collection[str]) -> None:
        """Move the totals of idle clients to the row that their tenant's clients share. The next `news` has a mark for each of them,
        and then the shared rows. A client that changed since the last `news` is not idle."""
        shared: dict[str, ClientReport] = {}
        for client in clients:
            totals = self.clients.get(client)
            if totals is None or totals.running or client in self._changed:
                continue
            del self.clients[client]
            self._changed[f"{client}{OTHERS}"] = unserved(f"{client}{OTHERS}")
            name = f"{client.rpartition('/')[0]}/{OTHERS}"
            row = shared[name] = self.clients.setdefault(name, unserved(name))
            for total in _TOTALS:
                setattr(row, total, getattr(row, total) + getattr(totals, total))
        for name, row in shared.items():
            self._changed.pop(name, None)
            self._changed[name] = row  # after the marks: no router counts a client twice

    def _of(self, request: Request) -> ClientReport:
        """The row of a client, the same until it is given back."""
        totals = self.clients.get(request.client)
        if totals is None:
            full = len(self.clients) >= self._max_clients
            name = f"{request.tenant}/{OTHERS}" if full else request.client
            totals = self.clients.setdefault(name, unserved(name))
        self._changed[totals.client] = totals
        return totals


_TOTALS: Final = tuple(
    field
    for field in ClientReport.__struct_fields__
    if field
    not in ("client", "deficit", "tenant_deficit", "waiting", "running", "seed", "tenant_seed")
)


class News(NamedTuple):
    """What changed at a replica since the last news, as `ReportBook.update` takes it."""

    totals: Mapping[str, ClientReport]
    states: Mapping[str, ClientDeficits]
    quantum: float
    complete: bool
    """Whether clients without a state here have none any more."""

    @classmethod
    def of(cls, accounts: Accounts, policy: ReplicaPolicy, idle: Collection[str] = ()) -> News:
        """The news of a replica. It has all states if the policy keeps no account of changes. `idle`: clients whose rows are given
        back, unless they changed meanwhile (`ReportBook.idle`)."""
        states = policy.news()
        complete = states is None
        if states is None:
            states = policy.clients()
        accounts.give_back([client for client in idle if client not in states])
        return cls(accounts.news(), states, policy.quantum, complete)


def _serve(totals: ClientReport, request: Request, service: float) -> None:
    totals.service += service
    totals.normalised += service / request.client_weight
    totals.tenant_normalised += service / request.tenant_weight


class ReportBook:
    """Numbers the changes of every client, so that an answer has only new rows."""

    def __init__(
        self,
        *,
        incarnation: str,
        policy: str,
        inactive: str = "",
        max_clients: int = MAX_CLIENTS_PER_REPORT,
        max_unserved: int = MAX_UNSERVED,
    ) -> None:
        self.incarnation = incarnation
        self._max_unserved = max_unserved
        self._unserved: dict[str, None] = {}
        """Clients without an account, longest unchanged first."""
        self._policy = policy
        self._inactive = inactive
        self._max_clients = max_clients
        self._sequence = 0
        self._quantum = 0.0
        self._requests = self._unnamed = 0
        self._latest: dict[str, tuple[int, ClientReport]] = {}
        """Client → number of its last change, and its row, oldest change first."""
        self._stateful: set[str] = set()
        """Clients with deficits or waiting requests in the row."""
        self._tenants: dict[str, tuple[float, float]] = {}
        """Tenant → its deficit and seed, as the policy last reported them with any client."""
        self._idle_to = 0
        """Number up to which a row is idle that did not change since."""
        self._next = (0.0, 0)
        """When the next look at what is idle is due, and what `_idle_to` is then."""
        self._idle: list[str] = []
        """Clients that were idle at the last look and are not given back yet, the longest idle last."""

    def idle(self, now_s: float) -> list[str]:
        """Clients whose rows may be given back: without a change between two looks, and nothing but totals. At most `MAX_GIVEN_BACK` of
        them; call it with each look at the engine. Marks that are as old are removed: every router has them by now."""
        if now_s >= self._next[0]:
            self._idle_to, self._next = self._next[1], (now_s + IDLE_LOOK_S, self._sequence)
            old = takewhile(lambda entry: entry[1][0] <= self._idle_to, self._latest.items())
            self._idle = [name for name, _ in old][::-1]
        found: list[str] = []
        while self._idle and len(found) < MAX_GIVEN_BACK:
            name = self._idle.pop()
            number, row = self._latest.get(name, (self._idle_to + 1, None))
            if row is None or number > self._idle_to or name in self._stateful or row.running:
                continue
            if _is_mark(name):
                del self._latest[name]
            elif row.requests and not name.endswith(f"/{OTHERS}"):
                found.append(name)
        return found

    def update(
        self,
        totals: Mapping[str, ClientReport],
        states: Mapping[str, ClientDeficits],
        quantum: float = 0.0,
        *,
        complete: bool = True,
    ) -> None:
        """Take totals, states and Q^u; every client with a change gets the next sequence number. Totals that are not here did not
        change. `complete`: states that are not here are gone; otherwise they did not change."""
        self._quantum = quantum
        for client, row in totals.items():
            if _is_mark(client):
                # The shared row counts its requests again.
                self._requests -= self._latest.pop(client.removesuffix(OTHERS))[1].requests
                self._latest.pop(client, None)  # an earlier mark: this one has a new number
                continue
            _, known = self._latest.get(client, (0, None))
            more = row.requests - (0 if known is None else known.requests)
            self._requests += more
            self._unnamed += more * (client == UNKNOWN.identity)
        for client, state in states.items():
            self._tenants[_tenant_of(client)] = state.tenant_deficit, state.tenant_seed
        gone = self._stateful.difference(states) if complete else ()
        for client in dict.fromkeys((*totals, *states, *gone)):
            self._note(client, totals.get(client), states.get(client), is_gone=client in gone)
        while len(self._unserved) > self._max_unserved:
            oldest = next(iter(self._unserved))
            del self._unserved[oldest], self._latest[oldest]
            self._stateful.discard(oldest)

    def _note(
        self,
        client: str,
        totals: ClientReport | None,
        state: ClientDeficits | None,
        *,
        is_gone: bool,
    ) -> None:
        number, known = self._latest.get(client, (0, None))
        report = copy(totals or known or unserved(client))
        of = report if totals is None else known
        if state is not None:
            report.deficit, report.seed, report.waiting = state.deficit, state.seed, state.waiting
        elif of is not None and not is_gone:
            report.deficit, report.seed, report.waiting = of.deficit, of.seed, of.waiting
        else:
            report.deficit, report.seed, report.waiting = 0.0, 0.0, 0
        report.tenant_deficit, report.tenant_seed = self._tenants.get(
            _tenant_of(client), (0.0, 0.0)
        )
        if report == known:
            return
        self._sequence += 1
        # Inserted again, so that the order stays that of the sequence numbers.
        self._latest.pop(client, None)
        self._latest[client] = (self._sequence, report)
        if report.waiting or report.deficit or report.seed:
            self._stateful.add(client)
        else:
            self._stateful.discard(client)
        was_unserved = self._unserved.pop(client, False) is None or not number
        if totals is None and was_unserved:
            self._unserved[client] = None

    def take(self, news: News) -> None:
        """Take the news of the replica."""
        totals, states, quantum, complete = news
        self.update(totals, states, quantum, complete=complete)

    def answer(self, question: ReportRequest) -> Report:
        """All changes after the asker's sequence number; all clients if it names another incarnation."""
        since = question.since if question.incarnation == self.incarnation else 0
        if not 0 <= since <= self._sequence:
            since = 0  # not a number of this incarnation
        newest = takewhile(lambda entry: entry[0] > since, reversed(self._latest.values()))
        news = [*newest][: -self._max_clients - 1 : -1]  # the oldest first
        for _, report in news:
            # One number of a tenant in all rows of an answer: routers keep one of them.
            report.tenant_deficit, report.tenant_seed = self._tenants.get(
                _tenant_of(report.client), (0.0, 0.0)
            )
        return Report(
            version=REPORT_VERSION,
            incarnation=self.incarnation,
            # The number of the last row in this answer: the next question asks for the rows that did not fit.
            sequence=news[-1][0] if news else since,
            since=since,
            policy=self._policy,
            clients=tuple(report for _, report in news),
            quantum=self._quantum,
            inactive=self._inactive,
            requests=self._requests,
            unnamed=self._unnamed,
        )


def _tenant_of(client: str) -> str:
    return client.rpartition("/")[0]


def _is_mark(client: str) -> bool:
    """Whether a row says that a client's row was given back."""
    return client.endswith(OTHERS) and not client.endswith(f"/{OTHERS}")
