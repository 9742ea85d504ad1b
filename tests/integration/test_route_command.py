"""`evenkeel route` as a process, in front of engines that know nothing of Evenkeel."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest
from evenkeel_contract.adminstate import STATE_PATH, RouterState, decode_state
from evenkeel_simulator.engine.config import EngineConfig
from evenkeel_simulator.server.settings import Settings

from tests.support.plain_engine import PlainEngine, plain_engine
from tests.support.ports import free_ports
from tests.support.routers import PATIENCE_S, simulated, until

pytestmark = pytest.mark.usefixtures("source_path")

IN_BATCH, FLOOD = 8, 24
PROGRAM = "from evenkeel_cli.main import main; main()"


def unfair(**changes: object) -> Settings:
    """An engine that serves first come, first served, and reports nothing."""
    given: dict[str, object] = {
        "replica_policy": "FCFS",
        "reports_port": None,
        "engine": EngineConfig(max_running=IN_BATCH),
        "speed": 2.0,
    }
    return simulated(**(given | changes))


class Route:
    """One `evenkeel route`, and what it writes."""

    def __init__(self, started: asyncio.subprocess.Process, ports: list[int]) -> None:
        self.process = started
        self.traffic, self.probe, self.admin = (f"http://127.0.0.1:{port}" for port in ports)
        self.output = ""

    async def read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.output += line.decode()

    async def until(self, *, routable: int) -> RouterState:
        """Wait until so many replicas take requests."""
        async with asyncio.timeout(PATIENCE_S), httpx.AsyncClient(trust_env=False) as client:
            while True:
                assert self.process.returncode is None, self.output
                try:
                    answer = await client.get(self.admin + STATE_PATH)
                    state = decode_state(answer.raise_for_status().content)
                    if sum(one.routable for one in state.replicas) == routable:
                        return state
                except httpx.HTTPError:
                    pass
                await asyncio.sleep(0.02)


@asynccontextmanager
async def routed(*arguments: str) -> AsyncIterator[Route]:
    """A router with free ports; killed at the end if it still runs."""
    ports = free_ports(3)
    flags = (
        f"--{name}={port}"
        for name, port in zip(("port", "probe-port", "admin-port"), ports, strict=True)
    )
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, "route", *arguments, *flags,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    route = Route(started, ports)
    reading = asyncio.create_task(route.read())
    try:
        yield route
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()
        await reading


async def ask(
    client: httpx.AsyncClient, key: str, number: int = 0, **changes: object
) -> httpx.Response:
    body = {
        "model": "llama",
        "prompt": f"{key} {number} " * 8,
        "max_tokens": 32,
        "stream": True,
        "ignore_eos": True,
    }
    headers = {"Authorization": f"Bearer {key}"}
    return await client.post("/v1/completions", json=body | changes, headers=headers)


def caller(route: Route) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(
        base_url=route.traffic, timeout=PATIENCE_S, limits=limits, trust_env=False
    )


async def flood(client: httpx.AsyncClient, key: str, first: int, ended: dict[str, int]) -> None:
    number = first
    while True:
        response = await ask(client, key, number)
        assert response.status_code == 200, response.text
        ended[key] += 1
        number += FLOOD


async def test_weights_hold_in_front_of_engines_that_serve_first_come_first_served() -> None:
    async with (
        plain_engine(unfair()) as engine,
        routed(
            f"--replica={engine.url}",
            "--key=heavy=sk-h",
            "--key=light=sk-l",
            "--weight=light=4",
        ) as route,
    ):
        await route.until(routable=1)
        ended = {"sk-h": 0, "sk-l": 0}
        async with caller(route) as client:
            loads = [
                asyncio.create_task(flood(client, key, first, ended))
                for first in range(FLOOD)
                for key in ended
            ]
            try:
                await until(lambda: sum(ended.values()) > 5 * IN_BATCH, "the flood")
                before = dict(ended)
                want = sum(before.values()) + 40 * IN_BATCH
                await until(lambda: sum(ended.values()) >= want, "the service", patience_s=60)
                after = dict(ended)
            finally:
                for load in loads:
                    load.cancel()
                outcomes = await asyncio.gather(*loads, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in outcomes), outcomes
        given = {key: after[key] - before[key] for key in ended}
        assert given["sk-l"] / sum(given.values()) == pytest.approx(0.8, abs=0.05)


async def test_an_engine_that_dies_leaves_and_comes_back_and_no_request_is_lost() -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(plain_engine(unfair()))
        (port,) = free_ports(1)  # after the first engine has its own
        replicas = f"--replica={first.url}", f"--replica=http://127.0.0.1:{port}"
        route = await stack.enter_async_context(routed(*replicas, "--key=ads=sk-1"))
        client = await stack.enter_async_context(caller(route))
        await route.until(routable=1)
        async with plain_engine(unfair(), port=port):
            await route.until(routable=2)
        answers = await asyncio.gather(*(ask(client, "sk-1", n) for n in range(8)))
        await route.until(routable=1)
        async with plain_engine(unfair(), port=port):
            state = await route.until(routable=2)
    assert [answer.status_code for answer in answers] == [200] * 8
    assert {replica.name for replica in state.replicas} == {
        first.url.removeprefix("http://"), f"127.0.0.1:{port}"
    }  # fmt: skip


async def test_a_file_is_followed_and_a_signal_drains(tmp_path: Path) -> None:
    file = tmp_path / "route.yaml"
    async with plain_engine(unfair()) as first, plain_engine(unfair()) as second:
        file.write_text(_document([first], key="sk-1"))
        async with routed(str(file)) as route, caller(route) as client:
            await route.until(routable=1)
            assert (await ask(client, "sk-1")).status_code == 200
            file.write_text("replicas: []")
            fault = f"the last valid one stays in use: {file}:1: replicas: is required"
            await until(lambda: fault in route.output, "the fault")
            assert (await ask(client, "sk-1")).status_code == 200
            file.write_text(_document([first, second], key="sk-2"))
            await route.until(routable=2)
            assert (await ask(client, "sk-2")).status_code == 200
            assert (await ask(client, "sk-1")).status_code == 401
            stream = asyncio.create_task(ask(client, "sk-2", max_tokens=200))
            running = [one.replica.engine for one in (first, second)]
            await until(lambda: any([*engine.running()] for engine in running), "the stream")
            route.process.send_signal(signal.SIGTERM)
            assert "[DONE]" in (await stream).text
            assert await route.process.wait() == 0
    shown = re.findall(r"^(\w+)\s+(.*)$", route.output, re.MULTILINE)
    assert ("model", "llama") in shown


def _document(engines: list[PlainEngine], *, key: str) -> str:
    replicas = "".join(f"  - url: {engine.url}\n" for engine in engines)
    return f"replicas:\n{replicas}tenants:\n  - {{name: ads, keys: [{key}]}}\n"


async def test_two_models_in_one_file_are_served_at_one_address(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        big = await stack.enter_async_context(plain_engine(unfair(model="org/big-70b")))
        small = await stack.enter_async_context(plain_engine(unfair(model="small-8b")))
        file = tmp_path / "route.yaml"
        both = f"""
models:
- name: smart
  replicas: [{{url: {big.url}}}]
- replicas: [{{url: {small.url}}}]
tenants: [{{name: ads, keys: [sk-ads]}}]
"""
        file.write_text(both)
        route = await stack.enter_async_context(routed(str(file)))
        client = await stack.enter_async_context(caller(route))
        admin = await stack.enter_async_context(httpx.AsyncClient(base_url=route.admin))

        async def state() -> RouterState | None:
            try:
                return decode_state((await admin.get(STATE_PATH)).raise_for_status().content)
            except httpx.HTTPError:
                return None

        async def until_routable(models: list[str]) -> None:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    assert route.process.returncode is None, route.output
                    found = await state()
                    services = () if found is None else found.services
                    if sorted(
                        one.model for one in services if any(r.routable for r in one.replicas)
                    ) == sorted(models):
                        return
                    await asyncio.sleep(0.02)

        await until_routable(["org/big-70b", "small-8b"])
        for name, engine in (("smart", big), ("small-8b", small)):
            answer = await ask(client, "sk-ads", model=name)
            assert answer.status_code == 200, answer.text
            assert sum(one.requests for one in engine.replica.engine.accounts.clients.values()) > 0
        listed = await client.get("/v1/models", headers={"Authorization": "Bearer sk-ads"})
        assert [card["id"] for card in listed.json()["data"]] == ["smart", "small-8b"]
        assert "model     smart" in route.output
        file.write_text(both.replace("- name: smart", "- name: clever"))
        async with asyncio.timeout(PATIENCE_S):
            while (await ask(client, "sk-ads", model="clever")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert (await ask(client, "sk-ads", model="smart")).status_code == 404
