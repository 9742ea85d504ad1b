"""The ledger: one router's record of the service of all clients, merged with the records of its peers (R3).

Peers pull: a router sends its `Digest`, gets the `Delta` of what it lacks and merges it. There is no acknowledgement, so lost,
repeated or late messages do no harm. The asker remembers how far it has read each peer's ledger (`Progress`), so that an exchange
costs what changed; without it, it sends the versions of all accounts.

State = closed totals × replica accounts × demand × the version of closed totals at each router. Closed totals are a chain, and all
other parts merge row by row, so `merge` is always commutative, associative and idempotent. The protocol of `compaction` ensures that
each incarnation counts exactly once.

Liveness is not part of the ledger. Functions that need it take `live`, the incarnations that the caller takes for alive. So two
routers may differ for a while without changing each other's state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from math import floor

from evenkeel_fairshare.ledger.account_deltas import ReplicaAccountDelta, ReplicaAccountDigest
from evenkeel_fairshare.ledger.changes import Demand, Seeds
from evenkeel_fairshare.ledger.closed_totals import (
    NOTHING_CLOSED,
    ClosedTotalsDelta,
    Rank,
)
from evenkeel_fairshare.ledger.closing import (
    CarryRules,
    Closing,
    EqualWeights,
    Weights,
    close,
    finish,
)
from evenkeel_fairshare.ledger.counted_service import CountedService
from evenkeel_fairshare.ledger.exchange import (
    NO_PROGRESS,
    NO_VERSIONS,
    Delta,
    DemandDelta,
    Digest,
    Progress,
    check_finite,
)
from evenkeel_fairshare.ledger.replica_account import ReplicaAccount
from evenkeel_fairshare.ledger.replica_rows import PROMISED, SERVICE, Grown, ReplicaRow, tenant_of


class Ledger(CountedService):
    """One router's ledger. Deterministic; reads no clock."""

    def __init__(self, router: str, *, rules: CarryRules, weights: Weights | None = None) -> None:
        """`router`: this router's incarnation, new for every start."""
        super().__init__(router)
        self.rules = rules
        self.weights: Weights = weights or EqualWeights()
        """Replace the object to change weights; earlier charges keep their weight (R9)."""
        self.adopted: dict[str, Rank] = {router: self.closed_totals.rank}
        """Router → its version of closed totals, as far as known."""
        self.members: frozenset[str] = frozenset()
        """Routers of the service, this one included; `compaction` sets it."""
        self.members_of: dict[str, frozenset[str]] = {}
        """Router → its `members`, as it reported them itself."""
        self.live_of: dict[str, frozenset[str]] = {}
        """Router → its `live`, as it reported it itself."""
        self.live_changes = 0
        """Number of changes of `live_of`."""
        self.seeds = Seeds()
        self._parted: tuple[object, ...] = ()
        """State that `_parts` are of."""
        self._parts: tuple[AbstractSet[str], AbstractSet[str]] = frozenset(), frozenset()
        """Incarnations with an open account: those that are alive, and the others."""
        self._demand: dict[str, Demand] = {}
        self._closings: dict[str, tuple[tuple[object, ...], Closing]] = {}
        self._known_before: dict[str, ReplicaAccountDigest] = {}
        """Incarnation → what was known of it at the last call of `forget_idle`."""

    # Input.

    def observe(
        self, incarnation: str, *, since: float, sequence: float, rows: Iterable[ReplicaRow]
    ) -> None:
        """Take a replica's report: all changes after `since`, up to `sequence`."""
        account = self._account_of(incarnation)
        before = account.head
        grown = account.observe(since=since, sequence=sequence, rows=rows)
        self._count(incarnation, grown)
        self._note_seeds(incarnation, grown, {*map(tenant_of, grown)})
        if grown or account.head != before:
            self._changes.note(incarnation)

    def sequence(self, incarnation: str) -> float:
        """The next `since` for the replica: every change up to this sequence number is here."""
        account = self.replica_accounts.get(incarnation)
        return account.head if account is not None else 0.0

    def promised(self, incarnation: str, client: str, *, seed: float, tenant_seed: float) -> None:
        """This router's client keys carry these seeds of a client and its tenant to the incarnation (R5)."""
        account = self._account_of(incarnation)
        account.changes += 1
        self._changes.note(incarnation)
        own = account.account(self.router)
        own.head += 1
        known = own.clients.get(client)
        row = list(known) if known is not None else [0.0] * own.clients.width
        row[0], row[PROMISED] = own.head, seed
        own.clients.put(client, row)
        own.tenants.put(tenant_of(client), (own.head, tenant_seed))
        self._note_seeds(incarnation, (client,), (tenant_of(client),))

    def reread(self, incarnation: str) -> None:
        """Forget the rows of a replica that was not heard for long, or by an earlier process only: it is asked for all of them."""
        self._forgot(incarnation, self._account_of(incarnation).reread())

    def forget_idle(
        self, live: Collection[str], keeps: Callable[[str, str], bool]
    ) -> Iterator[None]:
        """Give back the memory of clients that had no change since the last call, in steps: call it once in an idle period, like
        `drop_covered`."""
        known, self._known_before = self._known_before, {}
        for incarnation, account in list(self.open_accounts()):
            if incarnation in live and not account.closed_by:
                if before := known.get(incarnation):
                    grown = account.forget_idle(before, partial(keeps, incarnation))
                    self._forgot(incarnation, grown)
                self._known_before[incarnation] = account.digest()
                yield

    def _forgot(self, incarnation: str, grown: Grown) -> None:
        self._count(incarnation, grown)
        self._note_seeds(incarnation, grown, ())

    def drained(self, incarnation: str) -> None:
        """This router sends no new requests to the incarnation and lets it finish."""
        self._account_of(incarnation).mark(self.router)
        self._changes.note(incarnation)

    def closed(self, incarnation: str) -> None:
        """The incarnation is gone and this router has no open request there. This is final: no other call may follow."""
        self._account_of(incarnation).close(self.router)
        self._changes.note(incarnation)

    def requested(self, rates: Mapping[str, float], *, part: float = 1.0) -> None:
        """Requested service of clients at this router, weighted tokens per second (`DemandMeter.rates`).

        `part`: how much of a round is published with this call; it rises to 1. A client that is missing in three rounds requests
        nothing any more, and its row is dropped.
        """
        mine = self._demand.setdefault(self.router, Demand())
        version = floor(mine.head) + part
        mine.head = version if version > mine.head else version + 1
        for client, rate in rates.items():
            mine.rates.put(client, (mine.head, rate))
        mine.drop_stale()

    # Figures.

    def open_accounts(self) -> Iterator[tuple[str, ReplicaAccount]]:
        """Replica accounts that closed totals do not contain."""
        for incarnation, account in self.replica_accounts.items():
            if incarnation not in self.closed_totals.folded:
                yield incarnation, account

    def knows_seeds_of(self, incarnation: str) -> bool:
        """Whether every seed at an incarnation comes from balances that this ledger knows (R8).

        Otherwise only seeds that a known router promised count: the incarnation may be older than the ledger.
        """
        return (
            self.closed_totals.rank != NOTHING_CLOSED
            and incarnation not in self.closed_totals.baselines
        )

    def charged_seeds(self, name: str, live: Collection[str]) -> Iterator[float]:
        """The seeds of a client or tenant at open live incarnations that came out of its carried balance (R8). No zeros."""
        alive, _ = self._parts_of(live)
        yield from self.seeds.of(name, alive, self.knows_seeds_of)

    def ended(self, live: Collection[str]) -> AbstractSet[str]:
        """Incarnations with an open account that are not alive."""
        return self._parts_of(live)[1]

    def _parts_of(self, live: Collection[str]) -> tuple[AbstractSet[str], AbstractSet[str]]:
        self._count_received()
        state = self._arrivals, self.closed_totals.rank, live
        if not isinstance(live, frozenset) or self._parted != state:
            accounts = {name for name, _ in self.open_accounts()}
            alive = accounts.intersection(live)
            self._parted, self._parts = state, (alive, accounts - alive)
        return self._parts

    def clients(self) -> set[str]:
        """Every client in closed totals or in an open account."""
        return set(self.closed_totals.clients).union(
            *(account.names() for _, account in self.open_accounts())
        )

    def served(self, client: str) -> float:
        """S_i: the service of a client over all incarnations, ended ones included (R3). Weighted tokens."""
        return self.service.get(client, 0.0)

    def counted_of(self, client: str) -> float:
        """`served` of a client as it was at the last call of `grown`."""
        return self.service.get(client, 0.0) - self._grown.get(client, 0.0)

    def grown(self) -> Grown:
        """Client → what its service grew by since the last call (design §7).

        Negative for a client that was aged out: its service moved to its tenant.
        """
        self._count_received()
        grown, self._grown = self._grown, {}
        return grown

    def requested_rate(self, client: str, routers: Collection[str]) -> float:
        """r_i: the requested service of a client at all `routers`, weighted tokens per second (design §6)."""
        return sum(
            demand.rate(client) for router, demand in self._demand.items() if router in routers
        )

    def requesting(self, routers: Collection[str]) -> set[str]:
        """The clients with a requested rate at one of `routers`."""
        parts = (demand.current() for of, demand in self._demand.items() if of in routers)
        return set().union(*parts)

    def closing(self, incarnation: str) -> Closing:
        """Balances of an ended incarnation; computed again only after a change."""
        return finish(self.closing_steps(incarnation))

    def closing_steps(self, incarnation: str) -> Generator[None, None, Closing]:
        """`closing` in steps. If the account changes between steps, the result is of the old or the new state."""
        account = self.replica_accounts[incarnation]
        unpromised = self.knows_seeds_of(incarnation)
        current = (account.changes, self.weights, self.rules, unpromised)
        known = self._closings.get(incarnation)
        if known is None or known[0] != current:
            closing = yield from close(account, self.rules, self.weights, unpromised=unpromised)
            known = self._closings[incarnation] = (current, closing)
        return known[1]

    # Exchange.

    def digest(self, of: Progress = NO_PROGRESS) -> Digest:
        """The question to a peer. `of`: how far this router has read that peer's ledger."""
        self._count_received()
        self._changes.number(self.live)
        names: Iterable[str] = self.replica_accounts
        if of.router:
            # What changed here may have changed there too, as reports do. So the peer needs not ask for it.
            of.listed.update(self._changes.since(of.own_revision))
            names = of.listed
            of.own_revision = self._changes.revision
        nothing = ReplicaAccount()
        return Digest(
            replica_accounts={
                name: self.replica_accounts.get(name, nothing).digest() for name in names
            },
            closed_totals=self.closed_totals.rank,
            demand={router: demand.head for router, demand in self._demand.items()},
            adopted=dict(self.adopted),
            router=of.router,
            revision=of.revision,
        )

    def delta(self, has: Digest = NO_VERSIONS) -> Delta:
        """The answer to a peer's digest; the whole ledger without one."""
        names, rest = self._answer(has)
        accounts = (self._account_delta(name, has) for name in names)
        return rest._replace(
            replica_accounts=tuple(account for account in accounts if account is not None)
        )

    def parts(self, has: Digest = NO_VERSIONS, *, rows: int = 2000) -> Iterator[Delta]:
        """The answer of `delta` in parts of about `rows` rows. Each part may be merged alone.

        The ledger may change between two parts. Closed totals come last: they contain every account that was
        compacted meanwhile. The receiver skips an account that is in a part and in the closed totals.
        """
        names, began = self._answer(has)
        nothing = Delta(self.router, self._members(), None, (), None, (), {})
        for name in names:
            account = self._account_delta(name, has) if name in self.replica_accounts else None
            for part in account.split(rows) if account is not None else ():
                yield nothing._replace(replica_accounts=(part,))
        _, rest = self._answer(has)
        # The accounts are as they were when the answer began, or newer.
        yield rest._replace(revision=began.revision, unknown=began.unknown)

    def _members(self) -> tuple[str, ...]:
        return tuple(sorted(self.members))

    def _account_delta(self, name: str, has: Digest) -> ReplicaAccountDelta | None:
        # An asker with closed totals of that height and without the account has removed it. If it got the account
        # back, the two routers would return it to each other without end. (Closed totals of another lineage may
        # lack the account: one of the two wins, and then the asker's contain the account or these no longer do.)
        nothing = ReplicaAccountDigest(0.0, {}, frozenset())
        versions = has.replica_accounts.get(name, nothing)
        if (
            versions == nothing
            and self.closed_totals.folded.get(name, has.closed_totals.height + 1)
            <= has.closed_totals.height
        ):
            return None
        return self.replica_accounts[name].delta(name, versions)

    def _answer(self, has: Digest) -> tuple[list[str], Delta]:
        """The accounts to compare with a digest, and the answer without them."""
        self._count_received()
        self._changes.number(self.live)
        names, unknown, since = list(self.replica_accounts), [], 0
        if has.router:
            since = has.revision if has.router == self.router else 0
            changed = self._changes.since(since)
            names = [name for name in changed if name in has.replica_accounts]
            unknown = [name for name in changed if name not in has.replica_accounts]
        return names, Delta(
            router=self.router,
            members=self._members(),
            live=tuple(self.live) if self._changes.live_revision > since else None,
            replica_accounts=(),
            closed_totals=self.closed_totals.delta(has.closed_totals),
            demand=tuple(
                DemandDelta(router, base, demand.head, demand.rates.since(base))
                for router, demand in self._demand.items()
                if demand.head > (base := has.demand.get(router, 0.0))
            ),
            adopted={
                router: rank
                for router, rank in self.adopted.items()
                if rank > has.adopted.get(router, Rank(-1))
            },
            revision=self._changes.revision,
            unknown=tuple(unknown),
        )

    def merge(self, delta: Delta) -> None:
        """Merge a peer's delta. Raises `ValueError` if a part of it is malformed."""
        check_finite(delta)
        for account in delta.replica_accounts:
            grown = self._account_of(account.incarnation).merge(account)
            self._count(account.incarnation, grown)
            self._note_seeds(account.incarnation, grown, account.named_tenants())
            self._changes.note(account.incarnation)
        for theirs in delta.demand:
            demand = self._demand.setdefault(theirs.router, Demand())
            demand.rates.merge(theirs.rates)
            if demand.head >= theirs.base:
                demand.head = max(demand.head, theirs.head)
            demand.drop_stale()
        self.members_of[delta.router] = frozenset(delta.members)
        if delta.live is not None:
            self.live_of[delta.router] = frozenset(delta.live)
            self.live_changes += 1
        for router, rank in delta.adopted.items():
            self.adopted[router] = max(rank, self.adopted.get(router, rank))
        if delta.closed_totals is not None:
            self._adopt(delta.closed_totals)

    def _adopt(self, delta: ClosedTotalsDelta) -> None:
        """Take over another router's closed totals. Service of the accounts that they contain moves there; sums stay."""
        before = self.closed_totals
        whole = delta.base is None
        names = (
            {*before.clients, *delta.clients.names}
            if whole
            else {*delta.clients.names, *delta.dropped}
        )
        grown = {name: -before.clients.cell(name, SERVICE) for name in names}
        counted = {name for name, _ in self.open_accounts()}
        newer = before.adopt(delta)
        if newer is None:
            return
        self.closed_totals = newer
        self.adopted[self.router] = newer.rank
        for name in names:
            grown[name] += newer.clients.cell(name, SERVICE)
        counts = {name for name, _ in self.open_accounts()}
        for incarnation in counted ^ counts:
            account, sign = self.replica_accounts[incarnation], 1 if incarnation in counts else -1
            for name in account.names():
                grown[name] = grown.get(name, 0.0) + sign * account.served(name)
        # Compaction moves service and keeps sums; only ageing or another lineage changes them.
        self.touched.update(names if whole else delta.dropped)
        self.grow({name: more for name, more in grown.items() if more or name in delta.dropped})

    def forget_account(self, incarnation: str) -> None:
        """Remove a replica account; for `compaction`."""
        self._arrivals += 1
        self._changes.forget(incarnation)
        account = self.replica_accounts.pop(incarnation)
        for name in (*account.names(), *account.named_tenants()):
            self.seeds.note(incarnation, name, None, promised=False)
        self._closings.pop(incarnation, None)

    def forget_routers(self, routers: Collection[str]) -> None:
        """Remove demand, versions and lists of all routers but `routers`."""
        for gone in self._demand.keys() - routers:
            del self._demand[gone]
        for gone in self.adopted.keys() - routers - {self.router}:
            del self.adopted[gone]
        for known in (self.members_of, self.live_of):
            for gone in known.keys() - routers:
                del known[gone]

    def _note_seeds(self, incarnation: str, clients: Iterable[str], tenants: Iterable[str]) -> None:
        account = self.replica_accounts[incarnation]
        for client in clients:
            seed = account.seed(client)
            promised = bool(seed) and account.is_promised(client)
            self.seeds.note(incarnation, client, seed, promised=promised)
        for tenant in tenants:
            seed = account.tenant_seed(tenant)
            promised = bool(seed) and account.is_promised(tenant)
            self.seeds.note(incarnation, tenant, seed, promised=promised)
