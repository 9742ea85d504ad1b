"""Two models of unequal size behind one router: a tenant's engine seconds over both follow its weight, where that is wanted (R22)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import httpx
import pytest
from evenkeel_contract.adminstate import decode_state
from evenkeel_contract.routerconfig import PoolConfig, ShareAcross, TenancyConfig
from evenkeel_fairshare import saturation
from evenkeel_router.app import Router, running
from evenkeel_simulator.engine.config import EngineConfig
from evenkeel_simulator.server.app import RunningServer, running_server

from tests.support.gated import FLOOD, IN_BATCH, flood, served, tenant
from tests.support.routers import PATIENCE_S, QUICK, config_for, replica_of, simulated, until

BIG, SMALL = "big", "small"
GPUS = {BIG: 3, SMALL: 1}
SPEED = {BIG: 2.0, SMALL: 6.0}
"""A token of the big model takes three times as long, and three GPUs."""
TENANCY = TenancyConfig(tenants=tuple(tenant(name, 1) for name in ("ads", "law")))
LOADS = ((BIG, "ads"), (BIG, "law"), (SMALL, "ads"))
"""Ads floods both models, law only the big one. Of four GPUs two are owed to each."""
OWED_OF_BIG = 2 / 3


@dataclass
class Stage:
    """A router with two models of one replica each, and a client."""

    router: Router
    servers: dict[str, RunningServer]
    client: httpx.AsyncClient

    async def share(self, share_across: ShareAcross | None) -> None:
        """Change the configuration."""
        configured = self.router.services.configured
        await self.router.apply(replace(configured, share_across=share_across))

    def weight(self, model: str, name: str) -> float:
        """A tenant's weight in one model."""
        weights = self.router.services.shares.weights.get(model, {})
        return weights.get(f"ns/{name}", 1.0)

    async def part_of_law(self, seconds: float) -> float:
        """Law's part of what the big model serves from now on."""
        before = served(self.servers[BIG])
        await asyncio.sleep(seconds)
        gained = {name: more - before[name] for name, more in served(self.servers[BIG]).items()}
        return gained["law"] / sum(gained.values())


@asynccontextmanager
async def two_models(share_across: ShareAcross | None) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        servers = {}
        for name in (BIG, SMALL):
            settings = simulated(
                model=name, engine=EngineConfig(max_running=IN_BATCH), speed=SPEED[name]
            )
            servers[name] = await stack.enter_async_context(running_server(settings))
        pools = tuple(
            PoolConfig(
                service=name, model=name, replicas=(replica_of(server, name),), gpus=GPUS[name]
            )
            for name, server in servers.items()
        )
        config = config_for(
            service="all", model="all", tenancy=TENANCY, pools=pools, share_across=share_across
        )
        timing = replace(QUICK, share_interval_s=0.5)
        router = await stack.enter_async_context(running(config, timing=timing))
        limits = httpx.Limits(max_connections=None)
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=router.url, timeout=5 * PATIENCE_S, limits=limits)
        )
        open_services = router.services.served.services
        await until(
            lambda: all(one.rooms.replicas.fleet.routable for one in open_services.values()),
            "both models",
        )
        yield Stage(router, servers, client)


@asynccontextmanager
async def flooded(stage: Stage) -> AsyncIterator[None]:
    loads = [
        asyncio.create_task(flood(stage.client, name, n, model=model))
        for model, name in LOADS
        for n in range(FLOOD)
    ]
    try:
        yield
        assert not any(load.done() for load in loads)
    finally:
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)


@pytest.fixture(autouse=True)
def quick_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The speed of a replica counts after less waiting than in service."""
    monkeypatch.setattr(saturation, "SETTLED_S", 0.5)


async def test_who_uses_several_models_gets_less_of_each() -> None:
    async with two_models(ShareAcross.GATEWAY) as stage, flooded(stage):
        await until(lambda: stage.weight(BIG, "law") > 1.5 * stage.weight(BIG, "ads"), "weights")
        assert stage.weight(SMALL, "ads") == 1.0  # it is alone there
        # The engine's deficits have them too: they come with each request.
        part = 0.0
        for _ in range(20):
            part = await stage.part_of_law(1.0)
            if part > 0.58:
                break
        assert part > 0.58
        state = await stage.client.get(f"http://127.0.0.1:{stage.router.admin_port}/v1/state")
        weights = {
            one.name: one.weight
            for service in decode_state(state.content).services
            if service.service == BIG
            for one in service.tenants
        }
        assert weights["law"] > weights["ads"]
        # Nobody is left behind when it ends.
        await stage.share(None)
        await until(lambda: not stage.router.services.shares.weights, "the configured weights")
        intakes = [one.rooms.intake for one in stage.router.services.served.services.values()]
        assert not any(intake.local_weights for intake in intakes)


async def test_without_it_each_model_is_shared_by_the_weights() -> None:
    async with two_models(None) as stage, flooded(stage):
        await until(lambda: "law" in served(stage.servers[BIG]), "requests of law")
        await until(lambda: "ads" in served(stage.servers[BIG]), "requests of ads")
        assert 0.4 < await stage.part_of_law(5.0) < 0.6
        assert not stage.router.services.shares.weights


@pytest.mark.slow
async def test_engine_seconds_follow_the_weights_within_ten_percent() -> None:
    async with two_models(ShareAcross.GATEWAY) as stage, flooded(stage):
        await until(lambda: stage.weight(BIG, "law") > 1.5 * stage.weight(BIG, "ads"), "weights")
        await asyncio.sleep(5.0)
        assert await stage.part_of_law(15.0) == pytest.approx(OWED_OF_BIG, rel=0.1)
