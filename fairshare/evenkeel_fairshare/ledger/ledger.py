"""The ledger: everything that one router knows of who was served what, merged with what its peers know (R3).

Place in the flow: reports · own accounts · peers' deltas → **ledger** → figures, seeds, metrics. Peers pull: a
router sends its `Digest`, gets the `Delta` of what it lacks and merges it. Nothing is kept per peer and nothing
is acknowledged, so a message that is lost, repeated or late does no harm.

State = book × pages × levels × lifts × demand × who holds which book. The book is a chain, all else joins by
maximum; so `merge` is commutative, associative and idempotent without any premise. That no incarnation is
counted twice or missed, while pages are folded into books, needs the protocol of `sealing`.

The surprising thing: liveness is not part of the ledger. Figures that depend on it take `live`, the incarnations
that the caller takes for alive, so that two routers may differ for a while without spoiling each other's state.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from evenkeel_fairshare.ledger.book import EMPTY_BOOK, Book, BookDelta, Rank
from evenkeel_fairshare.ledger.closing import (
    CarryRules,
    Closing,
    EqualWeights,
    Weights,
    close,
    counted,
    counted_figure,
    counted_figures,
    finish,
)
from evenkeel_fairshare.ledger.levels import Levels
from evenkeel_fairshare.ledger.page import (
    Page,
    PageDelta,
    PageDigest,
    ReplicaRow,
    Totals,
)
from evenkeel_fairshare.ledger.table import Rows, Table


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

    pages: dict[str, PageDigest] = field(default_factory=dict)
    book: Rank = EMPTY_BOOK
    demand: dict[str, float] = field(default_factory=dict)
    lifts: dict[str, int] = field(default_factory=dict)
    """By router: the tick of its lifts up to which they are known."""
    adopted: dict[str, Rank] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delta:
    """What a router has and the asker lacks; the answer of an exchange. To an empty digest: everything."""

    router: str
    members: tuple[str, ...]
    """Whom the router takes for routers of the service, itself included."""
    live: tuple[str, ...]
    """Incarnations that the router takes for alive."""
    pages: tuple[PageDelta, ...]
    book: BookDelta | None
    demand: tuple[DemandDelta, ...]
    levels: dict[str, float]
    lifts_base: int
    lifts_head: int
    lifts: dict[str, float]
    adopted: dict[str, Rank]


class Ledger:
    """One router's ledger. Deterministic; reads no clock."""

    def __init__(self, router: str, *, rules: CarryRules, weights: Weights | None = None) -> None:
        """`router`: this router's incarnation, new for every start."""
        self.router = router
        self.rules = rules
        self.weights: Weights = weights or EqualWeights()
        """Replace the object to change weights; what was charged before keeps its weight (R9)."""
        self.pages: dict[str, Page] = {}
        self.book = Book()
        self.levels = Levels()
        self.adopted: dict[str, Rank] = {router: self.book.rank}
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
        """Clients with a changed row since `Figures` last looked, which empties it."""
        self._demand: dict[str, _Demand] = {}
        self._lift_cursors: dict[str, int] = {}
        self._closings: dict[str, tuple[tuple[object, ...], Closing]] = {}

    # What comes in.

    def observe(
        self, incarnation: str, *, since: float, sequence: float, rows: Iterable[ReplicaRow]
    ) -> None:
        """Take a replica's report: what changed after `since`, complete to `sequence`."""
        changed = self._page(incarnation).observe(since=since, sequence=sequence, rows=rows)
        self._touch(changed)

    def sequence(self, incarnation: str) -> float:
        """What to ask the replica for next: its sequence number up to which everything is here."""
        page = self.pages.get(incarnation)
        return page.head if page is not None else 0.0

    def promised(self, incarnation: str, client: str, *, seed: float, tenant_seed: float) -> None:
        """This router's client keys tell the incarnation where a client and its tenant start (R5)."""
        self._page(incarnation).promise(self.router, client, seed=seed, tenant_seed=tenant_seed)

    def dispatched(self, incarnation: str, client: str, *, worst: float) -> None:
        """This router sent a request there that can cost `worst` at most, weighted tokens."""
        page = self.pages.get(incarnation) or self._page(incarnation)
        page.dispatch(self.router, client, worst=worst)

    def received(
        self, incarnation: str, client: str, totals: Totals, *, released: float = 0.0
    ) -> None:
        """This router received that much more from there (R3, R11). `released`: what of the worst case is over."""
        page = self.pages.get(incarnation) or self._page(incarnation)
        page.receive(self.router, client, totals, released=released)
        self.touched.add(client)
        self.stale.add(client)

    def drained(self, incarnation: str) -> None:
        """This router sends nothing there any more and lets it finish."""
        self._page(incarnation).mark(self.router)

    def closed(self, incarnation: str) -> None:
        """The incarnation is gone and this router has nothing open there. For ever: nothing may follow."""
        self._page(incarnation).close(self.router)

    def requested(self, rates: Mapping[str, float]) -> None:
        """Service that clients ask this router for, weighted tokens per second (`DemandMeter.rates`)."""
        mine = self._demand.setdefault(self.router, _Demand())
        mine.head += 1
        for client, rate in rates.items():
            mine.rates.put(client, (mine.head, rate))

    # Figures.

    def open_pages(self) -> Iterator[tuple[str, Page]]:
        """Pages that no book contains."""
        for incarnation, page in self.pages.items():
            if incarnation not in self.book.folded:
                yield incarnation, page

    def knows_seeds_of(self, incarnation: str) -> bool:
        """Whether every seed at an incarnation was taken from balances that this ledger knows (R8).

        Otherwise only those that a known router promised: the incarnation may be older than the ledger's history.
        """
        return self.book.rank != EMPTY_BOOK and incarnation not in self.book.baselines

    def clients(self) -> set[str]:
        """Everybody who is in the book or in an open page."""
        return set(self.book.clients).union(*(page.names() for _, page in self.open_pages()))

    def served(self, client: str) -> Totals:
        """S_i: what a client was given by all incarnations that ever were (R3)."""
        figures = list(self.book.client(client).totals)
        for _, page in self.open_pages():
            for i, amount in enumerate(counted(page, client)):
                figures[i] += amount
        return Totals(*figures)

    def served_figure(self, client: str, column: int) -> float:
        """One figure of `served`, by its column in a replica's row (`page`): several times as fast."""
        total = self.book.clients.cell(client, column)
        for _, page in self.open_pages():
            total += counted_figure(page, client, column)
        return total

    def served_figures(self, client: str, columns: Sequence[int]) -> list[float]:
        """Several figures of `served` at once."""
        book = self.book.clients.get(client)
        totals = [book[column] for column in columns] if book is not None else [0.0] * len(columns)
        for _, page in self.open_pages():
            figures = counted_figures(page, client, columns)
            if figures is not None:
                for i, amount in enumerate(figures):
                    totals[i] += amount
        return totals

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
        page = self.pages[incarnation]
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
            pages={name: page.digest() for name, page in self.pages.items()},
            book=self.book.rank,
            demand={router: demand.head for router, demand in self._demand.items()},
            lifts=dict(self._lift_cursors),
            adopted=dict(self.adopted),
        )

    def delta(self, has: Digest | None = None) -> Delta:
        """The answer to a peer's digest; everything there is without one."""
        has = has or Digest()
        pages = (self._page_delta(name, has) for name in self.pages)
        return self._rest(has, tuple(page for page in pages if page is not None))

    def parts(self, has: Digest | None = None, *, rows: int = 2000) -> Iterator[Delta]:
        """What `delta` says in deltas of about `rows` rows, the rest last; every one may be merged alone.

        The ledger may change between two of them. The book comes last: a page that is folded and forgotten
        meanwhile is in it, one that is folded after its own part is skipped by whoever merges both.
        """
        has = has or Digest()
        nothing = Delta(
            self.router, self._members(), tuple(self.live), (), None, (), {}, 0, 0, {}, {}
        )
        for name in list(self.pages):
            page = self._page_delta(name, has) if name in self.pages else None
            for part in page.split(rows) if page is not None else ():
                yield replace(nothing, pages=(part,))
        yield self._rest(has, ())

    def _members(self) -> tuple[str, ...]:
        return tuple(sorted(self.members))

    def _page_delta(self, name: str, has: Digest) -> PageDelta | None:
        # Whoever holds a book of that height and not the page has dropped it. Given back, it would be dropped here
        # and come back from there for ever. (A book of another lineage may lack the page: one of the two books
        # wins, and then either the page is in the asker's book or it is folded here no longer.)
        if (
            name not in has.pages
            and self.book.folded.get(name, has.book.height + 1) <= has.book.height
        ):
            return None
        return self.pages[name].delta(name, has.pages.get(name, PageDigest()))

    def _rest(self, has: Digest, pages: tuple[PageDelta, ...]) -> Delta:
        lifts_base = has.lifts.get(self.router, 0)
        return Delta(
            router=self.router,
            members=self._members(),
            live=tuple(self.live),
            pages=pages,
            book=self.book.delta(has.book),
            demand=tuple(
                DemandDelta(router, base, demand.head, demand.rates.since(base))
                for router, demand in self._demand.items()
                if demand.head > (base := has.demand.get(router, 0.0))
            ),
            levels=self.levels.levels.since(0),
            lifts_base=lifts_base,
            lifts_head=self.levels.lifts.tick,
            lifts=self.levels.lifts.since(lifts_base),
            adopted={
                router: rank
                for router, rank in self.adopted.items()
                if rank > has.adopted.get(router, Rank(-1))
            },
        )

    def merge(self, delta: Delta) -> None:
        """Join what a peer knows. Raises `ValueError` if a part of it is not well formed."""
        for page in delta.pages:
            self._touch(self._page(page.incarnation).merge(page))
        for theirs in delta.demand:
            demand = self._demand.setdefault(theirs.router, _Demand())
            demand.rates.merge(theirs.rates)
            if demand.head >= theirs.base:
                demand.head = max(demand.head, theirs.head)
        self.levels.levels.merge(delta.levels)
        self.levels.lifts.merge(delta.lifts)
        if self._lift_cursors.get(delta.router, 0) >= delta.lifts_base:
            cursor = max(self._lift_cursors.get(delta.router, 0), delta.lifts_head)
            self._lift_cursors[delta.router] = cursor
        self.members_of[delta.router] = frozenset(delta.members)
        self.live_of[delta.router] = frozenset(delta.live)
        for router, rank in delta.adopted.items():
            self.adopted[router] = max(rank, self.adopted.get(router, rank))
        if delta.book is not None and (book := self.book.adopt(delta.book)) is not None:
            # Folding moves service from pages to the book; only ageing, or another lineage, changes sums.
            whole = delta.book.base is None
            self._touch({*self.book.clients, *book.clients} if whole else delta.book.dropped)
            self.book = book
            self.adopted[self.router] = book.rank

    def forget_page(self, incarnation: str) -> None:
        """Give a page's memory back; for `sealing`."""
        del self.pages[incarnation]
        self._closings.pop(incarnation, None)

    def forget_routers(self, routers: Collection[str]) -> None:
        """Keep what only a living router can change for `routers` alone."""
        for gone in self._demand.keys() - routers:
            del self._demand[gone]
        for gone in self.adopted.keys() - routers - {self.router}:
            del self.adopted[gone]
        for known in (self._lift_cursors, self.members_of, self.live_of):
            for gone in known.keys() - routers:
                del known[gone]

    def _touch(self, clients: Iterable[str]) -> None:
        names = tuple(clients)
        self.touched.update(names)
        self.stale.update(names)

    def _page(self, incarnation: str) -> Page:
        page = self.pages.get(incarnation)
        if page is None:
            page = self.pages[incarnation] = Page()
        return page


@dataclass(slots=True)
class _Demand:
    rates: Table = field(default_factory=lambda: Table(totals=0, state=1))
    head: float = 0.0
