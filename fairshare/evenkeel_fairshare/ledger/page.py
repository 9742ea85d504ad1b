"""Pages: what is known of one replica incarnation, from itself and from every router (design R3).

Place in the flow: reports and routers' accounts → **pages** → closing → book. The replica's own rows are the
source of truth while it lives; the routers' accounts of what they received from it bound from below what it did
after its last report.

The surprising thing: a page never learns whether its replica is alive. Whoever asks for figures says which
incarnations are, and every router writes into `closed_by` when it is done with one for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from evenkeel_fairshare.ledger.table import Rows, Table


class Totals(NamedTuple):
    """What a client was given, cumulative. Tokens, and weighted tokens for the three kinds of service."""

    extend_tokens: float = 0.0
    cached_tokens: float = 0.0
    output_tokens: float = 0.0
    service: float = 0.0
    """h as charged, before any weight."""
    normalised: float = 0.0
    """Service over the client's weight at the time of each charge."""
    tenant_normalised: float = 0.0
    """Service over the tenant's weight at the time of each charge."""
    requests: float = 0.0


TOTALS: Final = len(Totals())

# Columns of a replica's row for a client: version, totals, then state as of that version.
SERVICE: Final = 1 + Totals._fields.index("service")
NORMALISED: Final = 1 + Totals._fields.index("normalised")
TENANT_NORMALISED: Final = 1 + Totals._fields.index("tenant_normalised")
REQUESTS: Final = 1 + Totals._fields.index("requests")
DEFICIT: Final = 1 + TOTALS
SEED: Final = 2 + TOTALS
WAITING: Final = 3 + TOTALS
RUNNING: Final = 4 + TOTALS

# A replica's row for a tenant: version, deficit, seed.
TENANT_DEFICIT: Final = 1
TENANT_SEED: Final = 2

# A router's row for a client: version, totals received, worst case dispatched and taken back, seed promised.
DISPATCHED: Final = 1 + TOTALS
RELEASED: Final = 2 + TOTALS
PROMISED: Final = 3 + TOTALS

# A router's row for a tenant: version, seed promised.
TENANT_PROMISED: Final = 1

# A mark: version, then a replica's row as it was: for a client service, deficit, seed, queued; for a tenant
# deficit, seed as in its row.
MARKED_SERVICE: Final = 1
MARKED_DEFICIT: Final = 2
MARKED_SEED: Final = 3
MARKED_QUEUED: Final = 4


class ReplicaRow(NamedTuple):
    """One client in a replica's report."""

    client: str
    """`namespace/tenant/client`."""
    totals: Totals
    deficit: float = 0.0
    tenant_deficit: float = 0.0
    seed: float = 0.0
    """What the client's deficit started from at this incarnation (R5)."""
    tenant_seed: float = 0.0
    waiting: int = 0
    running: int = 0


def tenant_of(client: str) -> str:
    """`namespace/tenant` of `namespace/tenant/client`."""
    return client.rpartition("/")[0]


@dataclass(slots=True)
class Account:
    """What one router incarnation received from one replica incarnation; only that router writes it."""

    clients: Table = field(default_factory=lambda: Table(totals=TOTALS + 2, state=1))
    tenants: Table = field(default_factory=lambda: Table(totals=0, state=1))
    marks: Table = field(default_factory=lambda: Table(totals=0, state=4))
    """The replica's rows when the router stopped sending there; empty if it never did."""
    tenant_marks: Table = field(default_factory=lambda: Table(totals=0, state=2))
    head: float = 0.0
    """Every change up to this version is here."""

    def delta(self, router: str, base: float) -> AccountDelta:
        """What changed after version `base`."""
        return AccountDelta(
            router,
            base,
            self.head,
            self.clients.since(base),
            self.tenants.since(base),
            self.marks.since(base),
            self.tenant_marks.since(base),
        )

    def merge(self, delta: AccountDelta) -> list[str]:
        """Join what another router knows of the account; the clients whose rows changed."""
        changed = self.clients.merge(delta.clients) + self.marks.merge(delta.marks)
        self.tenants.merge(delta.tenants)
        self.tenant_marks.merge(delta.tenant_marks)
        if self.head >= delta.base:
            self.head = max(self.head, delta.head)
        return changed


@dataclass(frozen=True, slots=True)
class AccountDelta:
    """What changed in an account after version `base`, complete up to `head`."""

    router: str
    base: float
    head: float
    clients: Rows
    tenants: Rows
    marks: Rows
    tenant_marks: Rows

    def split(self, rows: int) -> Iterator[AccountDelta]:
        """The same in deltas of at most `rows` rows of clients, as `PageDelta.split`."""
        nothing = AccountDelta(self.router, self.base, self.base, Rows(), Rows(), Rows(), Rows())
        *pieces, last = self.clients.split(rows)
        *marks, last_marks = self.marks.split(rows)
        for piece in pieces:
            yield replace(nothing, clients=piece)
        for piece in marks:
            yield replace(nothing, marks=piece)
        yield replace(self, clients=last, marks=last_marks)


@dataclass(frozen=True, slots=True)
class PageDelta:
    """What changed in a page. The replica's rows are those after its sequence `base`, complete to `head`."""

    incarnation: str
    base: float
    head: float
    clients: Rows
    tenants: Rows
    accounts: tuple[AccountDelta, ...]
    closed_by: tuple[str, ...]

    def split(self, rows: int) -> Iterator[PageDelta]:
        """The same in deltas of about `rows` rows. Only the last of several claims to be complete up to `head`.

        So merge them in this order, and none after one that was lost: else what was lost is not asked for again.
        """
        nothing = replace(
            self, head=self.base, clients=Rows(), tenants=Rows(), accounts=(), closed_by=()
        )
        *pieces, last = self.clients.split(rows)
        for piece in pieces:
            yield replace(nothing, clients=piece)
        small = []
        for account in self.accounts:
            for part in account.split(rows):
                if len(part.clients) + len(part.marks) < rows // 2:
                    small.append(part)
                else:
                    yield replace(nothing, accounts=(part,))
        yield replace(self, clients=last, accounts=tuple(small))


@dataclass(frozen=True, slots=True)
class PageDigest:
    """How much of a page somebody has."""

    head: float = 0.0
    accounts: dict[str, float] = field(default_factory=dict)
    closed_by: frozenset[str] = frozenset()


@dataclass(slots=True)
class Page:
    """One incarnation."""

    clients: Table = field(default_factory=lambda: Table(totals=TOTALS, state=4))
    tenants: Table = field(default_factory=lambda: Table(totals=0, state=2))
    head: float = 0.0
    """The replica's sequence number up to which its rows are complete."""
    accounts: dict[str, Account] = field(default_factory=dict)
    closed_by: set[str] = field(default_factory=set)
    """Routers that send nothing there any more and have nothing open there."""
    changes: int = 0
    """Counts changes, so that whoever computes from the page knows when to compute again."""

    def observe(self, *, since: float, sequence: float, rows: Iterable[ReplicaRow]) -> list[str]:
        """Take a report that holds what changed after `since`; the clients whose rows changed."""
        changed = []
        for row in rows:
            cells = (sequence, *row.totals, row.deficit, row.seed, row.waiting, row.running)
            if self.clients.put(row.client, cells):
                changed.append(row.client)
                tenant = tenant_of(row.client)
                self.tenants.put(tenant, (sequence, row.tenant_deficit, row.tenant_seed))
        self._advance(since, sequence)
        self.changes += bool(changed)
        return changed

    def account(self, router: str) -> Account:
        """The account of one router, opened when first asked for."""
        account = self.accounts.get(router)
        if account is None:
            account = self.accounts[router] = Account()
        return account

    def receive(self, router: str, client: str, totals: Totals, *, released: float) -> None:
        """Add to what `router` received, and take `released` back from the worst case it dispatched."""
        account = self._changed(router)
        amounts = [*enumerate(totals, start=1), (RELEASED, released)]
        account.clients.add(client, account.head, amounts)

    def dispatch(self, router: str, client: str, *, worst: float) -> None:
        """`router` sent a request that can cost `worst` at most."""
        account = self._changed(router)
        account.clients.add(client, account.head, ((DISPATCHED, worst),))

    def promise(self, router: str, client: str, *, seed: float, tenant_seed: float) -> None:
        """`router` told this incarnation, through client keys, where `client` starts (R5)."""
        account = self._changed(router)
        known = account.clients.get(client)
        row = list(known) if known is not None else [0.0] * account.clients.width
        row[0], row[PROMISED] = account.head, seed
        account.clients.put(client, row)
        account.tenants.put(tenant_of(client), (account.head, tenant_seed))

    def mark(self, router: str) -> None:
        """`router` sends nothing there from now on: the replica drains. Only the first call counts.

        What clients owe there is reckoned from here. Once queues run dry, members leave and their credit is
        forfeited, and whoever still waits is refilled alone: later deficits say nothing any more.
        """
        account = self.account(router)
        if account.marks:
            return
        account.head += 1
        self.changes += 1
        account.marks.put("", (account.head, 0, 0, 0, 0))  # a mark even if nobody was reported yet
        for client in self.clients:
            row = self.clients[client]
            state = (row[SERVICE], row[DEFICIT], row[SEED], float(row[WAITING] > 0))
            account.marks.put(client, (account.head, *state))
        for tenant in self.tenants:
            row = self.tenants[tenant]
            account.tenant_marks.put(tenant, (account.head, *row[1:]))

    def close(self, router: str) -> None:
        """`router` is done with this incarnation. Final: a replica that it gave up must start anew."""
        self.changes += router not in self.closed_by
        self.closed_by.add(router)

    def seed(self, client: str) -> float | None:
        """What a client started from here: as reported, else as promised. None: it was never sent here.

        Where routers promised different seeds, the larger debt stands until the replica says which came first.
        """
        if client in self.clients:
            return self.clients.cell(client, SEED)
        promised = (
            account.clients.cell(client, PROMISED)
            for account in self.accounts.values()
            if client in account.clients
        )
        return min(promised, default=None)

    def tenant_seed(self, tenant: str) -> float | None:
        """What a tenant started from here, likewise."""
        if tenant in self.tenants:
            return self.tenants.cell(tenant, TENANT_SEED)
        promised = (
            account.tenants.cell(tenant, TENANT_PROMISED)
            for account in self.accounts.values()
            if tenant in account.tenants
        )
        return min(promised, default=None)

    def charged_seed(self, client: str, *, unpromised: bool) -> float:
        """The part of a client's seed that a carried balance lost: all of it, or nothing if it is a baseline (R8).

        `unpromised`: whether seeds count that no known router promised.
        """
        seed = self.seed(client) or 0.0
        return seed if unpromised or self.is_promised(client) else 0.0

    def charged_tenant_seed(self, tenant: str, *, unpromised: bool) -> float:
        """The same for a tenant."""
        seed = self.tenant_seed(tenant) or 0.0
        return seed if unpromised or self.is_promised_to_tenant(tenant) else 0.0

    def is_promised(self, client: str) -> bool:
        """Whether a known router promised the client a seed here."""
        return any(account.clients.cell(client, PROMISED) for account in self.accounts.values())

    def is_promised_to_tenant(self, tenant: str) -> bool:
        """The same for a tenant."""
        return any(
            account.tenants.cell(tenant, TENANT_PROMISED) for account in self.accounts.values()
        )

    def names(self) -> Iterator[str]:
        """Every client that the replica or a router names, once."""
        seen = set(self.clients)
        yield from self.clients
        for account in self.accounts.values():
            for name in account.clients:
                if name not in seen:
                    seen.add(name)
                    yield name

    def digest(self) -> PageDigest:
        """How much of the page is here."""
        heads = {router: account.head for router, account in self.accounts.items()}
        return PageDigest(self.head, heads, frozenset(self.closed_by))

    def delta(self, incarnation: str, has: PageDigest) -> PageDelta | None:
        """What somebody who has `has` lacks; None if nothing."""
        accounts = tuple(
            account.delta(router, base)
            for router, account in self.accounts.items()
            if account.head > (base := has.accounts.get(router, 0.0))
        )
        closed = tuple(sorted(self.closed_by - has.closed_by))
        clients = self.clients.since(has.head)
        tenants = self.tenants.since(has.head)
        if not (accounts or closed or clients or tenants or self.head > has.head):
            return None
        return PageDelta(incarnation, has.head, self.head, clients, tenants, accounts, closed)

    def merge(self, delta: PageDelta) -> list[str]:
        """Join what another router knows; the clients whose rows changed."""
        changed = self.clients.merge(delta.clients)
        self.tenants.merge(delta.tenants)
        self._advance(delta.base, delta.head)
        for theirs in delta.accounts:
            changed += self.account(theirs.router).merge(theirs)
        closed_before = len(self.closed_by)
        self.closed_by.update(delta.closed_by)
        self.changes += bool(changed) or len(self.closed_by) > closed_before
        return changed

    def _advance(self, base: float, head: float) -> None:
        if self.head >= base:  # otherwise what lies between is missing, and is asked for again
            self.head = max(self.head, head)

    def _changed(self, router: str) -> Account:
        """The account of one router, which is about to change."""
        account = self.accounts.get(router) or self.account(router)
        account.head += 1
        self.changes += 1
        return account
