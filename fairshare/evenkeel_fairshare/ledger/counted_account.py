"""What the account of a replica incarnation counts of each client: what was reported, or the floor of what routers received (design R3).

A client beyond the replica's bound has no totals of its own: they are in the rest row of its tenant. It counts its floor, and the rest row
what is reported beyond the floors of all of these, so that their service counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from evenkeel_fairshare.ledger.merge_table import MergeTable
from evenkeel_fairshare.ledger.replica_rows import (
    BASE,
    PROMISED,
    REQUESTS,
    SERVICE,
    TENANT_PROMISED,
    Grown,
    rest_of,
    tenant_of,
)
from evenkeel_fairshare.ledger.router_account import RouterAccount, Statement, floor_of

NOTHING: Final = (0.0, 0.0)


@dataclass(slots=True)
class CountedAccount:
    """The part of the account of an incarnation that counts service."""

    clients: MergeTable = field(default_factory=lambda: MergeTable(columns=7))
    """The replica's rows. Only the replica writes them: of two, the later one counts, totals included."""
    accounts: dict[str, RouterAccount] = field(default_factory=dict)
    """Router → what it received."""
    changes: int = 0
    """Number of changes, by which callers notice that a computed result is out of date."""
    _unnamed: dict[str, float] = field(default_factory=dict)
    """Tenant with a rest row → the floors of its clients without a row of their own."""
    _unread: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Client whose row was asked for anew and is not here yet → its service and seed before. The service may be in a rest row now."""

    def account(self, router: str) -> RouterAccount:
        """The account of one router; a new one if it has none."""
        account = self.accounts.get(router)
        if account is None:
            account = self.accounts[router] = RouterAccount()
        return account

    def served(self, client: str) -> float:
        """The service of `client` here, as the ledger counts it: max(reported, floor of what routers received).

        Of a rest row it is what was reported beyond the floors of the tenant's clients without a row.
        """
        return self._counted(client, self.clients.cell(client, SERVICE), self._floor(client))

    def _counted(self, client: str, reported: float, floor: float) -> float:
        if self._unnamed and client.endswith("/*"):
            reported = max(0.0, reported - self._unnamed.get(tenant_of(client), 0.0))
        return max(reported, floor)

    def received(self, router: str, client: str, service: float) -> Grown:
        """A router received `service` more for a client. Returns the clients whose service changed with it."""
        own = self.accounts.get(router) or self.account(router)
        base, had = own.clients.pair(client, BASE, SERVICE) or NOTHING
        own.head += 1
        self.changes += 1
        own.clients.add(client, own.head, SERVICE, service)
        others = self._statements(client, but=own) if len(self.accounts) > 1 else ()
        before, floor = base + had, base + had + service
        if others or self._unread:
            before = self._floor_of(client, [*others, (base, had)])
            floor = self._floor_of(client, [*others, (base, had + service)])
        reported = self.clients.cell(client, SERVICE)
        grown = {client: floor - max(reported, before) if floor > reported else 0.0}
        if self._unnamed and not self._has_totals(client):
            self._add_unnamed(client, floor - before, grown)
        return grown

    def begins(self, router: str, client: str) -> None:
        """A router is about to send a request of a client, and has no other open here, and no row. What the replica has reported by now
        is the base of its row."""
        reported = self.clients.cell(client, SERVICE)
        if reported:
            self.account(router).begins(client, reported)

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

    def knows(self, client: str) -> bool:
        """Whether the replica has reported a row of a client, which it has by all that is known here."""
        return client in self.clients or client in self._unread

    def _floor(self, client: str) -> float:
        """The service that a client got here at least, by all that routers received."""
        return self._floor_of(client, self._statements(client))

    def _floor_of(self, client: str, statements: Sequence[Statement]) -> float:
        floor = floor_of(statements)
        return max(floor, self._unread.get(client, NOTHING)[0]) if self._unread else floor

    def _statements(self, client: str, but: RouterAccount | None = None) -> list[Statement]:
        found = []
        for account in self.accounts.values():
            if account is not but:
                statement = account.clients.pair(client, BASE, SERVICE)
                if statement is not None:
                    found.append(statement)
        return found

    def _note_floor(self, client: str, before: float, floor: float, grown: Grown) -> None:
        """The floor of a client has changed."""
        if floor == before:
            return
        reported = self.clients.cell(client, SERVICE)
        if more := max(reported, floor) - max(reported, before):
            add(grown, client, more)
        if self._unnamed and not self._has_totals(client):
            self._add_unnamed(client, floor - before, grown)

    def _add_unnamed(self, client: str, service: float, grown: Grown) -> None:
        """The floor of a client without a row of its own is higher by `service`: the rest row of its tenant counts less."""
        tenant = tenant_of(client)
        if tenant in self._unnamed:
            rest = rest_of(tenant)
            before = self.served(rest)
            self._unnamed[tenant] += service
            add(grown, rest, self.served(rest) - before)

    def is_promised(self, name: str) -> bool:
        """Whether a known router promised a client or tenant a seed here."""
        return any(
            account.clients.cell(name, PROMISED) or account.tenants.cell(name, TENANT_PROMISED)
            for account in self.accounts.values()
        )


def add(grown: Grown, client: str, more: float) -> None:
    grown[client] = grown.get(client, 0.0) + more
