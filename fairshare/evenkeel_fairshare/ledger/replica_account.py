"""The account of one replica incarnation, from its reports and from every router (design R3).

The replica's own rows are the source of truth while it lives. The router accounts contain what each router received: a lower bound
of the service after the last report. The account does not record whether the replica lives. Each router adds itself to `closed_by`
when it never uses the incarnation again.

A replica reports the service of clients beyond its bound in one row of their tenant, the rest row `namespace/tenant/*`; their own
rows have no totals. Routers know these clients by name. Both are the same service, so it counts once: such a client counts what
routers received for it, and the rest row what is reported beyond all of these (`served`). The sum over the tenant is the
maximum of both sums.

A replica gives back the row of an idle client: a mark, the row `namespace/tenant/client*`, comes before the rest row that has
its totals from then on. What routers received of the client until then is in the rest row too, and is forgotten (`_give_back`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from evenkeel_fairshare.ledger.account_deltas import (
    ReplicaAccountDelta,
    ReplicaAccountDigest,
    RouterAccountDelta,
)
from evenkeel_fairshare.ledger.merge_table import MergeTable, Rows
from evenkeel_fairshare.ledger.router_account import RouterAccount


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


_NO_NUMBERS: Final = (0.0,) * (len(ReplicaRow._fields) - 3)
"""A replica's row of a client without anything."""

Grown = dict[str, float]
"""Client with a changed row → what its service (`ReplicaAccount.served`) grew by, weighted tokens. It may be 0, or negative."""

REST: Final = "*"
"""Last part of the name of a tenant's rest row. Names in identities are escaped, and no client has it."""


def rest_of(tenant: str) -> str:
    """The name of a tenant's rest row."""
    return f"{tenant}/{REST}"


def is_mark(name: str) -> bool:
    """Whether a row says that the replica gave back the row of a client."""
    return name.endswith(REST) and not name.endswith(f"/{REST}")


def tenant_of(client: str) -> str:
    """`namespace/tenant` of `namespace/tenant/client`."""
    return client.rpartition("/")[0]


@dataclass(slots=True)
class ReplicaAccount:
    """What all routers know of one incarnation of a replica."""

    clients: MergeTable = field(default_factory=lambda: MergeTable(totals=0, state=7))
    """The replica's rows. Only the replica writes them: of two, the later one counts, totals included."""
    tenants: MergeTable = field(default_factory=lambda: MergeTable(totals=0, state=2))
    head: float = 0.0
    """The replica's sequence number up to which its rows are complete."""
    accounts: dict[str, RouterAccount] = field(default_factory=dict)
    closed_by: set[str] = field(default_factory=set)
    """Routers that send no new requests there and have no open request there."""
    changes: int = 0
    """Number of changes, by which callers notice that a computed result is out of date."""
    service: float = 0.0
    """Reported service of all clients together, weighted tokens."""
    waiting: dict[str, float] = field(default_factory=dict)
    """Client → requests that wait by the last report. No zeros."""
    running: dict[str, float] = field(default_factory=dict)
    """Client → requests that run by the last report. No zeros."""
    _unnamed: dict[str, float] = field(default_factory=dict)
    """Tenant with a rest row → what routers received for its clients without a row of their own."""
    _is_reread: bool = False
    """Whether all rows of the replica are asked for anew: then none is taken from an older copy."""

    def observe(self, *, since: float, sequence: float, rows: Iterable[ReplicaRow]) -> Grown:
        """Take a report of all changes after `since`; returns the clients with changed rows."""
        grown: Grown = {}
        for row in rows:
            client = row.client
            if is_mark(client):
                if self.clients.put(client, (sequence, *_NO_NUMBERS)):
                    self._give_back(client.removesuffix(REST), sequence, grown)
                continue
            totals = row.service, row.normalised, row.requests
            state = row.deficit, row.seed, row.waiting, row.running
            reported = self.clients.cell(client, SERVICE)
            had_totals = reported > 0 or self._has_totals(client)
            if self.clients.put(client, (sequence, *totals, *state)):
                tenant = tenant_of(client)
                self.tenants.put(tenant, (sequence, row.tenant_deficit, row.tenant_seed))
                _add(grown, client, self._took(client, reported))
                if not had_totals and self._has_totals(client):
                    self._named(client, tenant, grown)
        self._advance(since, sequence)
        if self._is_reread and not since:
            self.clients.complete_to(self.head)
            self._is_reread = False
        self.changes += bool(grown)
        return grown

    def _took(self, client: str, reported: float) -> float:
        """Note a changed row of the replica; returns what the client's service grew by. `reported`: its service in the row before."""
        cell = self.clients.cell
        for column, counts in ((WAITING, self.waiting), (RUNNING, self.running)):
            if counts:
                counts.pop(client, None)  # the newest comes last, as in the table
            if (count := cell(client, column)) > 0:
                counts[client] = count
        now = cell(client, SERVICE)
        if now == reported:
            return 0.0
        self.service += now - reported
        received = self._received(client)
        if received <= reported and not self._unnamed:
            return now - reported
        return self._counted(client, now, received) - self._counted(client, reported, received)

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
        """The service of `client` here, as the ledger counts it: max(reported, Σ received by routers).

        Of a rest row it is what was reported beyond Σ received for the tenant's clients without a row.
        """
        return self._counted(client, self.clients.cell(client, SERVICE), self._received(client))

    def _counted(self, client: str, reported: float, received: float) -> float:
        if self._unnamed and client.endswith("/*"):
            reported = max(0.0, reported - self._unnamed.get(tenant_of(client), 0.0))
        return max(reported, received)

    def received(self, router: str, client: str, service: float) -> Grown:
        """A router received `service` more for a client. Returns the clients whose service changed with it."""
        own = self.accounts.get(router) or self.account(router)
        reported, received = self.clients.cell(client, SERVICE), self._received(client)
        own.head += 1
        self.changes += 1
        own.clients.add(client, own.head, SERVICE, service)
        grown = {client: max(reported, received + service) - max(reported, received)}
        if self._unnamed and not self._has_totals(client):
            self._add_unnamed(client, service, grown)
        return grown

    def is_in_rest(self, client: str) -> bool:
        """Whether the replica reports the client's service in the rest row of its tenant."""
        if not self._unnamed or self._has_totals(client):
            return False
        return tenant_of(client) in self._unnamed

    def beyond(self, client: str, reported: float) -> float:
        """The service of a client beyond `reported`, an earlier figure of its row. A rest row has that of its clients, too."""
        if self._unnamed:
            if self.is_in_rest(client):
                return 0.0
            if client.endswith("/*"):
                unnamed = self._unnamed.get(tenant_of(client), 0.0)
                return max(self.clients.cell(client, SERVICE), unnamed) - reported
        return self.served(client) - reported

    def _has_totals(self, client: str) -> bool:
        """Whether the replica reports service of a client by its name."""
        cell = self.clients.cell
        return cell(client, REQUESTS) > 0 or cell(client, SERVICE) > 0

    def _received(self, client: str) -> float:
        received = 0.0
        for account in self.accounts.values():
            received += account.clients.cell(client, SERVICE)
        return received

    def _add_unnamed(self, client: str, service: float, grown: Grown) -> None:
        """Routers received `service` more for a client without a row of its own: the rest row of its tenant counts less."""
        tenant = tenant_of(client)
        if tenant in self._unnamed:
            rest = rest_of(tenant)
            before = self.served(rest)
            self._unnamed[tenant] += service
            _add(grown, rest, self.served(rest) - before)

    def _named(self, client: str, tenant: str, grown: Grown) -> None:
        """A row has its first totals: the service of the tenant's rest row may change with it."""
        if not client.endswith("/*"):
            if self._unnamed:
                self._add_unnamed(client, -self._received(client), grown)
            return
        before = self.served(client)
        unnamed = {
            name
            for account in self.accounts.values()
            for name in account.clients
            if tenant_of(name) == tenant and not self._has_totals(name)
        }
        self._unnamed[tenant] = sum(map(self._received, unnamed))
        _add(grown, client, self.served(client) - before)

    def _give_back(self, client: str, version: float, grown: Grown) -> None:
        """The replica gave back the row of a client that was idle until `version`: its rest row has the service, of which routers received
        what they received until now."""
        before, reported = self.served(client), self.clients.cell(client, SERVICE)
        if not self._has_totals(client):
            self._add_unnamed(client, -self._received(client), grown)
        for account in self.accounts.values():
            account.clear(client, SERVICE)
        if client in self.clients and self.clients.cell(client, 0) < version:
            self.clients.put(client, (version, *_NO_NUMBERS))
            self._took(client, reported)
        _add(grown, client, self.served(client) - before)

    def forget_idle(self, until: ReplicaAccountDigest) -> Grown:
        """Remove what did not change since `until` and is nothing any more: rows that were given back, with their marks, and what
        routers received for clients without a row, which the rest rows have. Returns the clients whose service changed with it."""
        grown: Grown = {}
        rows = self.clients.until(min(until.head, self.head))
        self.clients.forget([name for name in rows if not any(self.clients[name][1:])])
        for router, account in self.accounts.items():
            head = min(until.accounts.get(router, 0.0), account.head)
            idle = [name for name in account.clients.until(head) if self._is_in_rest_alone(name)]
            for name in idle:
                before = self.served(name)
                self._add_unnamed(name, -account.clients.cell(name, SERVICE), grown)
                account.clear(name, SERVICE)
                _add(grown, name, self.served(name) - before)
            account.clients.forget(idle)
        self.changes += bool(grown)
        return grown

    def _is_in_rest_alone(self, client: str) -> bool:
        """Whether nothing is known of a client but what routers received for it, all of which the rest row of its tenant has."""
        nothing_promised = not any(
            account.clients.cell(client, PROMISED) for account in self.accounts.values()
        )
        return nothing_promised and client not in self.clients and self.is_in_rest(client)

    def reread(self) -> Grown:
        """Forget all rows of the replica: they are asked for anew. Marks may be missing that no one has any more. Returns the clients
        whose service changed with it."""
        names = [name for name in self.clients if not is_mark(name)]
        before = {name: self.served(name) for name in names}
        self.clients, self.head, self.service = MergeTable(totals=0, state=7), 0.0, 0.0
        for counts in (self.waiting, self.running, self._unnamed):
            counts.clear()
        self.changes += 1
        self._is_reread = True
        return {name: self.served(name) - served for name, served in before.items()}

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

    def is_promised(self, name: str) -> bool:
        """Whether a known router promised a client or tenant a seed here."""
        return any(
            account.clients.cell(name, PROMISED) or account.tenants.cell(name, TENANT_PROMISED)
            for account in self.accounts.values()
        )

    def named_tenants(self) -> set[str]:
        """Every tenant in a row of the replica or of a router."""
        return {*self.tenants}.union(*(account.tenants for account in self.accounts.values()))

    def names(self) -> Iterator[str]:
        """Every client in a row of the replica or of a router, once."""
        seen = dict.fromkeys(name for name in self.clients if not is_mark(name))
        for account in self.accounts.values():
            seen |= dict.fromkeys(account.clients)
        yield from seen

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

    def merge(self, delta: ReplicaAccountDelta) -> Grown:
        """Merge another router's delta; returns the clients with changed rows."""
        grown = self._merge_reported(delta.clients)
        self.tenants.merge(delta.tenants)
        self._advance(delta.base, delta.head)
        for theirs in delta.accounts:
            self._merge_received(theirs, grown)
        closed_before = len(self.closed_by)
        self.closed_by.update(delta.closed_by)
        self.changes += bool(grown) or len(self.closed_by) > closed_before
        return grown

    def _merge_reported(self, rows: Rows) -> Grown:
        cell, grown = self.clients.cell, Grown()
        # Marks first: what is here of these clients is older.
        for mark in self.clients.merge(rows.only(is_mark)):
            self._give_back(mark.removesuffix(REST), cell(mark, 0), grown)
        before = {name: cell(name, SERVICE) for name in rows.names}
        new = [name for name, served in before.items() if not (served or self._has_totals(name))]
        for name in dict.fromkeys(self.clients.merge(rows)):
            _add(grown, name, self._took(name, before[name]))
        new = [name for name in new if self._has_totals(name)]
        # Rest rows last: their sums leave out the clients that have totals by now.
        for name in sorted(new, key=lambda name: name.endswith("/*")):
            self._named(name, tenant_of(name), grown)
        return grown

    def _merge_received(self, theirs: RouterAccountDelta, grown: Grown) -> None:
        account = self.account(theirs.router)
        cell = account.clients.cell
        before = {name: cell(name, SERVICE) for name in theirs.clients.names}
        for name in dict.fromkeys(account.merge(theirs)):
            if name not in before:  # a mark
                grown.setdefault(name, 0.0)
                continue
            more = cell(name, SERVICE) - before[name]
            if more:
                reported, received = self.clients.cell(name, SERVICE), self._received(name)
                _add(grown, name, max(reported, received) - max(reported, received - more))
                if self._unnamed and not self._has_totals(name):
                    self._add_unnamed(name, more, grown)
            else:
                grown.setdefault(name, 0.0)

    def _advance(self, base: float, head: float) -> None:
        if self.head >= base:  # otherwise changes in between are missing, and are requested again
            self.head = max(self.head, head)


def _add(grown: Grown, client: str, more: float) -> None:
    grown[client] = grown.get(client, 0.0) + more
