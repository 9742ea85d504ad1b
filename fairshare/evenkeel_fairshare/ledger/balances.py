"""Carried balances of clients and tenants, and the seeds that new replicas get from them (R5, R6).

The carried balance of a member is Σ seeds of all incarnations − Σ final deficits of the ended ones: debt or credit that no live
replica has. The next replica that the client is new to takes the balance over, within the range of deficits. Only `promise` changes
the ledger.

Service totals are not needed: a deficit and its seed contain the service in between, and all backlogged clients of a replica get the
same quanta. docs/design/0003 proves the bound.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from math import nan

from evenkeel_fairshare.ledger.closing import CarryRules
from evenkeel_fairshare.ledger.ledger import Ledger
from evenkeel_fairshare.ledger.replica_account import ReplicaAccount
from evenkeel_fairshare.ledger.replica_rows import (
    DEFICIT,
    PROMISED,
    TENANT_DEFICIT,
    TENANT_PROMISED,
    tenant_of,
)


@dataclass(frozen=True, slots=True)
class Seed:
    """Deficits with which a client and its tenant start at an incarnation that does not know them. Weighted tokens."""

    client: float
    tenant: float


def carried_balance(ledger: Ledger, client: str, live: Collection[str]) -> float:
    """The carried balance of a client in weighted tokens. Debt is positive."""
    left = (ledger.closing(name).clients.get(client, 0.0) for name in ledger.ended(live))
    charged = ledger.charged_seeds(client, live)
    return ledger.closed_totals.client(client).carried + sum(charged) + sum(left)


def carried_balance_of_tenant(ledger: Ledger, tenant: str, live: Collection[str]) -> float:
    """The carried balance of a tenant in weighted tokens. Debt is positive."""
    left = (ledger.closing(name).tenants.get(tenant, 0.0) for name in ledger.ended(live))
    charged = ledger.charged_seeds(tenant, live)
    return ledger.closed_totals.tenant(tenant).carried + sum(charged) + sum(left)


def position(ledger: Ledger, client: str, live: Collection[str]) -> float:
    """The carried balance of a client less its deficits at live replicas, divided by its weight.

    If two clients of a tenant are backlogged on all live replicas, the difference of their positions is the
    difference of their service (docs/design/0003, lemma 2).
    """
    held = sum(
        account.clients.cell(client, DEFICIT)
        for incarnation, account in ledger.open_accounts()
        if incarnation in live
    )
    return (carried_balance(ledger, client, live) - held) / ledger.weights.client(client)


def position_of_tenant(ledger: Ledger, tenant: str, live: Collection[str]) -> float:
    """The carried balance of a tenant less its deficits at live replicas, divided by its weight."""
    held = sum(
        account.tenants.cell(tenant, TENANT_DEFICIT)
        for incarnation, account in ledger.open_accounts()
        if incarnation in live
    )
    return (carried_balance_of_tenant(ledger, tenant, live) - held) / ledger.weights.tenant(tenant)


def promise(
    ledger: Ledger,
    client: str,
    incarnation: str,
    *,
    live: Collection[str],
    joiners: Collection[str] = (),
) -> Seed:
    """The seed of a client at an incarnation (R5). The ledger records it, so that a second call returns the same.

    `joiners`: incarnations that joined together. They share the carried balance, except those that know the
    client already. Seeds are whole tokens, as in the client key.
    """
    account = ledger.replica_accounts.get(incarnation) or ReplicaAccount()
    tenant = tenant_of(client)
    seed = account.seed(client)
    if seed is None:
        seed = _share(
            carried_balance(ledger, client, live),
            ledger.rules,
            ledger.weights.client(client),
            (other.seed(client) is None for other in _others(ledger, incarnation, joiners)),
        )
    tenant_seed = account.tenant_seed(tenant)
    if tenant_seed is None:
        tenant_seed = _share(
            carried_balance_of_tenant(ledger, tenant, live),
            ledger.rules,
            ledger.weights.tenant(tenant),
            (other.tenant_seed(tenant) is None for other in _others(ledger, incarnation, joiners)),
        )
    if not _noted(account, ledger.router, client, seed=seed, tenant_seed=tenant_seed):
        ledger.promised(incarnation, client, seed=seed, tenant_seed=tenant_seed)
    return Seed(seed, tenant_seed)


def _noted(
    account: ReplicaAccount, router: str, client: str, *, seed: float, tenant_seed: float
) -> bool:
    router_account = account.accounts.get(router)
    if router_account is None or client not in router_account.clients:
        return False
    return (
        router_account.clients.cell(client, PROMISED) == seed
        and router_account.tenants.cell(tenant_of(client), TENANT_PROMISED, nan) == tenant_seed
    )


def _share(carried: float, rules: CarryRules, weight: float, others: Iterable[bool]) -> float:
    """`others`: of each other joiner, whether it takes a share too."""
    if not carried:
        return 0.0
    joiners = 1 + sum(others)
    # Rounded towards zero, so that a seed stays within the range.
    within = min(max(carried / joiners, -rules.max_credit(weight)), rules.max_debt(weight))
    return float(-int(within))


def _others(ledger: Ledger, incarnation: str, joiners: Collection[str]) -> Iterator[ReplicaAccount]:
    for joiner in set(joiners) - {incarnation}:
        yield ledger.replica_accounts.get(joiner) or ReplicaAccount()
