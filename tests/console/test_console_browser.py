"""The console in a real Chromium against live routers (`make test-console`).

The scenarios are in `console/tests/browser.mjs`. The pictures of docs/how-to/console.md come from the last one; it takes minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from evenkeel_contract.routerconfig import (
    ApiKeyConfig,
    ClientConfig,
    FleetPolicyName,
    ListenConfig,
    PoolConfig,
    RouterConfig,
    SchedulingConfig,
    TenantConfig,
    TenantLimits,
)
from evenkeel_router.api.identity import client_of
from evenkeel_router.app import Router, running
from evenkeel_simulator.engine.profiles import PROFILES
from evenkeel_simulator.server.app import running_server

from tests.support.browser import CHROMIUM, CONSOLE_MARKS
from tests.support.nasty import Asked, nasty
from tests.support.ports import free_ports
from tests.support.routers import (
    KEY,
    MODEL,
    PATIENCE_S,
    QUICK,
    config_for,
    fleet,
    replica_of,
    routable,
    router_of,
    sha256,
    simulated,
    tenancy,
)

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "console/tests/browser.mjs"
TIMING = replace(QUICK, console_tick_s=0.05)
CLIENT = "acme/chat"
IDENTITY = "ns/acme/chat"

pytestmark = CONSOLE_MARKS

Acts = Mapping[str, Callable[[], Awaitable[object]]]


async def play(scenario: str, acts: Acts | None = None, **given: Any) -> str:
    """Run a scenario to its end; returns its output. `acts`: what the test does at each word that the scenario writes."""
    process = await asyncio.create_subprocess_exec(
        "node",
        str(SCRIPT),
        scenario,
        json.dumps({"chromium": CHROMIUM, "client": CLIENT, "identity": IDENTITY} | given),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None and process.stdin is not None
    output = ""
    try:
        async for line in process.stdout:
            output += line.decode()
            act = (acts or {}).get(line.decode().strip())
            if act is not None:
                await act()
                process.stdin.write(b"done\n")
        assert await process.wait() == 0, output
        sys.stdout.write(output)  # figures, for `pytest -s`
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output


def admin_of(router: Router) -> str:
    return f"http://127.0.0.1:{router.admin_port}"


@asynccontextmanager
async def busy(router: Router, model: str = MODEL) -> AsyncIterator[None]:
    """Requests of two clients, until the end."""

    async def send(headers: dict[str, str]) -> None:
        chance = random.Random(1)
        async with httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S) as client:
            while True:
                body = {
                    "model": model,
                    "prompt": "x" * chance.randrange(50, 4000),
                    "max_tokens": 16,
                }
                with contextlib.suppress(httpx.HTTPError):
                    await client.post("/v1/completions", json=body, headers=headers)
                await asyncio.sleep(0.02)

    tasks = [
        asyncio.create_task(send({"Authorization": f"Bearer {KEY}"})),
        asyncio.create_task(send({})),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("scenario", ["live", "client"])
async def test_the_page_follows_a_live_fleet(scenario: str) -> None:
    async with fleet(2, timing=TIMING) as (router, _), busy(router):
        await play(scenario, admin=admin_of(router))


async def test_a_wrong_token_is_refused_and_the_right_one_stays_in_its_tab() -> None:
    async with fleet(1, timing=TIMING, admin_token_sha256=sha256("right")) as (router, _):
        await play("token", admin=admin_of(router), token="right")


async def test_a_tenant_sees_its_own_clients_only() -> None:
    async with fleet(1, timing=TIMING) as (router, _), busy(router):
        await play("tenant", traffic=router.url, key=KEY, other="anonymous")


async def test_the_page_survives_a_restart_of_its_router() -> None:
    async with running_server(simulated()) as server:
        traffic, probe, admin = free_ports(3)
        ports = ListenConfig(traffic_port=traffic, probe_port=probe, admin_port=admin)
        router = _Restarted(config_for(replica_of(server), listen=ports))
        await router.start()
        try:
            acts: Acts = {"stop": router.stop, "start": router.start}
            await play("restart", acts, admin=f"http://127.0.0.1:{admin}")
        finally:
            await router.stop()


class _Restarted:
    """A router that can be stopped and started again at the same ports."""

    def __init__(self, config: RouterConfig) -> None:
        self._config = config
        self._stack = contextlib.AsyncExitStack()

    async def start(self) -> Router:
        router = await self._stack.enter_async_context(running(self._config, timing=TIMING))
        await routable(router, len(self._config.replicas))
        return router

    async def stop(self) -> None:
        await self._stack.aclose()


SHOTS = os.environ.get("EVENKEEL_SHOTS", "")
"""A folder for the pictures that the scenarios take; empty: none."""


async def shown(scenario: str, router: Router, **given: Any) -> None:
    await play(scenario, admin=admin_of(router), traffic=router.url, shots=SHOTS, **given)


async def test_an_outage_is_shown_before_fairness() -> None:
    async def fail(asked: Asked) -> None:
        await asked.answer(b"{}", status="500 Internal Server Error")

    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(nasty(fail)) for _ in range(2)]
        config = config_for(*(one.config(f"r{n}") for n, one in enumerate(replicas)))
        router = await stack.enter_async_context(router_of(config, timing=TIMING))
        await stack.enter_async_context(busy(router))
        await shown("outage", router)


async def test_a_fleet_without_replicas_shows_who_waits() -> None:
    async with running(config_for(), timing=TIMING) as router, busy(router):
        await shown("empty", router)


async def test_a_hung_replica_is_named_and_its_requests_are_remembered() -> None:
    hangs = asyncio.Event()

    async def behave(asked: Asked) -> None:
        await (asked.hang() if hangs.is_set() else asked.whole_stream())

    body = {"model": MODEL, "prompt": "x" * 400, "max_tokens": 16, "stream": True}
    async with AsyncExitStack() as stack:
        replica = await stack.enter_async_context(nasty(behave))
        router = await stack.enter_async_context(
            router_of(config_for(replica.config("r0"), tenancy=tenancy()), timing=TIMING)
        )
        client = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=router.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=None
            )
        )
        for _ in range(20):
            assert (await client.post("/v1/completions", json=body)).status_code == 200
        hangs.set()
        tasks = [asyncio.create_task(client.post("/v1/completions", json=body)) for _ in range(8)]

        async def leave() -> None:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        await play("hung", {"leave": leave}, admin=admin_of(router), shots=SHOTS)


async def test_a_silent_router_is_not_called_fair() -> None:
    async with running_server(simulated()) as server:
        router = _Restarted(config_for(replica_of(server)))
        running_router = await router.start()
        async with busy(running_router):
            try:
                acts = {"stop": router.stop}
                await play("silent", acts, admin=admin_of(running_router), shots=SHOTS)
            finally:
                await router.stop()


CROWD = TenantConfig(
    namespace="ns",
    name="acme",
    clients=tuple(ClientConfig(name=name) for name in ("chat", "rerank", "flood")),
    api_keys=tuple(
        ApiKeyConfig(name=name, client=name, sha256=sha256(name))
        for name in ("chat", "rerank", "flood")
    ),
)


async def test_a_flood_under_lpm_shows_who_takes_and_who_is_hurt() -> None:
    settings = simulated(replica_policy="LPM", speed=1.0, profile=PROFILES["a10g-llama2-7b"])
    changes: dict[str, Any] = {
        "tenancy": tenancy(tenants=(CROWD,)),
        "scheduling": SchedulingConfig(fleet_policy=FleetPolicyName.ROUND_ROBIN),
    }
    timing = replace(QUICK, console_tick_s=0.5)
    async with fleet(1, settings=settings, timing=timing, **changes) as (router, _):
        tasks = [
            asyncio.create_task(_flooding(router, name, number))
            for name, number in (("flood", 150), ("chat", 3), ("rerank", 3))
        ]
        try:
            await shown("flood", router)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _flooding(router: Router, name: str, at_once: int) -> None:
    """So many requests at a time; those of one client begin alike."""

    async def again(client: httpx.AsyncClient) -> None:
        while True:
            body = {"model": MODEL, "prompt": f"{name} " * 600, "max_tokens": 120, "stream": True}
            with contextlib.suppress(httpx.HTTPError):
                await client.post("/v1/completions", json=body)

    limits = httpx.Limits(max_connections=at_once)
    headers = {"Authorization": f"Bearer {name}"}
    async with httpx.AsyncClient(
        base_url=router.url, headers=headers, limits=limits, timeout=None
    ) as client:
        await asyncio.gather(*(again(client) for _ in range(at_once)))


async def test_two_hundred_clients_fit_a_screen() -> None:
    async with fleet(1, timing=replace(TIMING, console_tick_s=0.2)) as (router, _):
        feeding = asyncio.create_task(_feed(router, 200))
        try:
            await shown("crowd", router)
        finally:
            feeding.cancel()


async def test_a_slow_request_is_explained() -> None:
    acme, *_ = tenancy().tenants
    limited = replace(acme, limits=TenantLimits(requests_per_minute=600))
    config = {"tenancy": tenancy(tenants=(limited,))}
    async with (
        fleet(1, timing=TIMING, **config) as (router, _),
        httpx.AsyncClient(base_url=router.url) as client,
    ):
        for name, headers in (("theirs", {}), ("slow-1", {"Authorization": f"Bearer {KEY}"})):
            body = {"model": MODEL, "prompt": "x" * 3000, "max_tokens": 20, "stream": True}
            answer = await client.post(
                "/v1/completions", json=body, headers=headers | {"x-request-id": name}
            )
            assert answer.status_code == 200
        given = {"id": "slow-1", "others_id": "theirs", "key": KEY, "other": "anonymous"}
        await shown("why", router, **given)


RIVAL = TenantConfig(
    namespace="ns",
    name="rival",
    clients=(ClientConfig(name="app"),),
    api_keys=(ApiKeyConfig(name="k", client="app", sha256=sha256("sk-rival")),),
)


async def test_each_of_several_models_can_be_chosen() -> None:
    async with AsyncExitStack() as stack:
        pools = []
        for service, model, more in (
            ("big", "big-70b", {"names": ("smart",)}),
            ("small", "small-8b", {"tenants": ("acme",)}),
        ):
            server = await stack.enter_async_context(running_server(simulated(model=model)))
            replicas = (replica_of(server, f"{service}-0"),)
            pools.append(PoolConfig(service=service, model=model, replicas=replicas, **more))
        config = config_for(
            service="all",
            model="all",
            pools=tuple(pools),
            tenancy=tenancy(tenants=(*tenancy().tenants, RIVAL)),
        )
        router = await stack.enter_async_context(running(config, timing=TIMING))
        for model in ("smart", "small-8b"):
            await stack.enter_async_context(busy(router, model))
        await shown("models", router, key=KEY, other_key="sk-rival")


async def test_a_thousand_clients_are_shown_a_page_at_a_time() -> None:
    async with fleet(1, timing=replace(TIMING, console_tick_s=0.2)) as (router, _):
        feeding = asyncio.create_task(_feed(router, 1000))
        try:
            await play("many", admin=admin_of(router), clients=1000)
        finally:
            feeding.cancel()


async def _feed(router: Router, number: int) -> None:
    """Totals of so many clients grow, as if they were served."""
    rooms, chance = router.rooms, random.Random(1)
    clients = [
        client_of(TenantConfig(namespace="ns", name=f"tenant-{n % 20}"), f"client-{n}")
        for n in range(number - 2)  # two are declared
    ]
    while True:
        for client in clients:
            totals = rooms.totals.of(client)
            totals.requests += 1
            totals.output_tokens += chance.randrange(200)
            totals.ended(0.5, chance.random())
            rooms.service_ledger.ledger.received("earlier", client.identity, chance.random() * 99)
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("scenario", ["axe", "problems"])
async def test_axe_finds_nothing_in_light_dark_and_on_a_phone(scenario: str) -> None:
    async with fleet(2, timing=TIMING) as (router, _), busy(router):
        await play(scenario, admin=admin_of(router), traffic=router.url)


PICTURES = ROOT / "docs/images"
ORDINARY = ("ads/chat", "ads/batch", "search/rerank", "support/agent")
FLOODER = "research/notebook"
QUIET_S, SHOT_S, END_S = 60, 180, 230
"""The flood begins; the pictures are taken; the requests end."""


@pytest.mark.skipif(
    "EVENKEEL_PICTURES" not in os.environ, reason="writes docs/images; set EVENKEEL_PICTURES=1"
)
async def test_the_pictures_of_the_documentation(tmp_path: Path) -> None:
    """A fleet of three slow replicas, so that little work fills them; one client sends twenty times as much as each other."""
    text = (ROOT / "examples/quickstart.yaml").read_text()
    file = tmp_path / "quickstart.yaml"
    file.write_text(
        text.replace("--profile=a100-llama3.1-8b", "--profile=a10g-llama2-7b\n      - --speed=0.6")
    )
    trace = tmp_path / "trace.csv"
    trace.write_text(_trace())
    with _evenkeel(
        tmp_path / "up.log", "up", str(file), "--port=0", f"--state-dir={tmp_path}"
    ) as up:
        admin = _printed(up, r"console (http://\S+)/console/")
        url = _printed(up, r"router  (http://\S+)/v1")
        log = tmp_path / "replay.log"
        arguments = ("replay", "--trace", str(trace), "--api-keys", str(file), "--url", url)
        with _evenkeel(log, *arguments):
            await asyncio.sleep(SHOT_S)
            await play(
                "pictures", admin=admin, identity="default/research/notebook", folder=str(PICTURES)
            )


def _trace() -> str:
    """Poisson arrivals: 0.5 requests/s of each ordinary client, and after a while 10 of the flooder. As in the demo, a prompt is
    one of four blocks of its client and a question."""
    chance, rows = random.Random(7), []
    loads = [(name, 0.5, 0.0) for name in ORDINARY] + [(FLOODER, 10.0, float(QUIET_S))]
    for at, (name, per_s, begin_s) in enumerate(loads):
        arrival_s = begin_s + chance.expovariate(per_s)
        while arrival_s < END_S:
            tokens, answer = 512 + chance.randrange(32, 160), chance.randrange(32, 96)
            blocks = f"{4 * at + chance.randrange(4)} {100 + len(rows)}"
            rows.append((arrival_s, f"{name},{arrival_s:.3f},{tokens},{answer},{blocks}"))
            arrival_s += chance.expovariate(per_s)
    lines = (line for _, line in sorted(rows))
    return "\n".join(["client,arrival_s,input_tokens,output_tokens,hash_ids", *lines, ""])


@contextmanager
def _evenkeel(log: Path, *arguments: str) -> Iterator[Path]:
    """A command that runs until the end of the context; yields its output."""
    command = "from evenkeel_cli.main import main; main()"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", command, *arguments],
            cwd=log.parent,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
        )
    try:
        yield log
    finally:
        process.terminate()
        process.wait(30)


def _printed(log: Path, pattern: str) -> str:
    deadline_s = time.monotonic() + 60
    while True:
        if found := re.search(pattern, log.read_text()):
            return found[1]
        assert time.monotonic() < deadline_s, log.read_text()
        time.sleep(0.1)
