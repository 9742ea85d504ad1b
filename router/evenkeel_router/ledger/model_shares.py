"""A tenant's weight over several services (R22): the weights inside each of them, renewed once per interval.

The routers of a gateway have the same ledgers, so each computes the same weights but for the moment. They take the place of the
configured ones in client keys, and so at the engines, and in all figures about shares in the service. A service counts once its
speed is known: after requests have waited at one of its replicas for some seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping

from evenkeel_contract.routerconfig import RouterConfig, ShareAcross
from evenkeel_fairshare.across_services import ServiceRates, weighing

from evenkeel_router.ledger.service_ledger import ServiceLedger
from evenkeel_router.ledger.tenant_rates import TenantMeter, changed_weights
from evenkeel_router.slices import in_slices


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
        changed, _ = await in_slices(self._changed())
        for name, local in changed.items():
            self.weights[name] = local
            if not local:
                del self.weights[name]
            await self._reweigh(name, local)

    def _changed(self) -> Generator[None, None, dict[str, Mapping[str, float]]]:
        """Service → its new weights, of those whose weights change; in steps."""
        config, ledgers = self._config(), self._services()
        if config.share_across is not ShareAcross.GATEWAY:
            ledgers = {}
        for name in self._meters.keys() - ledgers.keys():
            del self._meters[name]
        rates = yield from self._measured(config, ledgers)
        weights = {
            tenant: ledgers[name].weights.configured(tenant)
            for name, of_service in rates.items()
            for tenant in of_service.served
        }
        found = yield from weighing(rates, weights.__getitem__, interval_s=self._interval_s)
        changed: dict[str, Mapping[str, float]] = {}
        for name in {*self.weights, *found}:
            before = self.weights.get(name, {})
            local = yield from changed_weights(
                found.get(name, {}), before, lambda tenant: weights.get(tenant, 0.0)
            )
            if local is not None:
                changed[name] = local
        return changed

    def _measured(
        self, config: RouterConfig, ledgers: Mapping[str, ServiceLedger]
    ) -> Generator[None, None, dict[str, ServiceRates]]:
        """Service → its rates, of the tenants with requests, where the speed is known; in steps."""
        gpus = {pool.service: pool.gpus or 1 for pool in config.pools}
        found: dict[str, ServiceRates] = {}
        for name, ledger in ledgers.items():
            tenants = ledger.fairness.now.tenants
            rates = self._meters.setdefault(name, TenantMeter()).rates(tenants, self._now())
            speed = ledger.fairness.replica_speed
            if rates is not None and speed is not None and name in gpus:
                waiting = {one: own.waiting for one, own in tenants.items() if own.waiting}
                found[name] = ServiceRates(
                    served={
                        tenant: rate for tenant, rate in rates.items() if rate or tenant in waiting
                    },
                    waiting=waiting,
                    token_cost_s=gpus[name] / speed,
                )
            yield
        return found
