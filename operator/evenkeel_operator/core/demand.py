"""The clients' demand in replicas, and how much of it may grow the fleet (design §6). Pure.

Demand is counted in replicas of usable capacity, so a client's cap does not grow with the fleet. Caps belong to
clients, not to tenants; a tenant's weight is part of each of its clients' caps (R9).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from evenkeel_contract.names import OTHER_CLIENTS
from evenkeel_contract.routerconfig import TenantConfig


@dataclass(frozen=True, slots=True)
class Asked:
    """The demand of one client at all routers together: r_i."""

    tenant: str
    client: str
    """`OTHER_CLIENTS` stands for the tenant's clients without a series of their own."""
    service_per_s: float
    """Weighted tokens per second."""


@dataclass(frozen=True, slots=True)
class _Tenant:
    part: float
    """Its weight over the heaviest tenant's: above 0, at most 1."""
    default: float
    """Share of the tenant's weight for a client that the tenant does not name."""
    clients: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Parts:
    """Relative weights: the part of `maxReplicasPerClient` for each client, at most 1."""

    tenants: Mapping[str, _Tenant] = field(default_factory=dict)
    stranger: float = 1.0
    """For a tenant that has no weight of its own: the anonymous one, or one that is gone."""

    def client(self, tenant: str, client: str) -> float:
        """The weight of a client. Clients that share a series count as the heaviest of them."""
        known = self.tenants.get(tenant)
        if known is None:
            return self.stranger
        if client == OTHER_CLIENTS:
            return known.part
        return known.part * known.clients.get(client, known.default)


def parts_of(tenants: Iterable[TenantConfig]) -> Parts:
    """From the weights that routers use."""
    listed = list(tenants)
    heaviest = max((float(tenant.weight) for tenant in listed), default=1.0)
    return Parts(
        {tenant.name: _tenant(tenant, heaviest) for tenant in listed}, min(1.0, 1.0 / heaviest)
    )


def _tenant(tenant: TenantConfig, heaviest: float) -> _Tenant:
    named = {client.name: float(client.weight) for client in tenant.clients}
    most = max((*named.values(), float(tenant.default_client_weight)))
    return _Tenant(
        part=tenant.weight / heaviest,
        default=tenant.default_client_weight / most,
        clients={name: weight / most for name, weight in named.items()},
    )


@dataclass(frozen=True, slots=True)
class Demand:
    """Of all clients, in replicas."""

    replicas: float
    """Σ min(r_i, cap_i)."""
    ceiling: float
    """Σ cap_i of the clients with demand: the limit of every recommendation to grow."""


def demand_of(
    asked: Iterable[Asked], parts: Parts, *, usable_per_s: float, cap_replicas: float
) -> Demand:
    """`usable_per_s` is the usable capacity of a replica; `cap_replicas` is `maxReplicasPerClient`, for weight 1."""
    found = [
        (one.service_per_s / usable_per_s, cap_replicas * parts.client(one.tenant, one.client))
        for one in asked
        if one.service_per_s > 0
    ]
    return Demand(
        replicas=sum(min(wanted, cap) for wanted, cap in found),
        ceiling=sum(cap for _, cap in found),
    )
