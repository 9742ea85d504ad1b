"""The book: what all departed incarnations add up to, in a bounded form (design R3, R6).

Place in the flow: pages that every router has closed → **book** → derived figures. A page says what one
incarnation gave to each client; nobody can afford to keep pages of incarnations that are gone. Folding them
into one sum is where merging goes wrong: two sums that share an incarnation cannot be joined. So a book is never
joined. It is written by one router at a time, numbered, and the higher number wins as a whole; the pages that
it folded are kept until every router holds a book that contains them (`sealing`).

The surprising thing: everything that is not a maximum happens here and only here: folding and ageing clients
out. That keeps every other part of the ledger a semilattice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from evenkeel_fairshare.ledger.page import TOTALS, Totals
from evenkeel_fairshare.ledger.table import Rows, Table

# A row of the book, for clients and tenants alike: number of the book that wrote it, totals, then
CARRIED: Final = 1 + TOTALS
"""Weighted tokens that departed incarnations left to be charged at replicas to come; negative: credit."""
IDLE_LEVEL: Final = 2 + TOTALS
"""What the client's tenant had been given when the client was found idle; `ACTIVE` while it is not."""
ACTIVE: Final = -1.0
"""Levels are never negative."""

MAX_FOLDED: Final = 1 << 16
"""Names of folded incarnations that are remembered: a scale event a minute for six weeks."""
MAX_LINEAGE: Final = 256
"""Former books that a delta can start from; whoever is further behind gets the whole book."""


class Rank(NamedTuple):
    """Which book. The higher one wins."""

    height: int = 0
    sealer: str = ""


EMPTY_BOOK: Final = Rank()


class BookRow(NamedTuple):
    """One client or tenant in the book."""

    totals: Totals = Totals()
    carried: float = 0.0
    idle_level: float = ACTIVE


@dataclass(frozen=True, slots=True)
class BookDelta:
    """What changed in the book after `base`; the whole book if `base` is None."""

    rank: Rank
    base: Rank | None
    lineage: tuple[Rank, ...]
    clients: Rows
    tenants: Rows
    dropped: dict[str, int]
    """Clients aged out, and the height at which."""
    folded: dict[str, int]
    """Incarnations folded, and the height at which."""
    given: dict[str, float]
    baselines: tuple[str, ...]


@dataclass(slots=True)
class Book:
    """One numbered book. Only `sealing` writes to it."""

    rank: Rank = EMPTY_BOOK
    lineage: list[Rank] = field(default_factory=lambda: [EMPTY_BOOK])
    """The books it grew from, itself last."""
    clients: Table = field(default_factory=lambda: Table(totals=0, state=TOTALS + 2))
    tenants: Table = field(default_factory=lambda: Table(totals=0, state=TOTALS + 2))
    """Carried credit or debt of tenants, and the totals of their clients that were aged out."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Clients aged out within the lineage, and the height at which."""
    folded: dict[str, int] = field(default_factory=dict)
    baselines: frozenset[str] = frozenset()
    """Incarnations that were there before the first book. Seeds that no known router promised there are no debts."""
    given: dict[str, float] = field(default_factory=dict)
    """By tenant: quanta that a client would have been given that was queued on all replicas all the time (R4).

    A level that only rises. Never more than the truth: quanta that no report shows are not in it.
    """

    def client(self, client: str) -> BookRow:
        """A client's row; zeros if it has none."""
        return _row(self.clients, client)

    def tenant(self, tenant: str) -> BookRow:
        """A tenant's row; zeros if it has none."""
        return _row(self.tenants, tenant)

    def copy(self) -> Book:
        """The same, to be changed while this one is read."""
        return Book(
            rank=self.rank,
            lineage=list(self.lineage),
            clients=self.clients.copy(),
            tenants=self.tenants.copy(),
            dropped=dict(self.dropped),
            folded=dict(self.folded),
            given=dict(self.given),
            baselines=self.baselines,
        )

    def contains(self, rank: Rank) -> bool:
        """Whether this book grew from that one, as far as it remembers."""
        return rank in self.lineage

    def delta(self, has: Rank) -> BookDelta | None:
        """What somebody who holds `has` needs; None if that is not older than this book."""
        if has >= self.rank:
            return None
        # Nobody grew from another book than the empty one, so to an empty-handed asker a delta and the whole
        # are the same rows; but only the whole can also be taken by somebody who holds a book by then.
        base = has if has != EMPTY_BOOK and self.contains(has) else None
        height = base.height if base else -1
        return BookDelta(
            rank=self.rank,
            base=base,
            lineage=tuple(self.lineage),
            clients=self.clients.since(height),
            tenants=self.tenants.since(height),
            dropped={name: at for name, at in self.dropped.items() if at > height},
            folded={name: at for name, at in self.folded.items() if at > height},
            given=dict(self.given),
            baselines=tuple(sorted(self.baselines)),
        )

    def adopt(self, delta: BookDelta) -> Book | None:
        """The newer book that `delta` leads to; None if it leads to none from here."""
        if delta.rank <= self.rank or (delta.base is not None and delta.base != self.rank):
            return None
        book = self if delta.base is not None else Book()
        book.rank, book.lineage = delta.rank, list(delta.lineage)
        # Before the new rows: a client that was aged out may have come back in the same delta.
        book.clients.drop(delta.dropped)
        book.clients.merge(delta.clients)
        book.tenants.merge(delta.tenants)
        book.folded.update(delta.folded)
        book.dropped.update(delta.dropped)
        book.given = dict(delta.given)
        book.baselines = frozenset(delta.baselines)
        book.prune()
        return book

    def prune(self) -> None:
        """Forget what is too old for any router to ask for."""
        del self.lineage[:-MAX_LINEAGE]
        oldest = self.lineage[0].height
        self.dropped = {name: at for name, at in self.dropped.items() if at >= oldest}
        if len(self.folded) > MAX_FOLDED:
            by_height = sorted(self.folded.items(), key=lambda item: item[1])
            self.folded = dict(by_height[-MAX_FOLDED:])


def _row(table: Table, name: str) -> BookRow:
    cells = table.get(name)
    if cells is None:
        return BookRow()
    return BookRow(Totals(*cells[1 : 1 + TOTALS]), cells[CARRIED], cells[IDLE_LEVEL])
