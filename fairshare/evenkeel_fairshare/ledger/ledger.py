"""The ledger: what one router knows of the service of all clients, merged with what its peers know (R3).

Peers pull: a router sends its `Digest`, gets the `Delta` of what it lacks and merges it. There is no state per peer and no
acknowledgement, so lost, repeated or late messages do no harm.

State = closed totals × replica accounts × demand × which router holds which closed totals. Closed totals are a chain, all else joins by
maximum, so `merge` is commutative, associative and idempotent without any premise. That no incarnation is counted twice or missed
needs the protocol of `compaction`.

Liveness is not part of the ledger. Functions that depend on it take `live`, the incarnations that the caller takes for alive, so that two
routers may differ for a while without changing each other's state.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from evenkeel_fairshare.ledger.closed_totals import (
    NOTHING_CLOSED,
    ClosedTotals,
    ClosedTotalsDelta,
    Rank,
)
from evenkeel_fairshare.ledger.closing import (
    CarryRules,
    Closing,
    EqualWeights,
    Weights,
    close,
    counted,
    counted_figure,
    finish,
)
from evenkeel_fairshare.ledger.merge_table import MergeTable, Rows
from evenkeel_fairshare.ledger.replica_account import (
    ReplicaAccount,
    ReplicaAccountDelta,
    ReplicaAccountDigest,
    ReplicaRow,
    Totals,
)


@dataclass(frozen=True, slots=True)
class DemandDelta:
    """Requested rates that one router measured and that changed after version `base`."""

    router: str
    base: float
    head: float
    rates: Rows


@dataclass(frozen=True, slots=True)
class Digest:
    """How much of everything a router has; the question of an exchange."""

    replica_accounts: dict[str, ReplicaAccountDigest] = field(default_factory=dict)
    closed_totals: Rank = NOTHING_CLOSED
    demand: dict[str, float] = field(default_factory=dict)
    adopted: dict[str, Rank] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delta:
    """What a router has and the asker lacks; the answer of an exchange. To an empty digest: everything."""

    router: str
    members: tuple[str, ...]
    """Whom the router takes for routers of the service, itself included."""
    live: tuple[str, ...]
    """Incarnations that the router takes for alive."""
    replica_accounts: tuple[ReplicaAccountDelta, ...]
    closed_totals: ClosedTotalsDelta | None
    demand: tuple[DemandDelta, ...]
    adopted: dict[str, Rank]


class Ledger:
    """One router's ledger. Deterministic; reads no clock."""

    def __init__(self, router: str, *, rules: CarryRules, weights: Weights | None = None) -> None:
        """`router`: this router's incarnation, new for every start."""
        self.router = router
        self.rules = rules
        self.weights: Weights = weights or EqualWeights()
        """Replace the object to change weights; what was charged before keeps its weight (R9)."""
        self.replica_accounts: dict[str, ReplicaAccount] = {}
        self.closed_totals = ClosedTotals()
        self.adopted: dict[str, Rank] = {router: self.closed_totals.rank}
        """By router: the book it holds, as far as known."""
        self.members: frozenset[str] = frozenset()
        """Routers of the service, this one included; `sealing` is told and says so here."""
        self.members_of: dict[str, frozenset[str]] = {}
        """By router: what it said of `members` itself, and not through others."""
        self.live: frozenset[str] = frozenset()
        """Incarnations that this router takes for alive; told to peers, and of no influence on figures here."""
        self.live_of: dict[str, frozenset[str]] = {}
        """By router: what it said of `live` itself."""
        self.touched: set[str] = set()
        """Clients with a changed row since the last book; `sealing` empties it."""
        self.stale: set[str] = set()
        """Clients with a changed row since `ServiceIndex` last looked, which empties it."""
        self._demand: dict[str, _Demand] = {}
        self._closings: dict[str, tuple[tuple[object, ...], Closing]] = {}

    # What comes in.

    def observe(
        self, incarnation: str, *, since: float, sequence: float, rows: Iterable[ReplicaRow]
    ) -> None:
        """Take a replica's report: what changed after `since`, complete to `sequence`."""
        changed = self._account_of(incarnation).observe(since=since, sequence=sequence, rows=rows)
        self._touch(changed)

    def sequence(self, incarnation: str) -> float:
        """What to ask the replica for next: its sequence number up to which everything is here."""
        page = self.replica_accounts.get(incarnation)
        return page.head if page is not None else 0.0

    def promised(self, incarnation: str, client: str, *, seed: float, tenant_seed: float) -> None:
        """This router's client keys tell the incarnation where a client and its tenant start (R5)."""
        self._account_of(incarnation).promise(
            self.router, client, seed=seed, tenant_seed=tenant_seed
        )

    def received(self, incarnation: str, client: str, totals: Totals) -> None:
        """This router received that much more from there (R3, R11)."""
        page = self.replica_accounts.get(incarnation) or self._account_of(incarnation)
        page.receive(self.router, client, totals)
        self.touched.add(client)
        self.stale.add(client)

    def drained(self, incarnation: str) -> None:
        """This router sends nothing there any more and lets it finish."""
        self._account_of(incarnation).mark(self.router)

    def closed(self, incarnation: str) -> None:
        """The incarnation is gone and this router has nothing open there. For ever: nothing may follow."""
        self._account_of(incarnation).close(self.router)

    def requested(self, rates: Mapping[str, float]) -> None:
        """Service that clients ask this router for, weighted tokens per second (`DemandMeter.rates`)."""
        mine = self._demand.setdefault(self.router, _Demand())
        mine.head += 1
        for client, rate in rates.items():
            mine.rates.put(client, (mine.head, rate))

    # Figures.

    def open_accounts(self) -> Iterator[tuple[str, ReplicaAccount]]:
        """Pages that no book contains."""
        for incarnation, page in self.replica_accounts.items():
            if incarnation not in self.closed_totals.folded:
                yield incarnation, page

    def knows_seeds_of(self, incarnation: str) -> bool:
        """Whether every seed at an incarnation was taken from balances that this ledger knows (R8).

        Otherwise only those that a known router promised: the incarnation may be older than the ledger's history.
        """
        return (
            self.closed_totals.rank != NOTHING_CLOSED
            and incarnation not in self.closed_totals.baselines
        )

    def clients(self) -> set[str]:
        """Everybody who is in the book or in an open page."""
        return set(self.closed_totals.clients).union(
            *(page.names() for _, page in self.open_accounts())
        )

    def served(self, client: str) -> Totals:
        """S_i: what a client was given by all incarnations that ever were (R3)."""
        figures = list(self.closed_totals.client(client).totals)
        for _, page in self.open_accounts():
            for i, amount in enumerate(counted(page, client)):
                figures[i] += amount
        return Totals(*figures)

    def served_figure(self, client: str, column: int) -> float:
        """One figure of `served`, by its column in a replica's row (`page`): several times as fast."""
        total = self.closed_totals.clients.cell(client, column)
        for _, page in self.open_accounts():
            total += counted_figure(page, client, column)
        return total

    def requested_rate(self, client: str, routers: Collection[str]) -> float:
        """r_i: what a client asks of all `routers` together, weighted tokens per second (design §6)."""
        return sum(
            demand.rates.cell(client, 1)
            for router, demand in self._demand.items()
            if router in routers
        )

    def closing(self, incarnation: str) -> Closing:
        """What a departed incarnation left behind; computed again only after a change."""
        return finish(self.closing_steps(incarnation))

    def closing_steps(self, incarnation: str) -> Generator[None, None, Closing]:
        """The same, with something else done at every step. For a page that changes meanwhile: as it was or as it is."""
        page = self.replica_accounts[incarnation]
        unpromised = self.knows_seeds_of(incarnation)
        current = (page.changes, self.weights, self.rules, unpromised)
        known = self._closings.get(incarnation)
        if known is None or known[0] != current:
            closing = yield from close(page, self.rules, self.weights, unpromised=unpromised)
            known = self._closings[incarnation] = (current, closing)
        return known[1]

    # Exchange.

    def digest(self) -> Digest:
        """The question to a peer."""
        return Digest(
            replica_accounts={name: page.digest() for name, page in self.replica_accounts.items()},
            closed_totals=self.closed_totals.rank,
            demand={router: demand.head for router, demand in self._demand.items()},
            adopted=dict(self.adopted),
        )

    def delta(self, has: Digest | None = None) -> Delta:
        """The answer to a peer's digest; everything there is without one."""
        has = has or Digest()
        pages = (self._page_delta(name, has) for name in self.replica_accounts)
        return self._rest(has, tuple(page for page in pages if page is not None))

    def parts(self, has: Digest | None = None, *, rows: int = 2000) -> Iterator[Delta]:
        """What `delta` says in deltas of about `rows` rows, the rest last; every one may be merged alone.

        The ledger may change between two of them. The book comes last: a page that is folded and forgotten
        meanwhile is in it, one that is folded after its own part is skipped by whoever merges both.
        """
        has = has or Digest()
        nothing = Delta(self.router, self._members(), tuple(self.live), (), None, (), {})
        for name in list(self.replica_accounts):
            page = self._page_delta(name, has) if name in self.replica_accounts else None
            for part in page.split(rows) if page is not None else ():
                yield replace(nothing, replica_accounts=(part,))
        yield self._rest(has, ())

    def _members(self) -> tuple[str, ...]:
        return tuple(sorted(self.members))

    def _page_delta(self, name: str, has: Digest) -> ReplicaAccountDelta | None:
        # Whoever holds a book of that height and not the page has dropped it. Given back, it would be dropped here
        # and come back from there for ever. (A book of another lineage may lack the page: one of the two books
        # wins, and then either the page is in the asker's book or it is folded here no longer.)
        if (
            name not in has.replica_accounts
            and self.closed_totals.folded.get(name, has.closed_totals.height + 1)
            <= has.closed_totals.height
        ):
            return None
        return self.replica_accounts[name].delta(
            name, has.replica_accounts.get(name, ReplicaAccountDigest())
        )

    def _rest(self, has: Digest, pages: tuple[ReplicaAccountDelta, ...]) -> Delta:
        return Delta(
            router=self.router,
            members=self._members(),
            live=tuple(self.live),
            replica_accounts=pages,
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
        )

    def merge(self, delta: Delta) -> None:
        """Join what a peer knows. Raises `ValueError` if a part of it is not well formed."""
        for page in delta.replica_accounts:
            self._touch(self._account_of(page.incarnation).merge(page))
        for theirs in delta.demand:
            demand = self._demand.setdefault(theirs.router, _Demand())
            demand.rates.merge(theirs.rates)
            if demand.head >= theirs.base:
                demand.head = max(demand.head, theirs.head)
        self.members_of[delta.router] = frozenset(delta.members)
        self.live_of[delta.router] = frozenset(delta.live)
        for router, rank in delta.adopted.items():
            self.adopted[router] = max(rank, self.adopted.get(router, rank))
        if (
            delta.closed_totals is not None
            and (book := self.closed_totals.adopt(delta.closed_totals)) is not None
        ):
            # Folding moves service from pages to the book; only ageing, or another lineage, changes sums.
            whole = delta.closed_totals.base is None
            self._touch(
                {*self.closed_totals.clients, *book.clients}
                if whole
                else delta.closed_totals.dropped
            )
            self.closed_totals = book
            self.adopted[self.router] = book.rank

    def forget_account(self, incarnation: str) -> None:
        """Give a page's memory back; for `sealing`."""
        del self.replica_accounts[incarnation]
        self._closings.pop(incarnation, None)

    def forget_routers(self, routers: Collection[str]) -> None:
        """Keep what only a living router can change for `routers` alone."""
        for gone in self._demand.keys() - routers:
            del self._demand[gone]
        for gone in self.adopted.keys() - routers - {self.router}:
            del self.adopted[gone]
        for known in (self.members_of, self.live_of):
            for gone in known.keys() - routers:
                del known[gone]

    def _touch(self, clients: Iterable[str]) -> None:
        names = tuple(clients)
        self.touched.update(names)
        self.stale.update(names)

    def _account_of(self, incarnation: str) -> ReplicaAccount:
        page = self.replica_accounts.get(incarnation)
        if page is None:
            page = self.replica_accounts[incarnation] = ReplicaAccount()
        return page


@dataclass(slots=True)
class _Demand:
    rates: MergeTable = field(default_factory=lambda: MergeTable(totals=0, state=1))
    head: float = 0.0
