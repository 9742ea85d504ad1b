"""The weights of tenants and clients, as configured (R9)."""

from __future__ import annotations

from collections.abc import Collection

from evenkeel_contract.key import ClientKey
from evenkeel_contract.routerconfig import TenancyConfig
from evenkeel_fairshare.ledger import tenant_of

from evenkeel_router.api.identity import tenant_identity


class ConfiguredWeights:
    """Weights of `namespace/tenant/client` and `namespace/tenant`, each part escaped; 1 where none is configured."""

    def __init__(self, tenancy: TenancyConfig) -> None:
        self._tenants: dict[str, float] = {}
        self._defaults: dict[str, float] = {}
        self._clients: dict[str, float] = {}
        for tenant in tenancy.tenants:
            name = tenant_identity(tenant)
            self._tenants[name] = float(tenant.weight)
            self._defaults[name] = float(tenant.default_client_weight)
            for client in tenant.clients:
                key = ClientKey(tenant.namespace, tenant.name, client.name)
                self._clients[key.identity] = float(client.weight)

    @property
    def declared(self) -> Collection[str]:
        """The identities of all clients that tenants declare."""
        return self._clients.keys()

    def client(self, client: str) -> float:
        """The client's weight within its tenant."""
        weight = self._clients.get(client)
        return self._defaults.get(tenant_of(client), 1.0) if weight is None else weight

    def tenant(self, tenant: str) -> float:
        """The tenant's weight."""
        return self._tenants.get(tenant, 1.0)
