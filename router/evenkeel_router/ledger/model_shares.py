"""A tenant's weight over several services (R22): the weights inside each of them, renewed once per interval.

The routers of a gateway have the same ledgers, so each computes the same weights but for the moment. They take the place of the
configured ones in client keys, and so at the engines, and in all figures about shares in the service. A service counts once its
speed is known: after requests have waited at one of its replicas for some seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from evenkeel_contract.routerconfig import RouterConfig, ShareAcross
from evenkeel_fairshare.across_services import ServiceRates, weights_in_services

from evenkeel_router.api.identity import ANONYMOUS
from evenkeel_router.ledger.service_ledger import ServiceLedger
from evenkeel_router.ledger.tenant_rates import TenantMeter, weight_in_keys

TOLERANCE: Final = 0.02
"""A weight that changes by less than this part of it stays: each change costs the routers and engines some work."""


class ModelShares:
    """The weights of tenants inside the services of one router."""

    def __init__(
        self,
        config: Callable[[], RouterConfig],
        services: Callable[[], Mapping[str, ServiceLedger]],
        *,
        interval_s: float,
        reweigh: Callable[[str, Mapping[str, float]], Awaitable[None]],
    ) -> None:
        """`services`: those that are open, by name. `reweigh` is called with a service and its new weights."""
        self._config = config
        self._services = services
        self._interval_s = interval_s
        self._reweigh = reweigh
        self._now = asyncio.get_running_loop().time
        self._meters: dict[str, TenantMeter] = {}
        self.weights: dict[str, Mapping[str, float]] = {}
        """Service → tenant → its weight there, where it is not the configured one."""

    async def run(self) -> None:
        """Renew the weights, until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self._renew()

    async def _renew(self) -> None:
        config, ledgers = self._config(), self._services()
        if config.share_across is not ShareAcross.GATEWAY:
            ledgers = {}
        for name in self._meters.keys() - ledgers.keys():
            del self._meters[name]
        rates = self._measured(config, ledgers)
        weights = {
            tenant: _weight(config, ledgers[name], tenant)
            for name, of_service in rates.items()
            for tenant in of_service.served
        }
        found = weights_in_services(rates, weights.__getitem__, interval_s=self._interval_s)
        for name in {*self.weights, *found}:
            local = {
                tenant: own
                for tenant, weight in found.get(name, {}).items()
                if (own := weight_in_keys(weight)) != weights[tenant]
            }
            before = self.weights.get(name, {})
            if _differ(local, before, weights) or (before and not local):
                self.weights[name] = local
                await self._reweigh(name, local)
            if not local:
                self.weights.pop(name, None)

    def _measured(
        self, config: RouterConfig, ledgers: Mapping[str, ServiceLedger]
    ) -> dict[str, ServiceRates]:
        gpus = {pool.service: pool.gpus or 1 for pool in config.pools}
        found = {}
        for name, ledger in ledgers.items():
            tenants = ledger.fairness.now.tenants
            served = self._meters.setdefault(name, TenantMeter()).rates(tenants, self._now())
            speed = ledger.fairness.replica_speed
            if served is not None and speed is not None and name in gpus:
                found[name] = ServiceRates(
                    served=served,
                    waiting={tenant: one.waiting for tenant, one in tenants.items()},
                    token_cost_s=gpus[name] / speed,
                )
        return found


def _weight(config: RouterConfig, ledger: ServiceLedger, tenant: str) -> float:
    """A tenant's weight over all services."""
    declared = ledger.weights.configured(tenant)
    if declared is not None:
        return declared
    if tenant.rpartition("/")[2] == ANONYMOUS:
        return 1.0
    return float(config.tenancy.undeclared_tenant_weight or 1)


def _differ(
    local: Mapping[str, float], before: Mapping[str, float], configured: Mapping[str, float]
) -> bool:
    """Whether a weight changed by more than the tolerance."""
    for tenant in {*local, *before}:
        usual = configured.get(tenant, 0.0)
        weight = local.get(tenant, usual)
        if abs(weight - before.get(tenant, usual)) > TOLERANCE * weight:
            return True
    return False
