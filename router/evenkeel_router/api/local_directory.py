"""The directory of a cell (R21), or of one of several services (R22), in which tenants have weights of their own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace

from evenkeel_contract.routerconfig import TenantConfig

from evenkeel_router.api.identity import Client, Directory, tenant_identity


class LocalDirectory(Directory):
    """Another directory with other weights of tenants.

    In one of several services it has requests whose sender the other one has identified already. Credentials that are revoked later
    are refused there.
    """

    def __init__(self, directory: Directory, weights: Mapping[str, float]) -> None:
        """`weights`: tenant → its weight here, where it is not the configured one."""
        vars(self).update(vars(directory))
        self._weights = weights
        # What the other one remembers of clients has its weights.
        self._clients, self._by_name = OrderedDict(), OrderedDict()
        self._by_authorization, self._verified = {}, OrderedDict()
        self.anonymous = self._shared() if self._shares else None

    def _client(self, tenant: TenantConfig, name: str) -> Client:
        weight = self._weights.get(tenant_identity(tenant))
        return super()._client(tenant if weight is None else replace(tenant, weight=weight), name)
