"""The account of one replica incarnation, from its reports and from every router (design R3).

The replica's own rows are the source of truth while it lives. The router accounts contain what each router received: a lower bound
of the service after the last report. The account does not record whether the replica lives. Each router adds itself to `closed_by`
when it never uses the incarnation again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from evenkeel_fairshare.ledger.merge_table import MergeTable, Rows


class ReplicaRow(NamedTuple):
    """What the ledger reads of a client in a replica's report. Totals first, then state."""

    client: str
    """`namespace/tenant/client`."""
    service: float = 0.0
    """Weighted tokens, as charged."""
    normalised: float = 0.0
    """Service divided by the client's weight at the time of each charge."""
    requests: float = 0.0
    """Requests admitted."""
    deficit: float = 0.0
    seed: float = 0.0
    """The first deficit of the client at this incarnation (R5)."""
    waiting: float = 0.0
    running: float = 0.0
    tenant_deficit: float = 0.0
    tenant_seed: float = 0.0


# Columns of a replica's row for a client: the version instead of the name, then as in `ReplicaRow`.
_column = ReplicaRow._fields.index
SERVICE: Final = _column("service")
"""Column of service, the first number after the version in every table of clients."""
NORMALISED: Final = _column("normalised")
REQUESTS: Final = _column("requests")
DEFICIT: Final = _column("deficit")
SEED: Final = _column("seed")
WAITING: Final = _column("waiting")
RUNNING: Final = _column("running")

# A replica's row for a tenant: version, deficit, seed.
TENANT_DEFICIT: Final = 1
TENANT_SEED: Final = 2

# A router's row for a client: version, service received, seed promised.
PROMISED: Final = 2

# A router's row for a tenant: version, seed promised.
TENANT_PROMISED: Final = 1

# A mark: version, then a replica's row as it was: for a client service, deficit, seed, queued; for a tenant
# deficit, seed as in its row.
MARKED_SERVICE: Final = 1
MARKED_DEFICIT: Final = 2
MARKED_SEED: Final = 3
MARKED_QUEUED: Final = 4


def tenant_of(client: str) -> str:
    """`namespace/tenant` of `namespace/tenant/client`."""
    return client.rpartition("/")[0]


@dataclass(slots=True)
class RouterAccount:
    """Service that one router incarnation received from one replica incarnation. Only that router writes it."""

    clients: MergeTable = field(default_factory=lambda: MergeTable(totals=1, state=1))
    tenants: MergeTable = field(default_factory=lambda: MergeTable(totals=0, state=1))
    marks: MergeTable = field(default_factory=lambda: MergeTable(totals=0, state=4))
    """The replica's rows at the time of the drain; empty if the router did not drain it."""
    tenant_marks: MergeTable = field(default_factory=lambda: MergeTable(totals=0, state=2))
    head: float = 0.0
    """Every change up to this version is here."""

    def delta(self, router: str, base: float) -> RouterAccountDelta:
        """The changes after version `base`."""
        return RouterAccountDelta(
            router,
            base,
            self.head,
            self.clients.since(base),
            self.tenants.since(base),
            self.marks.since(base),
            self.tenant_marks.since(base),
        )

    def merge(self, delta: RouterAccountDelta) -> list[str]:
        """Merge another router's copy; returns the clients with changed rows."""
        changed = self.clients.merge(delta.clients) + self.marks.merge(delta.marks)
        self.tenants.merge(delta.tenants)
        self.tenant_marks.merge(delta.tenant_marks)
        if self.head >= delta.base:
            self.head = max(self.head, delta.head)
        return changed


class RouterAccountDelta(NamedTuple):
    """All changes of a router account after version `base`, up to `head`."""

    router: str
    base: float
    head: float
    clients: Rows
    tenants: Rows
    marks: Rows
    tenant_marks: Rows

    def split(self, rows: int) -> Iterator[RouterAccountDelta]:
        """This delta in parts of at most `rows` rows of clients, as `ReplicaAccountDelta.split`."""
        nothing = RouterAccountDelta(
            self.router, self.base, self.base, Rows(), Rows(), Rows(), Rows()
        )
        *pieces, last = self.clients.split(rows)
        *marks, last_marks = self.marks.split(rows)
        for piece in pieces:
            yield nothing._replace(clients=piece)
        for piece in marks:
            yield nothing._replace(marks=piece)
        yield self._replace(clients=last, marks=last_marks)


class ReplicaAccountDelta(NamedTuple):
    """Changes of a replica account: all rows of the replica after its sequence `base`, up to `head`."""

    incarnation: str
    base: float
    head: float
    clients: Rows
    tenants: Rows
    accounts: tuple[RouterAccountDelta, ...]
    closed_by: tuple[str, ...]

    def split(self, rows: int) -> Iterator[ReplicaAccountDelta]:
        """This delta in parts of about `rows` rows. Only the last part has the final `head`.

        Merge them in this order, and none after a lost part: otherwise the lost rows are not requested again.
        """
        nothing = self._replace(
            head=self.base, clients=Rows(), tenants=Rows(), accounts=(), closed_by=()
        )
        *pieces, last = self.clients.split(rows)
        for piece in pieces:
            yield nothing._replace(clients=piece)
        small = []
        for account in self.accounts:
            for part in account.split(rows):
                if len(part.clients.names) + len(part.marks.names) < rows // 2:
                    small.append(part)
                else:
                    yield nothing._replace(accounts=(part,))
        yield self._replace(clients=last, accounts=tuple(small))


class ReplicaAccountDigest(NamedTuple):
    """The versions of a replica account that a router has."""

    head: float
    accounts: dict[str, float]
    closed_by: frozenset[str]


@dataclass(slots=True)
class ReplicaAccount:
    """What all routers know of one incarnation of a replica."""

    clients: MergeTable = field(default_factory=lambda: MergeTable(totals=3, state=4))
    tenants: MergeTable = field(default_factory=lambda: MergeTable(totals=0, state=2))
    head: float = 0.0
    """The replica's sequence number up to which its rows are complete."""
    accounts: dict[str, RouterAccount] = field(default_factory=dict)
    closed_by: set[str] = field(default_factory=set)
    """Routers that send no new requests there and have no open request there."""
    changes: int = 0
    """Number of changes, by which callers notice that a computed result is out of date."""

    def observe(self, *, since: float, sequence: float, rows: Iterable[ReplicaRow]) -> list[str]:
        """Take a report of all changes after `since`; returns the clients with changed rows."""
        changed = []
        for row in rows:
            totals = row.service, row.normalised, row.requests
            state = row.deficit, row.seed, row.waiting, row.running
            if self.clients.put(row.client, (sequence, *totals, *state)):
                changed.append(row.client)
                tenant = tenant_of(row.client)
                self.tenants.put(tenant, (sequence, row.tenant_deficit, row.tenant_seed))
        self._advance(since, sequence)
        self.changes += bool(changed)
        return changed

    def row(self, client: str) -> ReplicaRow:
        """The row of a client as the replica reported it; zeros without one."""
        cells = self.clients.get(client)
        tenant = self.tenants.get(tenant_of(client))
        if cells is None or tenant is None:
            return ReplicaRow(client)
        deficits = tenant[TENANT_DEFICIT], tenant[TENANT_SEED]
        return ReplicaRow._make((client, *cells[1:], *deficits))

    def account(self, router: str) -> RouterAccount:
        """The account of one router; a new one if it has none."""
        account = self.accounts.get(router)
        if account is None:
            account = self.accounts[router] = RouterAccount()
        return account

    def served(self, client: str) -> float:
        """The service of `client` here, as the ledger counts it: max(reported, Σ received by routers)."""
        received = 0.0
        for account in self.accounts.values():
            received += account.clients.cell(client, SERVICE)
        return max(self.clients.cell(client, SERVICE), received)

    def mark(self, router: str) -> None:
        """The replica drains: `router` sends no new requests. Only the first call has an effect.

        Final deficits start from the rows of this moment. Later deficits are useless: clients leave and lose their
        credit, and a client that still waits gets all refills.
        """
        account = self.account(router)
        if account.marks:
            return
        account.head += 1
        self.changes += 1
        account.marks.put("", (account.head, 0, 0, 0, 0))  # a mark, even without a reported client
        for client in self.clients:
            row = self.clients[client]
            state = (row[SERVICE], row[DEFICIT], row[SEED], float(row[WAITING] > 0))
            account.marks.put(client, (account.head, *state))
        for tenant in self.tenants:
            row = self.tenants[tenant]
            account.tenant_marks.put(tenant, (account.head, *row[1:]))

    def close(self, router: str) -> None:
        """`router` never uses this incarnation again. A replica that returns must start as a new incarnation."""
        self.changes += router not in self.closed_by
        self.closed_by.add(router)

    def seed(self, client: str) -> float | None:
        """The seed of a client: as reported, otherwise as a router promised it. None: no router sent the client here.

        If routers promised different seeds, the larger debt counts until the replica reports the seed that it used.
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
        """The seed of a tenant, in the same way."""
        if tenant in self.tenants:
            return self.tenants.cell(tenant, TENANT_SEED)
        promised = (
            account.tenants.cell(tenant, TENANT_PROMISED)
            for account in self.accounts.values()
            if tenant in account.tenants
        )
        return min(promised, default=None)

    def charged_seed(self, client: str, *, unpromised: bool) -> float:
        """The part of a client's seed that came out of a carried balance: all of it, or 0 for a baseline (R8).

        `unpromised`: whether seeds count that no known router promised.
        """
        seed = self.seed(client) or 0.0
        return seed if unpromised or self.is_promised(client) else 0.0

    def charged_tenant_seed(self, tenant: str, *, unpromised: bool) -> float:
        """The seed that counts for a tenant here, weighted tokens; `unpromised` as in `charged_seed`."""
        seed = self.tenant_seed(tenant) or 0.0
        return seed if unpromised or self.is_promised_to_tenant(tenant) else 0.0

    def is_promised(self, client: str) -> bool:
        """Whether a known router promised the client a seed here."""
        return any(account.clients.cell(client, PROMISED) for account in self.accounts.values())

    def is_promised_to_tenant(self, tenant: str) -> bool:
        """Whether a known router promised the tenant a seed here."""
        return any(
            account.tenants.cell(tenant, TENANT_PROMISED) for account in self.accounts.values()
        )

    def names(self) -> Iterator[str]:
        """Every client in a row of the replica or of a router, once."""
        seen = set(self.clients)
        yield from self.clients
        for account in self.accounts.values():
            for name in account.clients:
                if name not in seen:
                    seen.add(name)
                    yield name

    def digest(self) -> ReplicaAccountDigest:
        """The versions that this copy has."""
        heads = {router: account.head for router, account in self.accounts.items()}
        return ReplicaAccountDigest(self.head, heads, frozenset(self.closed_by))

    def delta(self, incarnation: str, has: ReplicaAccountDigest) -> ReplicaAccountDelta | None:
        """The rows that a router with `has` lacks; None if it lacks nothing."""
        accounts = tuple(
            account.delta(router, base)
            for router, account in self.accounts.items()
            if account.head > (base := has.accounts.get(router, 0.0))
        )
        closed = tuple(sorted(self.closed_by - has.closed_by))
        clients = self.clients.since(has.head)
        tenants = self.tenants.since(has.head)
        if not (accounts or closed or clients.names or tenants.names or self.head > has.head):
            return None
        return ReplicaAccountDelta(
            incarnation, has.head, self.head, clients, tenants, accounts, closed
        )

    def merge(self, delta: ReplicaAccountDelta) -> list[str]:
        """Merge another router's delta; returns the clients with changed rows."""
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
        if self.head >= base:  # otherwise changes in between are missing, and are requested again
            self.head = max(self.head, head)
