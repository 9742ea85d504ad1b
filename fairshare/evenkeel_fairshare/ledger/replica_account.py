"""The account of one replica incarnation, from its reports and from every router (design R3).

The replica's own rows are the source of truth while it lives. The router accounts state what each router received beyond what was
reported: together a lower bound of the service, the floor, which counts where it is more than the last report. Rows that a report covers
are dropped (`drop_covered`). The account does not record whether the replica lives. Each router adds itself to `closed_by`
when it never uses the incarnation again.

A replica reports the service of clients beyond its bound in one row of their tenant, the rest row `namespace/tenant/*`; their own
rows have no totals. Routers know these clients by name. Both are the same service, so it counts once: such a client counts what
routers received for it, and the rest row what is reported beyond all of these (`served`). The sum over the tenant is the
maximum of both sums.

A replica gives back the row of an idle client: a mark, the row `namespace/tenant/client*`, comes before the rest row that has
its totals from then on. What routers received of the client until then is in the rest row too, and is forgotten (`_give_back`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from evenkeel_fairshare.ledger.account_deltas import (
    ReplicaAccountDelta,
    ReplicaAccountDigest,
    RouterAccountDelta,
)
from evenkeel_fairshare.ledger.counted_account import NOTHING, CountedAccount, add
from evenkeel_fairshare.ledger.merge_table import MergeTable, Rows
from evenkeel_fairshare.ledger.replica_rows import (
    BASE,
    DEFICIT,
    NO_NUMBERS,
    PROMISED,
    REST,
    RUNNING,
    SEED,
    SERVICE,
    TENANT_DEFICIT,
    TENANT_PROMISED,
    TENANT_SEED,
    WAITING,
    Grown,
    ReplicaRow,
    is_mark,
    tenant_of,
)

ROUNDING: Final = 1e-9
"""A report covers what routers received if at most this part of it is missing: sums of floats are inexact."""


@dataclass(slots=True)
class ReplicaAccount(CountedAccount):
    """What all routers know of one incarnation of a replica."""

    tenants: MergeTable = field(default_factory=lambda: MergeTable(columns=2))
    head: float = 0.0
    """The replica's sequence number up to which its rows are complete."""
    closed_by: set[str] = field(default_factory=set)
    """Routers that send no new requests there and have no open request there."""
    service: float = 0.0
    """Reported service of all clients together, weighted tokens."""
    waiting: dict[str, float] = field(default_factory=dict)
    """Client → requests that wait by the last report. No zeros."""
    running: dict[str, float] = field(default_factory=dict)
    """Client → requests that run by the last report. No zeros."""
    _read_to: float | None = None
    """Sequence number to which all rows of the replica are asked for anew: then none is taken from an older copy. None: they are here."""

    def observe(self, *, since: float, sequence: float, rows: Iterable[ReplicaRow]) -> Grown:
        """Take a report of all changes after `since`; returns the clients with changed rows."""
        grown: Grown = {}
        is_empty = True
        for row in rows:
            client, is_empty = row.client, False
            if is_mark(client):
                if self.clients.put(client, (sequence, *NO_NUMBERS)):
                    self._give_back(client.removesuffix(REST), sequence, grown)
                continue
            if self._unread:
                self._is_read(client, grown)
            totals = row.service, row.normalised, row.requests
            state = row.deficit, row.seed, row.waiting, row.running
            reported = self.clients.cell(client, SERVICE)
            had_totals = reported > 0 or self._has_totals(client)
            if self.clients.put(client, (sequence, *totals, *state)):
                tenant = tenant_of(client)
                self.tenants.put(tenant, (sequence, row.tenant_deficit, row.tenant_seed))
                add(grown, client, self._took(client, reported))
                if not had_totals and self._has_totals(client):
                    self._named(client, tenant, grown)
        self._advance(since, sequence)
        no_more = is_empty and since == sequence
        if (
            self._read_to is not None
            and self.head >= since
            and (no_more or 0 < self.head >= self._read_to)
        ):
            self._all_read(grown)
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
        floor = self._floor(client)
        if floor <= reported and floor <= now and not self._unnamed:
            return now - reported
        return self._counted(client, now, floor) - self._counted(client, reported, floor)

    def row(self, client: str) -> ReplicaRow:
        """The row of a client as the replica reported it; zeros without one."""
        cells = self.clients.get(client)
        tenant = self.tenants.get(tenant_of(client))
        if cells is None or tenant is None:
            return ReplicaRow(client)
        deficits = tenant[TENANT_DEFICIT], tenant[TENANT_SEED]
        return ReplicaRow._make((client, *cells[1:], *deficits))

    def _named(self, client: str, tenant: str, grown: Grown) -> None:
        """A row has its first totals: the service of the tenant's rest row may change with it."""
        if not client.endswith("/*"):
            if self._unnamed:
                self._add_unnamed(client, -self._floor(client), grown)
            return
        before = self.served(client)
        unnamed = {
            name
            for account in self.accounts.values()
            for name in account.clients
            if tenant_of(name) == tenant and not self._has_totals(name)
        }
        unnamed.update(
            name
            for name in self._unread
            if tenant_of(name) == tenant and not self._has_totals(name)
        )
        self._unnamed[tenant] = sum(map(self._floor, unnamed))
        add(grown, client, self.served(client) - before)

    def _give_back(self, client: str, version: float, grown: Grown) -> None:
        """The replica gave back the row of a client that was idle until `version`: its rest row has the service, of which routers received
        what they received until now."""
        before, reported = self.served(client), self.clients.cell(client, SERVICE)
        if not self._has_totals(client):
            self._add_unnamed(client, -self._floor(client), grown)
        self._unread.pop(client, None)
        for account in self.accounts.values():
            account.forget(client)
        if client in self.clients and self.clients.cell(client, 0) < version:
            self.clients.put(client, (version, *NO_NUMBERS))
            self._took(client, reported)
        add(grown, client, self.served(client) - before)

    def drop_covered(
        self, clients: Iterable[str], heads: Mapping[str, float], keeps: Callable[[str], bool]
    ) -> Grown:
        """Drop what routers received for those of `clients` that have had no change since `heads`, by router, where the last report has
        it, too; without changing any service but by what is lost in rounding. `keeps`: whether the rows of a client must stay."""
        unchanged = self._unchanged(heads)
        covered = {
            client: floor
            for client in clients
            if client in self.clients
            and (floor := self._floor(client))
            <= (1 + ROUNDING) * self.clients.cell(client, SERVICE)
            and unchanged(client)
            and not keeps(client)
        }
        return self._drop(covered)

    def forget_idle(self, until: ReplicaAccountDigest, keeps: Callable[[str], bool]) -> Grown:
        """Remove what did not change since `until` and is nothing any more: rows that were given back, with their marks, and what
        routers received, where the last report or a rest row has it. Returns the clients whose service changed with it."""
        rows = self.clients.until(min(until.head, self.head))
        self.clients.forget([name for name in rows if not any(self.clients[name][1:])])
        idle = dict.fromkeys(
            name
            for router, account in self.accounts.items()
            for name in account.clients.until(until.accounts.get(router, 0.0))
        )
        grown = self.drop_covered(idle, until.accounts, keeps)
        unchanged = self._unchanged(until.accounts)
        alone = [name for name in idle if self._is_in_rest_alone(name) and unchanged(name)]
        for name, more in self._drop({name: self._floor(name) for name in alone}).items():
            add(grown, name, more)
        return grown

    def _drop(self, floors: Mapping[str, float]) -> Grown:
        """Drop the rows of all routers of clients, but for promises. `floors`: of each client."""
        reported = {client: self.clients.cell(client, SERVICE) for client in floors}
        for account in self.accounts.values():
            account.drop(reported)
        grown: Grown = {}
        for client, floor in floors.items():
            if floor > reported[client]:
                self._note_floor(client, floor, self._floor(client), grown)
        self.changes += bool(grown)
        return grown

    def _unchanged(self, heads: Mapping[str, float]) -> Callable[[str], bool]:
        """Whether no router's row of a client has changed since `heads`."""
        known = [
            (account.clients.cell, min(heads.get(router, 0.0), account.head))
            for router, account in self.accounts.items()
        ]
        return lambda client: all(cell(client, 0) <= head for cell, head in known)

    def _is_in_rest_alone(self, client: str) -> bool:
        """Whether nothing is known of a client but what routers received for it, all of which the rest row of its tenant has."""
        nothing_promised = not any(
            account.clients.cell(client, PROMISED) for account in self.accounts.values()
        )
        return nothing_promised and not self.knows(client) and self.is_in_rest(client)

    def reread(self) -> Grown:
        """All rows of the replica are asked for anew: those that it has no longer go, once the others are here. Marks may be missing that
        no one has any more. Returns the clients whose service changed with it."""
        names = [name for name in self.clients if not is_mark(name)]
        before = {name: self.served(name) for name in names}
        cell = self.clients.cell
        self._unread |= {
            name: (cell(name, SERVICE), cell(name, SEED))
            for name in names
            if not name.endswith(REST)
        }
        self._read_to = max(self._read_to or 0.0, self.head)
        self.clients, self.head, self.service = MergeTable(columns=7), 0.0, 0.0
        for counts in (self.waiting, self.running, self._unnamed):
            counts.clear()
        self.changes += 1
        return {name: self.served(name) - served for name, served in before.items()}

    def _is_read(self, client: str, grown: Grown) -> None:
        """The row of a client is here, or it has none any more."""
        if client in self._unread:
            before = self._floor(client)
            del self._unread[client]
            self._note_floor(client, before, self._floor(client), grown)

    def _all_read(self, grown: Grown) -> None:
        """All rows are here that were asked for anew."""
        for client in list(self._unread):
            grown.setdefault(client, 0.0)
            self._is_read(client, grown)
        self.clients.complete_to(self.head)
        self._read_to = None

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
        if client in self._unread:
            return self._unread[client][1]
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

    def named_tenants(self) -> set[str]:
        """Every tenant in a row of the replica or of a router."""
        return {*self.tenants}.union(*(account.tenants for account in self.accounts.values()))

    def names(self) -> Iterator[str]:
        """Every client in a row of the replica or of a router, once."""
        seen = dict.fromkeys(name for name in self.clients if not is_mark(name))
        seen |= dict.fromkeys(self._unread)
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
        for name in rows.names if self._unread else ():
            self._is_read(name, grown)
        before = {name: cell(name, SERVICE) for name in rows.names}
        new = [name for name, served in before.items() if not (served or self._has_totals(name))]
        for name in dict.fromkeys(self.clients.merge(rows)):
            add(grown, name, self._took(name, before[name]))
        new = [name for name in new if self._has_totals(name)]
        # Rest rows last: their sums leave out the clients that have totals by now.
        for name in sorted(new, key=lambda name: name.endswith("/*")):
            self._named(name, tenant_of(name), grown)
        return grown

    def _merge_received(self, theirs: RouterAccountDelta, grown: Grown) -> None:
        account = self.account(theirs.router)
        pair = account.clients.pair
        before = {name: pair(name, BASE, SERVICE) or NOTHING for name in theirs.clients.names}
        for name in dict.fromkeys(account.merge(theirs)):
            grown.setdefault(name, 0.0)
            now = pair(name, BASE, SERVICE) or NOTHING
            if now != before.get(name, now):  # no mark of a drain
                others = self._statements(name, but=account)
                was = self._floor_of(name, [*others, before[name]])
                self._note_floor(name, was, self._floor_of(name, [*others, now]), grown)

    def _advance(self, base: float, head: float) -> None:
        if self.head >= base:  # otherwise changes in between are missing, and are requested again
            self.head = max(self.head, head)
