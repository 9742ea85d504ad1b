"""Routers that keep their ledger: it is there after a kill, and a store that is away holds nobody up."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import httpx
from evenkeel_contract.routerconfig import RouterConfig, StateConfig, StateStore
from evenkeel_router.app import Router, running
from evenkeel_simulator.server.app import running_server
from prometheus_client.parser import text_string_to_metric_families

from tests.support.redisserver import RedisServer, needs_redis
from tests.support.routers import (
    MODEL,
    PATIENCE_S,
    QUICK,
    config_for,
    replica_of,
    routable,
    simulated,
    until,
)

CLIENT = "ns/anonymous/anonymous"
TIMING = replace(QUICK, settle_s=0.1, return_s=0.1, compact_interval_s=0.2)


async def figures(router: Router) -> dict[tuple[str, str], float]:
    """Metrics of the store: by name and operation."""
    url = f"http://127.0.0.1:{router.probe_port}/metrics"
    async with httpx.AsyncClient() as client:
        text = (await client.get(url)).text
    return {
        (sample.name.removeprefix("evenkeel_router_ledger_store_"), sample.labels.get("operation", "")): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "ledger_store" in sample.name
    }  # fmt: skip


async def ask(router: Router) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        body = {"model": MODEL, "prompt": "x", "max_tokens": 8}
        assert (await client.post(f"{router.url}/v1/completions", json=body)).status_code == 200


async def served_once(config: RouterConfig) -> float:
    """What a router's ledger says after one request, with its replica gone for good."""
    async with running_server(simulated()) as server:
        told = replace(config, replicas=(replica_of(server),))
        async with running(told, timing=TIMING) as router:
            await routable(router, 1)
            await ask(router)
            ledger = router.rooms.service_ledger.ledger
            await until(lambda: ledger.served(CLIENT) > 0, "what it cost")
            return ledger.served(CLIENT)


async def test_what_a_replica_served_that_is_gone_is_in_the_file(tmp_path: Path) -> None:
    state = StateConfig(store=StateStore.FILE, file=str(tmp_path / "ledger"), save_interval_s=0.05)
    config = config_for(state=state)
    served = await served_once(config)
    async with running(config, timing=TIMING) as router:
        assert router.rooms.service_ledger.ledger.served(CLIENT) == served
        now = await figures(router)
        assert now["up", ""] == 1
        assert 0 <= now["age_seconds", "load"] < PATIENCE_S


@needs_redis
async def test_a_router_serves_while_redis_is_away_and_is_in_step_once_it_is_there(
    tmp_path: Path,
) -> None:
    server = RedisServer(tmp_path)
    state = StateConfig(store=StateStore.REDIS, redis_url=server.url, save_interval_s=0.05)
    config = config_for(state=state)
    try:
        served = await served_once(config)  # nobody is there to keep it
        async with running_server(simulated()) as replica:
            told = replace(config, replicas=(replica_of(replica),))
            async with running(told, timing=TIMING) as router:
                await routable(router, 1)
                await ask(router)
                assert (await figures(router))["up", ""] == 0
                assert "connecting to" in router.rooms.service_ledger.store_error
                keeping = router.rooms.service_ledger.persistence
                assert keeping is not None
                await server.start()
                await until(lambda: keeping.saved_s is not None, "a save")
                assert (await figures(router))["up", ""] == 1
        async with running(config, timing=TIMING) as router:
            found = router.rooms.service_ledger.ledger.served(CLIENT)
            assert found == served
    finally:
        await asyncio.shield(server.stop())


async def test_in_a_rollout_the_next_router_serves_before_it_takes_the_file_over(
    tmp_path: Path,
) -> None:
    state = StateConfig(store=StateStore.FILE, file=str(tmp_path / "ledger"), save_interval_s=0.05)
    async with running_server(simulated()) as server:
        config = config_for(state=state, replicas=(replica_of(server),))
        async with AsyncExitStack() as old_life:
            old = await old_life.enter_async_context(running(config, timing=TIMING))
            await routable(old, 1)
            await ask(old)
            ledger = old.rooms.service_ledger.ledger
            await until(lambda: ledger.served(CLIENT) > 0, "what the first one served")
            served = ledger.served(CLIENT)
            async with running(config, timing=TIMING) as new:
                await routable(new, 1)
                await ask(new)
                assert (await figures(new))["up", ""] == 0, "the first one has the file"
                await old_life.aclose()
                persistence = new.rooms.service_ledger.persistence
                assert persistence is not None
                await until(persistence.loaded.is_set, "the file")
                taken = new.rooms.service_ledger.ledger.served(CLIENT)
                assert taken >= served
    async with running(replace(config, replicas=()), timing=TIMING) as third:
        assert third.rooms.service_ledger.ledger.served(CLIENT) >= taken
