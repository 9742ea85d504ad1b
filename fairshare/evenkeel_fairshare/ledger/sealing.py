"""Sealing: folding closed pages into the next book, and forgetting what nobody needs (design R3, R6).

Place in the flow: ledger + members + clock → **sealing** → a new book, which travels with deltas. One of the routers
seals, the one whose name comes first. A page goes through three stages:

1. Every member closed it (`Page.closed_by`): nobody will change it any more, and with each member's mark came
   that member's account, so the sealer's copy is complete.
2. The sealer folds it into the next book. Figures skip folded pages from then on.
3. Every member holds that book, or one that grew from it: the page is dropped.

The surprising thing: two sealers at once (a partition) lose nothing. The higher rank wins as a whole; the loser's
pages are still there, because it could not drop them, and are folded again. A member that is not heard of stops
folding; memory then grows with the scale events of that time, and nothing else suffers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from operator import add

from evenkeel_fairshare.ledger.book import ACTIVE, SERVICE_SCOPE, Book, BookRow, Rank
from evenkeel_fairshare.ledger.closing import Closing, Weights, counted
from evenkeel_fairshare.ledger.ledger import Ledger
from evenkeel_fairshare.ledger.page import RUNNING, WAITING, Page, Totals, tenant_of
from evenkeel_fairshare.ledger.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class SealingRules:
    """When memory is given back."""

    idle_s: float = 3600.0
    """How long a client must have been idle before it may be aged out."""
    max_clients: int = 200_000
    """Clients in the book; beyond that idle clients are aged out although they owe something."""


class Sealer:
    """Seals books for one router, when it is its turn."""

    def __init__(self, ledger: Ledger, rules: SealingRules | None = None) -> None:
        self._ledger = ledger
        self._rules = rules or SealingRules()
        self._active: set[str] | None = None
        """Clients marked active in the book; None until read from it."""
        self._idle_since_s: dict[str, float] = {}
        """Idle clients in the order in which they became idle, as far as this process saw it."""

    def seal(self, members: Collection[str], *, live: Collection[str], now_s: float) -> bool:
        """Write the next book, if it is this router's turn and there is anything to write.

        `members`: all routers of the service, this one included. `live`: incarnations taken for alive.
        """
        ledger = self._ledger
        if ledger.router != min(members, default="") or not self._all_follow(members):
            self._active = None  # whoever seals now will change it
            return False
        foldable = [
            name
            for name, page in ledger.open_pages()
            if name not in live and page.closed_by >= set(members)
        ]
        if not (foldable or ledger.touched or self._active or self._idle_since_s):
            return False
        self._write(foldable, live, now_s)
        return True

    def collect(self, members: Collection[str]) -> None:
        """Drop folded pages that every member holds in its book, and what departed routers left."""
        ledger = self._ledger
        lowest = min((self._followed_height(member) for member in members), default=-1)
        for name in list(ledger.pages):
            if ledger.book.folded.get(name, lowest + 1) <= lowest:
                ledger.forget_page(name)
        ledger.forget_routers(members)

    def _all_follow(self, members: Collection[str]) -> bool:
        return all(self._followed_height(member) >= 0 for member in members)

    def _followed_height(self, member: str) -> int:
        rank = self._ledger.adopted.get(member)
        return rank.height if rank is not None and self._ledger.book.contains(rank) else -1

    def _write(self, foldable: list[str], live: Collection[str], now_s: float) -> None:
        ledger, book = self._ledger, self._ledger.book
        if self._active is None:
            self._take_over(now_s)
        draft = _Draft(book, ledger.weights, {**book.levels, **ledger.levels.levels.since(0)})
        for name in foldable:
            draft.fold(ledger.pages[name], ledger.closing(name))
        self._mark_activity(draft, live, now_s)
        self._age_out(draft, live, now_s)
        height = book.rank.height + 1
        draft.write(height)
        book.folded.update(dict.fromkeys(foldable, height))
        book.rank = Rank(height, ledger.router)
        book.lineage.append(book.rank)
        book.prune()
        ledger.adopted[ledger.router] = book.rank

    def _take_over(self, now_s: float) -> None:
        book = self._ledger.book
        active = {client for client in book.clients if book.client(client).idle_level == ACTIVE}
        self._active = active
        self._idle_since_s = {name: now_s for name in book.clients if name not in active}

    def _mark_activity(self, draft: _Draft, live: Collection[str], now_s: float) -> None:
        """Who did nothing since the last book pays debts by waiting from now on; who did stops paying."""
        ledger = self._ledger
        active = ledger.touched | {
            client
            for name, page in ledger.open_pages()
            if name in live
            for client in page.clients
            if _has_work(page, client)
        }
        # Whoever has just got a row counts as active until it is seen not to be.
        before = (self._active or set()) | draft.clients.changed.keys() - self._idle_since_s.keys()
        for client in active - before:
            draft.clients.activate(client)
            self._idle_since_s.pop(client, None)
        for client in before - active:
            if draft.clients.rest(client):
                self._idle_since_s[client] = now_s
        tenants, tenants_before = (set(map(tenant_of, names)) for names in (active, before))
        for tenant in tenants - tenants_before:
            draft.tenants.activate(tenant)
        for tenant in tenants_before - tenants:
            draft.tenants.rest(tenant)
        self._active = active
        ledger.touched = set()

    def _age_out(self, draft: _Draft, live: Collection[str], now_s: float) -> None:
        """Forget clients that are neither ahead nor in debt, so that nobody gains by being forgotten."""
        ledger, rules = self._ledger, self._rules
        for client, since_s in list(self._idle_since_s.items()):
            if now_s - since_s < rules.idle_s:
                break
            del self._idle_since_s[client]
            if self._owes_nothing(draft, client, live):
                draft.forget(client)
                ledger.levels.lifts.forget(client)
            else:
                self._idle_since_s[client] = now_s  # to be looked at again, after the others
        surplus = len(draft.book.clients) - len(draft.forgotten) - rules.max_clients
        if surplus > 0:
            idle = [name for name in self._idle_since_s if not _seeded(ledger, name, live)]
            idle.sort(key=lambda name: draft.clients.row(name).carried)
            for client in idle[:surplus]:
                del self._idle_since_s[client]
                draft.forget(client)

    def _owes_nothing(self, draft: _Draft, client: str, live: Collection[str]) -> bool:
        levels, served = self._ledger.levels, self._ledger.served(client).normalised
        return (
            draft.clients.row(client).carried <= 0
            and levels.lead(tenant_of(client), client, lambda _: served) <= 0
            and not _seeded(self._ledger, client, live)
        )


def _has_work(page: Page, client: str) -> bool:
    return page.clients.cell(client, WAITING) > 0 or page.clients.cell(client, RUNNING) > 0


def _seeded(ledger: Ledger, client: str, live: Collection[str]) -> bool:
    """Whether a live incarnation started the client from elsewhere: the book holds the other half of that."""
    return any(page.seed(client) for name, page in ledger.open_pages() if name in live)


class _Level:
    """The rows that change of one level of the tree: of all clients, or of all tenants."""

    def __init__(
        self,
        book: Book,
        table: Table,
        read: Callable[[str], BookRow],
        weight: Callable[[str], float],
        scope_of: Callable[[str], str],
        levels: Mapping[str, float],
    ) -> None:
        self._book = book
        self._table = table
        self._read = read
        self._weight = weight
        self._scope_of = scope_of
        self._levels = levels
        self.changed: dict[str, BookRow] = {}

    def row(self, name: str) -> BookRow:
        """The row as it will be, debts paid until the last book."""
        row = self.changed.get(name)
        if row is None:
            row = self._read(name)
            scope = self._scope_of(name)
            if row.idle_level != ACTIVE:
                row = row._replace(
                    carried=self._book.settled(row, scope, self._weight(name)),
                    idle_level=self._book.levels.get(scope, 0.0),
                )
        return row

    def add(self, name: str, totals: Totals, owed: float) -> None:
        """Take over what a departed incarnation leaves behind."""
        row = self.row(name)
        # A debt that comes now was not waited for yet.
        idle_level = ACTIVE if row.idle_level == ACTIVE else self._level_of(name)
        figures = Totals(*map(add, row.totals, totals))
        self.changed[name] = BookRow(figures, row.carried + owed, idle_level)

    def activate(self, name: str) -> None:
        """The member has work again."""
        if name in self.changed or name in self._table:
            self.changed[name] = self.row(name)._replace(idle_level=ACTIVE)

    def rest(self, name: str) -> bool:
        """The member has none; whether it is in the book at all."""
        if name not in self.changed and name not in self._table:
            return False
        self.changed[name] = self.row(name)._replace(idle_level=self._level_of(name))
        return True

    def write(self, height: int) -> None:
        """Put the changes into the book."""
        for name, row in self.changed.items():
            self._table.put(name, (height, *row.totals, row.carried, row.idle_level))

    def _level_of(self, name: str) -> float:
        return self._levels.get(self._scope_of(name), 0.0)


class _Draft:
    """The next book, until it is written."""

    def __init__(self, book: Book, weights: Weights, levels: dict[str, float]) -> None:
        self.book = book
        self.forgotten: list[str] = []
        self._levels = levels
        self.clients = _Level(book, book.clients, book.client, weights.client, tenant_of, levels)
        self.tenants = _Level(
            book, book.tenants, book.tenant, weights.tenant, lambda _: SERVICE_SCOPE, levels
        )

    def fold(self, page: Page, closing: Closing) -> None:
        """Take over a page."""
        for client in page.names():
            self.clients.add(client, counted(page, client), closing.clients.get(client, 0.0))
        for tenant, owed in closing.tenants.items():
            self.tenants.add(tenant, Totals(), owed)

    def forget(self, client: str) -> None:
        """Age a client out: what it was given stays with its tenant."""
        self.tenants.add(tenant_of(client), self.clients.row(client).totals, 0.0)
        self.clients.changed.pop(client, None)
        self.forgotten.append(client)

    def write(self, height: int) -> None:
        """Put everything into the book."""
        self.clients.write(height)
        self.tenants.write(height)
        self.book.clients.drop(self.forgotten)
        self.book.dropped.update(dict.fromkeys(self.forgotten, height))
        self.book.levels = self._levels
