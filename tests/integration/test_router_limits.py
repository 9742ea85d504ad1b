"""A tenant's limits over several routers, through real sockets: skewed ingress, a router killed, settled tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import httpx
import pytest
from aiohttp import web
from evenkeel_contract.limitswire import LIMITS_PATH
from evenkeel_contract.placeswire import PLACES_PATH
from evenkeel_contract.routerconfig import (
    SIMULATOR_TOKENIZER,
    ClientLimits,
    PeerConfig,
    PrefixConfig,
    PrefixMode,
    ReplicaConfig,
    RouterConfig,
    StateConfig,
    TenantLimits,
)
from evenkeel_contract.simulatedprompt import encode
from evenkeel_router.app import Router, running
from evenkeel_simulator.server.app import running_server

from tests.support.routers import (
    KEY,
    MODEL,
    PATIENCE_S,
    QUICK,
    applied,
    config_for,
    replica_of,
    routable,
    sha256,
    simulated,
    tenancy,
    until,
)


def limited(*replicas: ReplicaConfig, limits: TenantLimits, **changes: object) -> RouterConfig:
    people = tenancy()
    acme = replace(people.tenants[0], limits=limits)
    given = {"tenancy": replace(people, tenants=(acme,)), "state": StateConfig()} | changes
    return config_for(*replicas, **given)


def introduce(*routers: Router) -> None:
    """Tell each router of all others."""
    for router in routers:
        config = router.rooms.settings.config
        peers = tuple(
            PeerConfig(name=f"r{n}", url=f"http://127.0.0.1:{other.admin_port}")
            for n, other in enumerate(routers)
            if other is not router
        )
        state = replace(config.state, peers=peers, exchange_interval_s=0.1)
        applied(router.rooms, replace(config, state=state))


def part_of(router: Router, kind: str) -> float:
    return dict(router.rooms.intake.limit_parts.parts()).get(f"{kind} ns/acme", 0.0)


@asynccontextmanager
async def clients(*routers: Router) -> AsyncIterator[list[httpx.AsyncClient]]:
    headers = {"Authorization": f"Bearer {KEY}"}
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                httpx.AsyncClient(base_url=router.url, headers=headers, timeout=PATIENCE_S)
            )
            for router in routers
        ]


async def complete(client: httpx.AsyncClient, tokens: int = 1) -> httpx.Response:
    body = {"model": MODEL, "prompt": "x", "max_tokens": tokens, "ignore_eos": True}
    return await client.post("/v1/completions", json=body)


@pytest.mark.parametrize("routers", [1, 2, 3])
async def test_the_limit_counts_over_all_routers_while_one_is_killed(routers: int) -> None:
    limits = TenantLimits(requests_per_minute=600, burst_requests=20)
    now = asyncio.get_running_loop().time
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running_server(simulated()))
        config = limited(replica_of(server), limits=limits)
        stacks = [await stack.enter_async_context(AsyncExitStack()) for _ in range(routers)]
        all_routers = [
            await each.enter_async_context(running(config, timing=QUICK)) for each in stacks
        ]
        introduce(*all_routers)
        for router in all_routers:
            await routable(router, 1)
        await until(
            lambda: len({router.rooms.intake.limit_parts.epoch for router in all_routers}) == 1,
            "all routers to be in one epoch",
        )
        asked = await stack.enter_async_context(clients(*all_routers))
        admitted = refused = 0

        async def flood(client: httpx.AsyncClient, pause_s: float) -> None:
            nonlocal admitted, refused
            while True:
                try:
                    response = await complete(client)
                except httpx.HTTPError:
                    return  # this router was killed
                admitted += response.status_code == 200
                if response.status_code != 200:
                    refused += 1
                    assert response.status_code == 429, response.text
                    assert int(response.headers["retry-after"]) >= 1
                await asyncio.sleep(pause_s)

        began_s = now()
        # Most requests enter at the first router, and the last one is killed.
        tasks = [
            asyncio.create_task(flood(client, 0.01 if n == 0 else 0.1))
            for n, client in enumerate(asked)
        ]
        await asyncio.sleep(3.0)
        if routers > 1:
            await stacks[-1].aclose()
        await asyncio.sleep(6.0)
        elapsed_s = now() - began_s
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert admitted <= 20 + 10 * elapsed_s + 1
        assert admitted >= min(0.5 * 10 * elapsed_s, 0.5 * (admitted + refused))
        left = all_routers[: max(1, routers - 1)]
        await until(  # a part may be on its way between two routers
            lambda: sum(part_of(router, "requests") for router in left) == pytest.approx(1.0),
            "the whole limit at the routers that are left",
        )


async def test_tokens_are_settled_at_the_end_of_a_request_also_at_another_router() -> None:
    limits = TenantLimits(tokens_per_minute=600, burst_tokens=100)
    async with running_server(simulated()) as server:
        config = limited(replica_of(server), limits=limits)
        async with (
            running(config, timing=QUICK) as one,
            running(config, timing=QUICK) as two,
            clients(one, two) as (first, second),
        ):
            introduce(one, two)
            for router in (one, two):
                await routable(router, 1)
            await until(
                lambda: one.rooms.intake.limit_parts.epoch == two.rooms.intake.limit_parts.epoch,
                "one epoch",
            )
            # The estimate of its input is a few tokens; its 300 output tokens leave a debt of about 200.
            assert (await complete(first, tokens=300)).status_code == 200
            for client in (first, second):
                response = await complete(client)
                assert response.status_code == 429, response.text
                assert response.json()["error"]["code"] == "tokens_per_minute"
            assert int((await complete(first)).headers["retry-after"]) >= 10


async def test_concurrent_requests_count_over_all_routers() -> None:
    limits = TenantLimits(max_concurrent=3)
    async with running_server(simulated(speed=1.0)) as server:
        config = limited(replica_of(server), limits=limits)
        async with (
            running(config, timing=QUICK) as one,
            running(config, timing=QUICK) as two,
            clients(one, two) as (first, second),
        ):
            introduce(one, two)
            for router in (one, two):
                await routable(router, 1)
            await until(
                lambda: one.rooms.intake.limit_parts.epoch == two.rooms.intake.limit_parts.epoch,
                "one epoch",
            )
            async with asyncio.TaskGroup() as group:
                ones = [group.create_task(complete(first, tokens=2000)) for _ in range(2)]
                await until(lambda: one.rooms.intake.admission.running == 2, "two requests")
                twos = [group.create_task(complete(second, tokens=2000))]
                await until(
                    lambda: two.rooms.intake.admission.running == 1, "a third one, elsewhere"
                )
                for client in (first, second):
                    response = await complete(client)
                    assert response.status_code == 429
                    assert response.json()["error"]["code"] == "max_concurrent"
                for task in (*ones, *twos):
                    task.cancel()
            await until(lambda: not one.rooms.intake.admission.running, "the end of two requests")
            assert (await complete(second)).status_code == 200


async def test_a_router_of_the_previous_version_counts_as_one_without_parts() -> None:
    app = web.Application()  # answers 404 to a path that it does not know
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    limits = TenantLimits(requests_per_minute=60)
    try:
        old = PeerConfig(name="old", url=f"http://127.0.0.1:{runner.addresses[0][1]}")
        state = StateConfig(peers=(old,), exchange_interval_s=0.1)
        config = limited(limits=limits, state=state)
        async with running(config, timing=QUICK) as router:
            await until(lambda: router.rooms.intake.limit_parts.has_entered, "the whole limit")
    finally:
        await runner.cleanup()


async def test_a_client_has_the_default_of_its_tenant_at_a_real_router() -> None:
    limits = TenantLimits(default_client=ClientLimits(requests_per_minute=1))
    async with running_server(simulated()) as server:
        config = limited(replica_of(server), limits=limits)
        async with running(config, timing=QUICK) as router, httpx.AsyncClient() as client:
            await routable(router, 1)
            body = {"model": MODEL, "prompt": "x", "max_tokens": 1}
            headers = {"Authorization": f"Bearer {KEY}"}
            url = f"{router.url}/v1/completions"
            first = await client.post(url, json=body, headers=headers, timeout=PATIENCE_S)
            second = await client.post(url, json=body, headers=headers, timeout=PATIENCE_S)
    assert (first.status_code, second.status_code) == (200, 429)
    assert second.json()["error"]["code"] == "requests_per_minute"
    assert "The client" in second.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "code"), [(LIMITS_PATH, "invalid_limits"), (PLACES_PATH, "invalid_places")]
)
async def test_an_exchange_without_the_token_or_with_a_bad_body_is_refused(
    path: str, code: str
) -> None:
    config = limited(limits=TenantLimits(), admin_token_sha256=sha256("secret"))
    async with running(config, timing=QUICK) as router, httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{router.admin_port}{path}"
        assert (await client.post(url, content=b"")).status_code == 401
        auth = {"Authorization": "Bearer secret"}
        for bad in (b"", b"\x01", b"\x01garbage", b"\x02\x90"):
            response = await client.post(url, content=bad, headers=auth)
            assert (response.status_code, response.json()["error"]["code"]) == (400, code)


async def test_the_exact_count_of_a_prompt_replaces_its_estimate_while_it_runs() -> None:
    prompt = "a " * 300
    exact, body = len(encode(prompt)), {"model": MODEL, "prompt": prompt, "max_tokens": 2000}
    estimate = len(prompt) // 4
    assert exact > 1.5 * estimate
    # The estimate leaves some of the burst free, the exact count does not.
    limits = TenantLimits(tokens_per_minute=60, burst_tokens=(exact + estimate) // 2)
    async with running_server(simulated(speed=1.0)) as server:
        prefix = PrefixConfig(mode=PrefixMode.TOKENS, tokenizer=SIMULATOR_TOKENIZER)
        config = limited(replica_of(server), limits=limits, prefix=prefix)
        async with running(config, timing=QUICK) as router, clients(router) as (client,):
            await routable(router, 1)
            task = asyncio.create_task(
                client.post("/v1/completions", json=body | {"ignore_eos": True})
            )
            fleet = router.rooms.replicas.fleet
            await until(lambda: any(fleet.load(member) for member in fleet), "a dispatch")
            response = await complete(client)
            assert response.status_code == 429, response.text
            assert response.json()["error"]["code"] == "tokens_per_minute"
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
