"""Several router processes in front of several replica processes: what is known survives whatever ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
from evenkeel_contract.adminstate import RouterState
from evenkeel_contract.routerconfig import (
    ApiKeyConfig,
    ClientConfig,
    ListenConfig,
    PeerConfig,
    ReplicaConfig,
    RouterConfig,
    SchedulingConfig,
    StateConfig,
    TenancyConfig,
    TenantConfig,
)
from evenkeel_contract.routerdocument import dump_router_config

from tests.integration.test_router_process import Running, router, simulator
from tests.support.ports import free_ports
from tests.support.routers import MODEL, PATIENCE_S, config_for, sha256

TENANTS = tuple(
    TenantConfig(
        namespace="ns",
        name=name,
        weight=weight,
        clients=(ClientConfig(name="c"),),
        api_keys=(ApiKeyConfig(name="k", client="c", sha256=sha256(f"sk-{name}")),),
    )
    for name, weight in (("heavy", 4), ("light", 1))
)


class Fleet:
    """Router processes that are peers of one another."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.ports = free_ports(count)
        self.running: list[Running] = []
        self.client = httpx.AsyncClient(
            timeout=5 * PATIENCE_S, limits=httpx.Limits(max_connections=None)
        )

    def config(self, index: int, *replicas: ReplicaConfig, **changes: object) -> RouterConfig:
        peers = tuple(
            PeerConfig(name=f"router-{n}", url=f"http://127.0.0.1:{port}")
            for n, port in enumerate(self.ports)
            if n != index
        )
        listen = ListenConfig(traffic_port=0, probe_port=0, admin_port=self.ports[index])
        given = {
            "tenancy": TenancyConfig(tenants=TENANTS),
            "scheduling": SchedulingConfig(client_quantum=200),
            "state": StateConfig(peers=peers, exchange_interval_s=0.2),
        }
        return replace(config_for(*replicas), listen=listen, **(given | changes))

    def path(self, index: int) -> Path:
        return self.folder / f"router-{index}.json"

    def tell(self, index: int, config: RouterConfig) -> None:
        self.path(index).write_bytes(dump_router_config(config))

    async def ask(self, index: int, tenant: str, *, prompt: str, tokens: int = 40) -> int:
        response = await self.client.post(
            f"{self.running[index].url}/v1/completions",
            json={"model": MODEL, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True},
            headers={"Authorization": f"Bearer sk-{tenant}"},
        )
        return response.status_code

    async def states(self) -> list[RouterState]:
        return [await running.state(self.client) for running in self.running]

    async def served(self) -> list[dict[str, float]]:
        return [
            {tenant.name: tenant.service for tenant in state.tenants}
            for state in await self.states()
        ]

    async def agreed(self, tenant: str, at_least: float) -> float:
        """Wait until all routers say the same of a tenant, and that at least."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                said = {one[tenant] for one in await self.served()}
                if len(said) == 1 and min(said) >= at_least:
                    return said.pop()
                await asyncio.sleep(0.05)


@asynccontextmanager
async def fleet(tmp_path: Path, routers: int, *replicas: ReplicaConfig) -> AsyncIterator[Fleet]:
    made = Fleet(tmp_path, routers)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(made.client)
        for index in range(routers):
            config = made.config(index, *replicas)
            running = router(config, made.path(index), "--no-request-log")
            made.running.append(await stack.enter_async_context(running))
        for running in made.running:
            await running.routable(made.client, len(replicas))
        yield made


async def test_two_routers_say_the_same_and_one_that_is_killed_knows_it_again(
    tmp_path: Path,
) -> None:
    async with (
        simulator("--speed", "20") as (_, first),
        simulator("--speed", "20") as (_, second),
        fleet(tmp_path, 2, first, second) as routers,
    ):
        for n in range(6):
            assert await routers.ask(n % 2, "heavy", prompt=f"prompt {n}") == 200
        served = await routers.agreed("heavy", at_least=6 * 80)
        victim = routers.running[1]
        before = (await routers.states())[1].ledger.router
        victim.process.kill()
        await victim.process.wait()
        assert await routers.ask(0, "heavy", prompt="while the other is away") == 200
        async with router(routers.config(1, first, second), routers.path(1)) as again:
            routers.running[1] = again
            state = await again.state(routers.client)
            assert state.ledger.router != before
            await routers.agreed("heavy", at_least=served + 80)
            await again.routable(routers.client, 2)
            assert await routers.ask(1, "heavy", prompt="to the new one") == 200
            assert await routers.agreed("heavy", at_least=served + 160) >= served + 160


async def test_a_crash_closes_what_crashed_at_what_was_reported_or_received(
    tmp_path: Path,
) -> None:
    async with (
        simulator("--speed", "20") as (victim, first),
        simulator("--speed", "20") as (_, second),
        fleet(tmp_path, 2, first, second) as routers,
    ):
        for n in range(8):
            assert await routers.ask(n % 2, "heavy", prompt=f"prompt {n} of its own") == 200
        # Whatever the victim did not report before it dies, the routers received.
        victim.kill()
        await victim.wait()
        for index in range(2):
            routers.tell(index, routers.config(index, second))
        served = await routers.agreed("heavy", at_least=8 * 80)
        assert served < 8 * (80 + 20) + 1  # no request has more than 20 tokens of input
        for running in routers.running:
            await running.routable(routers.client, 1)
        assert await routers.ask(0, "heavy", prompt="after it") == 200
        assert await routers.agreed("heavy", at_least=served + 80) <= served + 100


async def test_a_weight_changes_while_everything_runs(tmp_path: Path) -> None:
    async with (
        simulator("--speed", "20") as (_, replica),
        fleet(tmp_path, 1, replica) as routers,
    ):
        assert await routers.ask(0, "light", prompt="before") == 200
        served = await routers.agreed("light", at_least=80)
        heavy, light = TENANTS
        tenancy = TenancyConfig(tenants=(heavy, replace(light, weight=8)))
        routers.tell(0, routers.config(0, replica, tenancy=tenancy))
        await routers.running[0].line("the configuration changed")
        assert await routers.agreed("light", at_least=served) == served
        assert await routers.ask(0, "light", prompt="afterwards, another one") == 200
        assert await routers.agreed("light", at_least=served + 80) >= served + 80
        (state,) = await routers.states()
        assert {tenant.name: tenant.weight for tenant in state.tenants}["light"] == 8
