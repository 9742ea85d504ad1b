"""Standing: what clients and tenants still owe the others, and what a new replica starts them from (R5, R6).

Place in the flow: ledger + live incarnations → **standing** → seeds in client keys, lead in metrics. Nothing here
changes the ledger but `promise`.

What a member carries is Σ seeds of all incarnations − Σ final deficits of the departed ones: debts that no live
replica holds any more, credit that none grants any more. A replica that meets a client for the first time takes
over what it carries, up to the range that deficits have anyway.

The surprising thing: service totals do not occur. A deficit, its seed and the service in between tell the same
(W = seed + K·Q − q), and K, the quanta a replica gave out, is the same for all who are backlogged. docs/design/0003
proves the bound.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import nan

from evenkeel_fairshare.ledger.closing import CarryRules
from evenkeel_fairshare.ledger.ledger import Ledger
from evenkeel_fairshare.ledger.page import (
    DEFICIT,
    PROMISED,
    TENANT_DEFICIT,
    TENANT_PROMISED,
    Page,
    tenant_of,
)


@dataclass(frozen=True, slots=True)
class Seed:
    """Where a client and its tenant start at an incarnation that never saw them, weighted tokens."""

    client: float
    tenant: float


def carried(ledger: Ledger, client: str, live: Collection[str]) -> float:
    """What a client carries: positive is debt. Weighted tokens."""
    total = ledger.book.client(client).carried
    for incarnation, page in ledger.open_pages():
        if incarnation in live:
            total += page.charged_seed(client, unpromised=ledger.knows_seeds_of(incarnation))
        else:
            total += ledger.closing(incarnation).clients.get(client, 0.0)
    return total


def carried_by_tenant(ledger: Ledger, tenant: str, live: Collection[str]) -> float:
    """What a tenant carries: positive is debt. Weighted tokens."""
    total = ledger.book.tenant(tenant).carried
    for incarnation, page in ledger.open_pages():
        if incarnation in live:
            total += page.charged_tenant_seed(tenant, unpromised=ledger.knows_seeds_of(incarnation))
        else:
            total += ledger.closing(incarnation).tenants.get(tenant, 0.0)
    return total


def standing(ledger: Ledger, client: str, live: Collection[str]) -> float:
    """How far a client is ahead of the level of its tenant's clients: what it carries and what replicas hold.

    Over its weight. Between two clients of a tenant that are backlogged on all live replicas, differences of
    standing are differences of service (docs/design/0003, lemma 2).
    """
    held = sum(
        page.clients.cell(client, DEFICIT)
        for incarnation, page in ledger.open_pages()
        if incarnation in live
    )
    return (carried(ledger, client, live) - held) / ledger.weights.client(client)


def standing_of_tenant(ledger: Ledger, tenant: str, live: Collection[str]) -> float:
    """How far a tenant is ahead of the level of all tenants. Over its weight."""
    held = sum(
        page.tenants.cell(tenant, TENANT_DEFICIT)
        for incarnation, page in ledger.open_pages()
        if incarnation in live
    )
    return (carried_by_tenant(ledger, tenant, live) - held) / ledger.weights.tenant(tenant)


def promise(
    ledger: Ledger,
    client: str,
    incarnation: str,
    *,
    live: Collection[str],
    joiners: Collection[str] = (),
) -> Seed:
    """The seed of a client at an incarnation (R5); noted as promised, so that asking again changes nothing.

    `joiners`: incarnations that joined together; what is carried is spread over those that did not meet the
    client yet. Whole tokens, as the client key carries them.
    """
    page = ledger.pages.get(incarnation) or Page()
    tenant = tenant_of(client)
    seed = page.seed(client)
    if seed is None:
        seed = _share(
            carried(ledger, client, live),
            ledger.rules,
            ledger.weights.client(client),
            1 + sum(other.seed(client) is None for other in _others(ledger, incarnation, joiners)),
        )
    tenant_seed = page.tenant_seed(tenant)
    if tenant_seed is None:
        tenant_seed = _share(
            carried_by_tenant(ledger, tenant, live),
            ledger.rules,
            ledger.weights.tenant(tenant),
            1
            + sum(
                other.tenant_seed(tenant) is None for other in _others(ledger, incarnation, joiners)
            ),
        )
    if not _noted(page, ledger.router, client, seed=seed, tenant_seed=tenant_seed):
        ledger.promised(incarnation, client, seed=seed, tenant_seed=tenant_seed)
    return Seed(seed, tenant_seed)


def _noted(page: Page, router: str, client: str, *, seed: float, tenant_seed: float) -> bool:
    account = page.accounts.get(router)
    if account is None or client not in account.clients:
        return False
    return (
        account.clients.cell(client, PROMISED) == seed
        and account.tenants.cell(tenant_of(client), TENANT_PROMISED, nan) == tenant_seed
    )


def _share(carried: float, rules: CarryRules, weight: float, joiners: int) -> float:
    # Towards zero, so that a seed never leaves the range.
    within = min(max(carried / joiners, -rules.max_credit(weight)), rules.max_debt(weight))
    return float(-int(within))


def _others(ledger: Ledger, incarnation: str, joiners: Collection[str]) -> list[Page]:
    return [ledger.pages.get(joiner) or Page() for joiner in set(joiners) if joiner != incarnation]
