"""Figures: what the ledger says about the whole fleet, for metrics, `evenkeel top` and scaling (design §7).

Place in the flow: ledger → **figures** → metrics. Call `observe` once per round of reports.

The surprising thing: what was served is kept up to date by looking only at clients that changed, one at a time if
the caller likes, since adding up a hundred thousand clients over 64 replicas takes seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from evenkeel_fairshare.ledger.ledger import Ledger
from evenkeel_fairshare.ledger.levels import SERVICE_SCOPE
from evenkeel_fairshare.ledger.page import (
    NORMALISED,
    SERVICE,
    TENANT_NORMALISED,
    WAITING,
    tenant_of,
)


class Served(NamedTuple):
    """What one client was given by all incarnations that ever were, as far as it was looked at."""

    service: float = 0.0
    """Weighted tokens, before any weight."""
    normalised: float = 0.0
    """Over the client's weight when it was charged."""
    tenant_normalised: float = 0.0
    """Over the tenant's weight when it was charged."""


class Figures:
    """Figures of one router's ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._of_tenant: defaultdict[str, float] = defaultdict(float)
        """Service over the tenant's weight, of clients that were not aged out."""
        self._of_client: dict[str, Served] = {}
        """What is in `_of_tenant` of each client."""
        self._tenants_busy: set[str] = set()
        ledger.stale.update(ledger.clients())

    def refresh(self) -> Iterator[tuple[str, float]]:
        """Look at every client that changed: its name, and how much more service it has now.

        A step for each, so that a caller may do something else in between. Service falls where a client was aged out.
        """
        ledger = self._ledger
        stale, ledger.stale = ledger.stale, set()
        try:
            while stale:
                client = stale.pop()
                yield client, self._look(client)
        finally:
            ledger.stale |= stale  # what nobody wanted to know now

    def _look(self, client: str) -> float:
        before = self._of_client.get(client, _NOTHING)
        columns = (SERVICE, NORMALISED, TENANT_NORMALISED)
        now = Served(*self._ledger.served_figures(client, columns))
        self._of_tenant[tenant_of(client)] += now.tenant_normalised - before.tenant_normalised
        if now.service:
            self._of_client[client] = now
        else:
            self._of_client.pop(client, None)
        return now.service - before.service

    def observe(self, backlogged: Collection[str]) -> None:
        """Raise the levels. `backlogged`: clients, as the caller defines it, for example `waiting`."""
        for _ in self.refresh():
            pass
        by_tenant: dict[str, list[str]] = {tenant: [] for tenant in self._tenants_busy}
        for client in backlogged:
            by_tenant.setdefault(tenant_of(client), []).append(client)
        levels = self._ledger.levels
        for tenant, clients in by_tenant.items():
            levels.observe(tenant, clients, self.served)
        self._tenants_busy = {tenant for tenant, clients in by_tenant.items() if clients}
        levels.observe(SERVICE_SCOPE, sorted(self._tenants_busy), self.served_tenant)

    def waiting(self, live: Collection[str]) -> set[str]:
        """Clients with a queued request at some live replica."""
        return {
            client
            for incarnation, page in self._ledger.open_pages()
            if incarnation in live
            for client in page.clients.positive(WAITING)
        }

    def clients(self) -> Mapping[str, Served]:
        """Everybody who was given anything and was not aged out, as of the last look."""
        return self._of_client

    def served(self, client: str) -> float:
        """What a client was given, over its weight when it was charged; as of the last look."""
        return self._of_client.get(client, _NOTHING).normalised

    def served_tenant(self, tenant: str) -> float:
        """What a tenant's clients were given, over the tenant's weight when they were charged."""
        aged_out = self._ledger.book.tenant(tenant).totals.tenant_normalised
        return aged_out + self._of_tenant[tenant]

    def lead(self, client: str) -> float:
        """How far a client is ahead of the least served backlogged client of its tenant."""
        return self._ledger.levels.lead(tenant_of(client), client, self.served)

    def lead_of_tenant(self, tenant: str) -> float:
        """How far a tenant is ahead of the least served backlogged tenant."""
        return self._ledger.levels.lead(SERVICE_SCOPE, tenant, self.served_tenant)


_NOTHING: Final = Served()
