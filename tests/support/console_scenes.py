"""Situations that the console is asked about: real routers, replicas that answer, fail or hang, and clients that send."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from evenkeel_contract.routerconfig import (
    ApiKeyConfig,
    ClientConfig,
    FleetPolicyName,
    LimitsConfig,
    ReplicaConfig,
    SchedulingConfig,
    TenantConfig,
    TenantLimits,
)
from evenkeel_router.app import Router, running
from evenkeel_simulator.engine.profiles import PROFILES

from tests.support.nasty import EVENT, Asked, nasty
from tests.support.ports import free_ports
from tests.support.routers import (
    MODEL,
    QUICK,
    config_for,
    fleet,
    router_of,
    sha256,
    simulated,
    tenancy,
)

TIMING = replace(QUICK, console_tick_s=0.5)
RUNBOOKS = (Path(__file__).parents[2] / "docs/runbooks").as_uri()


@dataclass(frozen=True)
class Scene:
    """Where its router answers, and a key of one of its tenants."""

    admin: str
    traffic: str
    key: str = ""
    stop_router: Callable[[], Awaitable[None]] | None = None


@dataclass(frozen=True)
class Load:
    """A client that keeps so many requests under way; its prompts begin alike."""

    key: str
    at_once: int
    prompt_words: int = 600
    output_tokens: int = 120
    pause_s: float = 0.0


def _tenant(name: str, *clients: str, **given: Any) -> TenantConfig:
    """A tenant whose clients have keys of their own names."""
    keys = tuple(ApiKeyConfig(name=one, client=one, sha256=sha256(one)) for one in clients)
    return TenantConfig(
        namespace="ns",
        name=name,
        clients=tuple(ClientConfig(name=one) for one in clients),
        api_keys=keys,
        **given,
    )


ACME = _tenant("acme", "chat", "rerank")
RESEARCH = _tenant("research", "notebook")
ORDINARY = (Load("chat", 2), Load("rerank", 2))
FAIL = ("t3-c1", "t7-c7", "t11-c4", "t15-c0", "t19-c9")
"""Clients of a crowd whose requests fail."""


@asynccontextmanager
async def sending(url: str, *loads: Load) -> AsyncIterator[None]:
    """These clients send until the end."""

    async def again(client: httpx.AsyncClient, load: Load) -> None:
        body = {
            "model": MODEL,
            "prompt": f"{load.key} " * load.prompt_words,
            "max_tokens": load.output_tokens,
            "stream": True,
        }
        while True:
            with contextlib.suppress(httpx.HTTPError):
                await client.post("/v1/completions", json=body)
            await asyncio.sleep(load.pause_s)

    async with AsyncExitStack() as stack:
        tasks = []
        for load in loads:
            client = await stack.enter_async_context(
                httpx.AsyncClient(
                    base_url=url,
                    headers={"Authorization": f"Bearer {load.key}"},
                    limits=httpx.Limits(max_connections=load.at_once),
                    timeout=None,
                )
            )
            tasks += [asyncio.create_task(again(client, load)) for _ in range(load.at_once)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _scene(router: Router, **given: Any) -> Scene:
    return Scene(f"http://127.0.0.1:{router.admin_port}", router.url, **given)


async def _fail(asked: Asked) -> None:
    await asked.answer(b"{}", status="500 Internal Server Error")


async def _answer(asked: Asked) -> None:
    """In half a second, as a stream."""
    await asyncio.sleep(0.5)
    await asked.whole_stream()


async def _cut_long_ones(asked: Asked) -> None:
    """Streams of long prompts end in their middle."""
    if len(asked.body) < 4000:
        return await _answer(asked)
    await asked.begin_stream(EVENT)
    asked.reset()
    return None


@asynccontextmanager
async def outage() -> AsyncIterator[Scene]:
    """Both replicas answer 500 to every request."""
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(nasty(_fail)) for _ in range(2)]
        named = (one.config(f"r{n}") for n, one in enumerate(replicas))
        config = config_for(*named, tenancy=tenancy(tenants=(ACME, RESEARCH)), runbooks=RUNBOOKS)
        router = await stack.enter_async_context(router_of(config, timing=TIMING))
        await stack.enter_async_context(sending(router.url, *ORDINARY))
        yield _scene(router, key="chat")


@asynccontextmanager
async def empty() -> AsyncIterator[Scene]:
    """There is no replica."""
    config = config_for(tenancy=tenancy(tenants=(ACME, RESEARCH)))
    async with running(config, timing=TIMING) as router, sending(router.url, *ORDINARY):
        yield _scene(router, key="chat")


@asynccontextmanager
async def silent() -> AsyncIterator[Scene]:
    """The router stops while the page is open."""
    async with AsyncExitStack() as stack:
        replica = await stack.enter_async_context(nasty(_answer))
        config = config_for(replica.config("r0"), tenancy=tenancy(tenants=(ACME, RESEARCH)))
        inner = await stack.enter_async_context(AsyncExitStack())
        router = await inner.enter_async_context(router_of(config, timing=TIMING))
        await stack.enter_async_context(sending(router.url, *ORDINARY))
        yield _scene(router, key="chat", stop_router=inner.aclose)


@asynccontextmanager
async def flood(order: str = "LPM", at_once: int = 150) -> AsyncIterator[Scene]:
    """One replica with this order, a router with round robin: research/notebook floods acme/chat and acme/rerank."""
    settings = simulated(replica_policy=order, speed=1.0, profile=PROFILES["a10g-llama2-7b"])
    changes: dict[str, Any] = {
        "tenancy": tenancy(tenants=(ACME, RESEARCH)),
        "scheduling": SchedulingConfig(fleet_policy=FleetPolicyName.ROUND_ROBIN),
        "limits": LimitsConfig(
            first_token_timeout_s=3600.0
        ),  # who is hurt waits, and does not fail
    }
    async with (
        fleet(1, settings=settings, timing=TIMING, **changes) as (router, _),
        sending(router.url, Load("notebook", at_once), Load("chat", 3), Load("rerank", 3)),
    ):
        yield _scene(router, key="chat")


@asynccontextmanager
async def bad_replica() -> AsyncIterator[Scene]:
    """Of four replicas two answer, one fails, one loads, and nothing listens at the fifth address."""
    (port,) = free_ports(1)
    async with AsyncExitStack() as stack:
        given = {"r0": _answer, "r1": _answer, "r2": _fail, "r3": _answer}
        named = []
        for name, behave in given.items():
            replica = await stack.enter_async_context(nasty(behave))
            replica.ready = name != "r3"
            named.append(replica.config(name))
        named.append(ReplicaConfig(name="r4", url=f"http://127.0.0.1:{port}"))
        config = config_for(*named, tenancy=tenancy(tenants=(ACME, RESEARCH)))
        router = await stack.enter_async_context(running(config, timing=TIMING))
        await stack.enter_async_context(
            sending(router.url, *(replace(one, at_once=8) for one in ORDINARY))
        )
        yield _scene(router, key="chat")


@asynccontextmanager
async def crowd() -> AsyncIterator[Scene]:
    """Two hundred clients of twenty tenants; the requests of five of them fail."""
    names = [[f"t{tenant}-c{n}" for n in range(10)] for tenant in range(20)]
    tenants = tuple(_tenant(f"tenant-{n}", *clients) for n, clients in enumerate(names))
    every = [one for clients in names for one in clients]
    loads = [
        Load(one, 1, prompt_words=900 if one in FAIL else 40, pause_s=8 if one in FAIL else 4)
        for one in every
    ]
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(nasty(_cut_long_ones)) for _ in range(2)]
        named = (one.config(f"r{n}") for n, one in enumerate(replicas))
        config = config_for(*named, tenancy=tenancy(tenants=tenants))
        router = await stack.enter_async_context(router_of(config, timing=TIMING))
        await stack.enter_async_context(sending(router.url, *loads))
        yield _scene(router, key=every[0])


@asynccontextmanager
async def explained() -> AsyncIterator[Scene]:
    """The flood of a replica with order of arrival, and a request of acme/chat with the id `abc` that has ended in it."""
    async with (
        flood("FCFS", 60) as scene,
        httpx.AsyncClient(base_url=scene.traffic, timeout=None) as client,
    ):
        await asyncio.sleep(5)  # the flood is under way
        body = {"model": MODEL, "prompt": "abc " * 300, "max_tokens": 40, "stream": True}
        headers = {"Authorization": "Bearer chat", "x-request-id": "abc"}
        answer = await client.post("/v1/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        yield scene


@asynccontextmanager
async def failing() -> AsyncIterator[Scene]:
    """Streams of long prompts are cut, so some requests of acme/rerank fail; requests of acme/chat succeed."""
    async with AsyncExitStack() as stack:
        replica = await stack.enter_async_context(nasty(_cut_long_ones))
        config = config_for(replica.config("r0"), tenancy=tenancy(tenants=(ACME, RESEARCH)))
        router = await stack.enter_async_context(router_of(config, timing=TIMING))
        loads = (
            Load("chat", 2, prompt_words=50, pause_s=0.5),
            Load("rerank", 1, prompt_words=50, pause_s=0.5),
            Load("rerank", 1, prompt_words=900, pause_s=5.0),
        )
        await stack.enter_async_context(sending(router.url, *loads))
        yield _scene(router, key="chat")


@asynccontextmanager
async def limited() -> AsyncIterator[Scene]:
    """A tenant that has used part of its limits."""
    limits = TenantLimits(requests_per_minute=120, tokens_per_minute=200_000)
    changes = {"tenancy": tenancy(tenants=(replace(ACME, limits=limits), RESEARCH))}
    loads = (
        Load("chat", 2, prompt_words=100, pause_s=0.5),
        Load("rerank", 2, prompt_words=100, pause_s=0.5),
        Load("notebook", 2, prompt_words=100),
    )
    settings = simulated(speed=1.0)
    async with (
        fleet(2, settings=settings, timing=TIMING, **changes) as (router, _),
        sending(router.url, *loads),
    ):
        yield _scene(router, key="chat")


SCENES: Mapping[str, Callable[[], contextlib.AbstractAsyncContextManager[Scene]]] = {
    one.__name__: one
    for one in (
        outage,
        empty,
        silent,
        flood,
        bad_replica,
        crowd,
        explained,
        failing,
        limited,
    )
}
