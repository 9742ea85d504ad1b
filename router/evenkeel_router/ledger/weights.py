"""The weights of tenants and clients, as configured (R9), and those of tenants inside a cell (R21) or one of several services (R22)."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from copy import copy

from evenkeel_contract.key import ClientKey
from evenkeel_contract.routerconfig import TenancyConfig, TenantConfig
from evenkeel_fairshare.ledger import tenant_of

from evenkeel_router.api.buckets import Buckets
from evenkeel_router.api.identity import ANONYMOUS, tenant_identity
from evenkeel_router.api.tenant_change import TenantChange


class ConfiguredWeights:
    """Weights of `namespace/tenant/client` and `namespace/tenant`, each part escaped.

    Where none is configured a client has 1, and so has the tenant of requests without an identity. Another tenant that is not
    declared has `undeclaredTenantWeight`.
    """

    def __init__(self, tenancy: TenancyConfig) -> None:
        self._tenants: Buckets[str, float] = Buckets()
        self._defaults: Buckets[str, float] = Buckets()
        self._clients: Buckets[str, float] = Buckets()
        self._undeclared = _undeclared(tenancy)
        for tenant in tenancy.tenants:
            self._add(tenant)

    def changed(
        self, change: TenantChange, tenancy: TenancyConfig
    ) -> Generator[None, None, ConfiguredWeights]:
        """The weights with changed tenants, in steps."""
        found = copy(self)
        found._undeclared = _undeclared(tenancy)
        found._tenants, found._defaults = self._tenants.fork(), self._defaults.fork()
        found._clients = self._clients.fork()
        for before in change.before:
            found._remove(before)
            yield
        for after in change.after:
            found._add(after)
            yield
        return found

    def _add(self, tenant: TenantConfig) -> None:
        name = tenant_identity(tenant)
        self._tenants.put(name, float(tenant.weight))
        self._defaults.put(name, float(tenant.default_client_weight))
        for client in tenant.clients:
            self._clients.put(_identity(tenant, client.name), float(client.weight))

    def _remove(self, tenant: TenantConfig) -> None:
        name = tenant_identity(tenant)
        self._tenants.drop(name)
        self._defaults.drop(name)
        for client in tenant.clients:
            self._clients.drop(_identity(tenant, client.name))

    @property
    def declared(self) -> Collection[str]:
        """The identities of all clients that tenants declare."""
        return self._clients.keys()

    def client(self, client: str) -> float:
        """The client's weight within its tenant."""
        weight = self._clients.get(client)
        if weight is None:
            weight = self._defaults.get(tenant_of(client))
        return 1.0 if weight is None else weight

    def tenant(self, tenant: str) -> float:
        """The tenant's weight."""
        return self.configured(tenant)

    def configured(self, tenant: str) -> float:
        """The tenant's weight over all services."""
        weight = self._tenants.get(tenant)
        if weight is not None:
            return weight
        return 1.0 if tenant.endswith(f"/{ANONYMOUS}") else self._undeclared


class LocalWeights(ConfiguredWeights):
    """The weights inside a cell, or inside one of several services."""

    def __init__(self, configured: ConfiguredWeights, local: Mapping[str, float]) -> None:
        """`local`: tenant → its weight here, where it is not the configured one."""
        self._tenants, self._defaults = configured._tenants, configured._defaults
        self._clients, self._undeclared = configured._clients, configured._undeclared
        self._local = local

    def tenant(self, tenant: str) -> float:
        weight = self._local.get(tenant)
        return self.configured(tenant) if weight is None else weight


def _undeclared(tenancy: TenancyConfig) -> float:
    return float(tenancy.undeclared_tenant_weight or 1)


def _identity(tenant: TenantConfig, client: str) -> str:
    return ClientKey(tenant.namespace, tenant.name, client).identity
