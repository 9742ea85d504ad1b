"""Sealing: folding closed pages into the next book, and forgetting what nobody needs (design R3, R6).

Place in the flow: ledger + members + clock → **sealing** → a new book, which travels with deltas. One of the routers
seals, the one whose name comes first. A page goes through three stages:

1. Every member closed it (`Page.closed_by`): nobody will change it any more, and with each member's mark came
   that member's account, so the sealer's copy is complete.
2. The sealer folds it into the next book. Figures skip folded pages from then on.
3. Every member holds that book, or one that grew from it: the page is dropped.

A newcomer seals only when every member has said itself that it knows of the newcomer: from then on no member drops
a page that the newcomer does not hold.

The surprising thing: two sealers at once (lists of members that differ for a while) lose nothing. The higher rank
wins as a whole; the loser's pages are still there, because it could not drop them, and are folded again. A member
that is not heard of stops folding; memory then grows with the scale events of that time, and nothing else suffers.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from dataclasses import dataclass
from operator import add

from evenkeel_fairshare.ledger.book import ACTIVE, EMPTY_BOOK, Book, BookRow, Rank
from evenkeel_fairshare.ledger.closing import STRIDE, Closing, counted, finish
from evenkeel_fairshare.ledger.ledger import Ledger
from evenkeel_fairshare.ledger.page import (
    DEFICIT,
    NORMALISED,
    RUNNING,
    SEED,
    WAITING,
    Page,
    Totals,
    tenant_of,
)


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
        """Clients marked idle, in the order in which this process found them so."""
        self._quanta = QuantaSeen(ledger)

    def seal(self, members: Collection[str], *, live: Collection[str], now_s: float) -> bool:
        """`steps` without a pause; whether a book was written."""
        return finish(self.steps(members, live=live, now_s=now_s))

    def steps(
        self, members: Collection[str], *, live: Collection[str], now_s: float
    ) -> Generator[None, None, bool]:
        """Write the next book, if it is this router's turn and there is anything to write; whether it was.

        The ledger may change at every step: what comes meanwhile is for the book after this one, and if another
        router's book comes, this one is given up.

        `members`: all routers of the service, this one included. `live`: incarnations taken for alive. Call it
        less often than replicas are asked for reports: whoever did nothing between two books is taken for idle
        from the second on, when every report of the time before has come.
        """
        ledger = self._ledger
        ledger.members = frozenset(members)
        if ledger.router != min(members, default="") or not self._all_follow(members):
            self._active = None  # whoever seals now will change it
            return False
        rank = ledger.book.rank  # what is folded below is not in this one
        foldable = [
            name
            for name, page in ledger.open_pages()
            if name not in live and page.closed_by >= set(members)
        ]
        if self._active is None:
            yield from self._take_over(now_s)
        if not (foldable or ledger.touched or self._active or self._idle_since_s):
            return False
        touched, ledger.touched = ledger.touched, set()
        written = False
        try:
            draft = yield from self._draft(foldable, touched, live, now_s)
            book = yield from draft.written(Rank(rank.height + 1, ledger.router), foldable)
            if ledger.book.rank == rank:
                self._publish(book, draft.forgotten)
                written = True
        finally:
            if not written:
                ledger.touched |= touched
                self._active = None
        return written

    def collect(self, members: Collection[str]) -> None:
        """Drop folded pages that every member holds in its book, and what departed routers left."""
        ledger = self._ledger
        ledger.members = frozenset(members)
        lowest = min((self._followed_height(member) for member in members), default=-1)
        for name in list(ledger.pages):
            if ledger.book.folded.get(name, lowest + 1) <= lowest:
                ledger.forget_page(name)
        ledger.forget_routers(members)

    def _all_follow(self, members: Collection[str]) -> bool:
        """Whether every member knows of this router, and held an ancestor of its book when it said so."""
        ledger = self._ledger
        return all(
            self._followed_height(member) >= 0
            and (member == ledger.router or ledger.router in ledger.members_of.get(member, ()))
            for member in members
        )

    def _followed_height(self, member: str) -> int:
        rank = self._ledger.adopted.get(member)
        return rank.height if rank is not None and self._ledger.book.contains(rank) else -1

    def _draft(
        self, foldable: list[str], touched: set[str], live: Collection[str], now_s: float
    ) -> Generator[None, None, Draft]:
        ledger = self._ledger
        draft = Draft(ledger.book)
        quanta = yield from self._quanta.since_last_book(touched, live)
        for tenant, amount in quanta.items():
            draft.given[tenant] = draft.given.get(tenant, 0.0) + amount
        for name in foldable:
            # Closed by all, so nobody changes it any more.
            closing = yield from ledger.closing_steps(name)
            yield from draft.fold(ledger.pages[name], closing)
        yield from self._mark_activity(draft, touched, live, now_s)
        yield from self._age_out(draft, live, now_s)
        return draft

    def _publish(self, book: Book, forgotten: list[str]) -> None:
        """In one go: a book that is half written must not travel."""
        ledger = self._ledger
        first = ledger.book.rank == EMPTY_BOOK
        older = ledger.pages.keys() if first else ledger.book.baselines
        book.baselines = frozenset(older) - book.folded.keys()
        ledger.book = book
        ledger.adopted[ledger.router] = book.rank
        ledger.stale.update(forgotten)  # their service is in their tenants' rows now
        for client in forgotten:
            ledger.levels.lifts.forget(client)

    def _take_over(self, now_s: float) -> Generator[None, None, None]:
        book = self._ledger.book
        active = {client for client in book.clients if book.client(client).idle_level == ACTIVE}
        working = yield from self._working(set(self._ledger.pages))
        self._idle_since_s = {
            name: now_s for name in book.clients if name not in active and name not in working
        }
        quanta = QuantaSeen(self._ledger)
        yield from quanta.begin()
        self._quanta, self._active = quanta, active | working

    def _working(self, incarnations: Collection[str]) -> Generator[None, None, set[str]]:
        """Clients with work at one of them."""
        working: set[str] = set()
        for name, page in list(self._ledger.open_pages()):
            if name in incarnations:
                working.update(page.clients.positive(WAITING))
                working.update(page.clients.positive(RUNNING))
                yield
        return working

    def _mark_activity(
        self, draft: Draft, touched: set[str], live: Collection[str], now_s: float
    ) -> Generator[None, None, None]:
        still = self._active or set()
        # Work that comes touches a row; only what stays does not.
        working = yield from self._working(live)
        busy = touched | still & working
        # Whoever has just got a row counts as active until it is seen not to be.
        before = still | draft.clients.keys() - self._idle_since_s.keys()
        for n, client in enumerate(busy & self._idle_since_s.keys()):
            draft.activate(client)
            del self._idle_since_s[client]
            if n % STRIDE == STRIDE - 1:
                yield
        for n, client in enumerate(before - busy):
            if draft.rest(client):
                self._idle_since_s[client] = now_s
            if n % STRIDE == STRIDE - 1:
                yield
        self._active = busy

    def _age_out(
        self, draft: Draft, live: Collection[str], now_s: float
    ) -> Generator[None, None, None]:
        """Forget clients that are not ahead and went without what they owe: nobody gains by being forgotten."""
        ledger, rules = self._ledger, self._rules
        for client, since_s in list(self._idle_since_s.items()):
            if now_s - since_s < rules.idle_s:
                break
            del self._idle_since_s[client]
            if self._is_quits(draft, client, live):
                draft.forget(client)
            else:
                self._idle_since_s[client] = now_s  # to be looked at again, after the others
            yield
        surplus = len(draft.book.clients) - len(draft.forgotten) - rules.max_clients
        if surplus > 0:
            idle = []
            for name in list(self._idle_since_s):
                if not _seeded(ledger, name, live):
                    idle.append(name)
                yield
            idle.sort(key=lambda name: draft.client(name).carried)
            for client in idle[:surplus]:
                del self._idle_since_s[client]
                draft.forget(client)

    def _is_quits(self, draft: Draft, client: str, live: Collection[str]) -> bool:
        ledger, row = self._ledger, draft.client(client)
        # Up to the last book: a client that did nothing since then was idle at least until then.
        waited_for = draft.book.given.get(tenant_of(client), 0.0) - row.idle_level
        served = ledger.served_figure(client, NORMALISED)
        return (
            row.carried <= waited_for * ledger.weights.client(client)
            and ledger.levels.lead(tenant_of(client), client, lambda _: served) <= 0
            and not _seeded(ledger, client, live)
        )


def _seeded(ledger: Ledger, client: str, live: Collection[str]) -> bool:
    """Whether a live incarnation started the client from elsewhere: the book holds the other half of that."""
    return any(
        page.charged_seed(client, unpromised=ledger.knows_seeds_of(name))
        for name, page in ledger.open_pages()
        if name in live
    )


class QuantaSeen:
    """How many quanta replicas gave out, per tenant, as far as reports show it.

    A client that was queued all the time was given service + (deficit - seed) / weight; nobody was given more.
    So the most that any client was given never rises faster than the quanta that the replica gave out.
    """

    def __init__(self, ledger: Ledger) -> None:
        """Call `begin` next."""
        self._ledger = ledger
        self._weights = ledger.weights
        self._most: dict[tuple[str, str], float] = {}

    def begin(self) -> Generator[None, None, None]:
        """What is known by now does not count."""
        self._weights = self._ledger.weights
        self._most = {}
        for name, page in list(self._ledger.open_pages()):
            yield from self._look(name, page, list(page.clients))

    def since_last_book(
        self, touched: Collection[str], live: Collection[str]
    ) -> Generator[None, None, dict[str, float]]:
        """By tenant: quanta that were seen since the last call, over the live replicas."""
        if self._weights is not self._ledger.weights:
            yield from self.begin()  # quanta of before and after a change of weights do not compare
            return {}
        rise: dict[str, float] = {}
        for name, page in list(self._ledger.open_pages()):
            if name in live:
                here = [client for client in touched if client in page.clients]
                quanta = yield from self._look(name, page, here)
                for tenant, amount in quanta.items():
                    rise[tenant] = rise.get(tenant, 0.0) + amount
        gone = [key for key in self._most if key[0] not in live]
        for key in gone:
            del self._most[key]
        return rise

    def _look(
        self, name: str, page: Page, clients: list[str]
    ) -> Generator[None, None, dict[str, float]]:
        rise: dict[str, float] = {}
        for n, client in enumerate(clients):
            row = page.clients[client]
            held = (row[DEFICIT] - row[SEED]) / self._ledger.weights.client(client)
            key = (name, tenant_of(client))
            more = row[NORMALISED] + held - self._most.get(key, 0.0)
            if more > 0:
                self._most[key] = self._most.get(key, 0.0) + more
                rise[key[1]] = rise.get(key[1], 0.0) + more
            if n % STRIDE == STRIDE - 1:
                yield
        return rise


class Draft:
    """The next book, until it is written."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.clients: dict[str, BookRow] = {}
        """Rows that change."""
        self.given = dict(book.given)
        self.forgotten: list[str] = []
        self._tenants: dict[str, BookRow] = {}

    def client(self, client: str) -> BookRow:
        """A client's row as it will be."""
        return self.clients.get(client) or self.book.client(client)

    def fold(self, page: Page, closing: Closing) -> Generator[None, None, None]:
        """Take over what a departed incarnation leaves behind."""
        for n, client in enumerate(list(page.names())):
            if n % STRIDE == STRIDE - 1:
                yield
            row = self.client(client)
            self.clients[client] = BookRow(
                totals=Totals(*map(add, row.totals, counted(page, client))),
                carried=row.carried + closing.clients.get(client, 0.0),
                # A debt that comes now was not waited for yet.
                idle_level=ACTIVE if row.idle_level == ACTIVE else self._level_of(client),
            )
        for tenant, owed in closing.tenants.items():
            self._add_to_tenant(tenant, Totals(), owed)

    def activate(self, client: str) -> None:
        """A client has work again."""
        self.clients[client] = self.client(client)._replace(idle_level=ACTIVE)

    def rest(self, client: str) -> bool:
        """A client has none; whether it is in the book at all."""
        if client not in self.clients and client not in self.book.clients:
            return False
        self.clients[client] = self.client(client)._replace(idle_level=self._level_of(client))
        return True

    def forget(self, client: str) -> None:
        """Age a client out: what it was given stays with its tenant."""
        self._add_to_tenant(tenant_of(client), self.client(client).totals, 0.0)
        self.clients.pop(client, None)
        self.forgotten.append(client)

    def written(self, rank: Rank, folded: list[str]) -> Generator[None, None, Book]:
        """The next book."""
        book, n = self.book.copy(), 0
        for table, rows in ((book.clients, self.clients), (book.tenants, self._tenants)):
            for name, row in rows.items():
                table.put(name, (rank.height, *row.totals, row.carried, row.idle_level))
                n += 1
                if n % STRIDE == 0:
                    yield
        book.clients.drop(self.forgotten)
        book.dropped.update(dict.fromkeys(self.forgotten, rank.height))
        book.given = self.given
        book.folded.update(dict.fromkeys(folded, rank.height))
        book.rank = rank
        book.lineage.append(rank)
        book.prune()
        return book

    def _add_to_tenant(self, tenant: str, totals: Totals, owed: float) -> None:
        row = self._tenants.get(tenant) or self.book.tenant(tenant)
        self._tenants[tenant] = row._replace(
            totals=Totals(*map(add, row.totals, totals)), carried=row.carried + owed
        )

    def _level_of(self, client: str) -> float:
        return self.given.get(tenant_of(client), 0.0)
