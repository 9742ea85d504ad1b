"""The owner of a request, the weights of tenants and clients, and the shares of backlogged clients (design §3, R9).

A `Tenancy` is a value: a router replaces it when weights change.

Weights appear in two forms. A *weight* is a property of one client, its tenant's times its own, and does not change as
others come and go; it scales quanta. A *share* is a fraction of the fleet among the clients that are backlogged now,
first between tenants, then within each. Q^w is scaled by the weight: a share would shrink with every client that becomes
active, and with it the credit that keeps a client near its cached prefixes. The price: a tenant's clients together may
stay near their prefixes longer than another tenant's single client. That costs no fairness, as Q^w is in no bound (R2);
replicas enforce the tree (R9).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Identity:
    """namespace/tenant/client, each any text."""

    namespace: str
    tenant: str
    client: str

    @property
    def tenant_key(self) -> str:
        """`namespace/tenant`, each part escaped as in the client key, so that two tenants never share one."""
        return f"{_escape(self.namespace)}/{_escape(self.tenant)}"

    def __str__(self) -> str:
        """`namespace/tenant/client`, escaped: the identity of `Dispatch` and `Request`."""
        return f"{self.tenant_key}/{_escape(self.client)}"


@dataclass(frozen=True, slots=True)
class Weights:
    """A client's weight at each level of the tree."""

    tenant: float = 1.0
    client: float = 1.0

    @property
    def fleet(self) -> float:
        """The flat weight that scales Q^w, and that flat algorithms divide by. 1: an ordinary client."""
        return self.tenant * self.client


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantWeights:
    """One tenant. Weights are relative to its siblings', any positive numbers."""

    weight: float = 1.0
    default_client_weight: float = 1.0
    """For clients that are not named."""
    clients: Mapping[str, float] = field(default_factory=dict)
    """Named clients."""


UNKNOWN_TENANT: Final = TenantWeights()


class Tenancy:
    """The weights of all tenants, immutable. An unknown tenant weighs 1, an unknown client its tenant's default."""

    __slots__ = ("_tenants",)

    def __init__(self, tenants: Mapping[tuple[str, str], TenantWeights] | None = None) -> None:
        """`tenants` by (namespace, name). Raises `ValueError` naming each weight that is not positive."""
        copied = {
            name: TenantWeights(
                weight=tenant.weight,
                default_client_weight=tenant.default_client_weight,
                clients=MappingProxyType(dict(tenant.clients)),
            )
            for name, tenant in (tenants or {}).items()
        }
        faults = [fault for name, tenant in copied.items() for fault in _faults(name, tenant)]
        if faults:
            raise ValueError("; ".join(faults))
        self._tenants: Final = MappingProxyType(copied)

    def weights(self, identity: Identity) -> Weights:
        """The weights of `identity`."""
        tenant = self._tenants.get((identity.namespace, identity.tenant), UNKNOWN_TENANT)
        client = tenant.clients.get(identity.client, tenant.default_client_weight)
        return Weights(tenant.weight, client)

    def shares(self, backlogged: Collection[Identity]) -> dict[Identity, float]:
        """The fraction of the fleet that each backlogged client is owed; they add up to 1 (R9).

        The fleet is divided among the tenants that have a backlogged client, by their weights; each part
        among those clients by theirs. So a tenant with one gets what a tenant with fifty gets.
        """
        tenants: dict[tuple[str, str], dict[Identity, Weights]] = {}
        for identity in backlogged:
            siblings = tenants.setdefault((identity.namespace, identity.tenant), {})
            siblings[identity] = self.weights(identity)
        all_tenants = sum(next(iter(siblings.values())).tenant for siblings in tenants.values())
        return {
            identity: weights.tenant / all_tenants * weights.client / all_siblings
            for siblings in tenants.values()
            for all_siblings in (sum(weights.client for weights in siblings.values()),)
            for identity, weights in siblings.items()
        }


def _faults(name: tuple[str, str], tenant: TenantWeights) -> list[str]:
    path = "/".join(name)
    named = {
        f"tenant {path}: weight": tenant.weight,
        f"tenant {path}: default client weight": tenant.default_client_weight,
        **{f"client {path}/{client}: weight": weight for client, weight in tenant.clients.items()},
    }
    return [
        f"{what} is {weight}, must be positive" for what, weight in named.items() if not weight > 0
    ]


def _escape(name: str) -> str:
    return quote(name, safe="").replace("~", "%7E")
