"""The replica as a process: where it says it listens, how it ends, and what it says of wrong flags."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.support.replicas import DEADLINE_S

ENDLESS = {"prompt": "go on", "max_tokens": 9000, "ignore_eos": True, "stream": True}


@asynccontextmanager
async def started(*flags: str) -> AsyncIterator[Process]:
    """The command with these flags; killed in the end if it has not ended by itself."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = (sys.executable, "-m", "evenkeel_simulator.server", *flags)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=PIPE, stderr=PIPE, env=environment
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@asynccontextmanager
async def serving(*flags: str) -> AsyncIterator[tuple[Process, dict[str, Any], httpx.AsyncClient]]:
    """A replica that listens: the process, what it announced, and a client of it."""
    async with started("--model", "sim", "--port", "0", *flags) as process:
        assert process.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            where = json.loads(await process.stdout.readline())
        async with httpx.AsyncClient(base_url=where["url"], timeout=DEADLINE_S) as client:
            yield process, where, client


async def ended(process: Process) -> tuple[int, str]:
    """Exit status and standard error of a process that ends by itself."""
    async with asyncio.timeout(DEADLINE_S):
        _, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, errors.decode()


async def test_it_announces_the_ports_that_the_system_chose() -> None:
    flags = ("--kv-events-port", "0", "--reports-port", "0")
    async with serving(*flags) as (_, where, client):
        assert (await client.get("/ready")).status_code == 200
        ports = {where[name].rsplit(":", 1)[1] for name in ("url", "reports", "kv_events")}
        assert len(ports) == 3 and "0" not in ports
        assert where["incarnation"]


async def draining(client: httpx.AsyncClient) -> None:
    """Wait until the server shows that it heard a signal."""
    async with asyncio.timeout(DEADLINE_S):
        while (await client.get("/health")).status_code != 503:  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_what_runs_and_what_still_comes(name: signal.Signals) -> None:
    async with serving("--speed", "50", "--kv-tokens", "100000") as (process, _, client):
        endless = {**ENDLESS, "max_tokens": 90_000}
        async with client.stream("POST", "/v1/completions", json=endless) as kept:
            lines = kept.aiter_lines()
            await anext(lines)
            wish = {**ENDLESS, "max_tokens": 1500, "stream": False}
            running = asyncio.create_task(client.post("/v1/completions", json=wish))
            await running_requests(client, 2)
            process.send_signal(name)
            await draining(client)
            assert (await client.get("/ready")).status_code == 503
            wish = {"prompt": "a", "max_tokens": 3}
            assert (await client.post("/v1/completions", json=wish)).status_code == 200
            assert (await running).json()["usage"]["completion_tokens"] == 1500
            assert process.returncode is None
        status, errors = await ended(process)
        assert status == 0
        assert "Traceback" not in errors


async def running_requests(client: httpx.AsyncClient, count: int) -> None:
    """Wait until the replica runs so many."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            [load] = (await client.get("/v1/loads")).json()["loads"]
            if load["num_running_reqs"] == count:
                return


async def test_a_second_signal_ends_it_at_once() -> None:
    async with serving() as (process, _, client):
        async with client.stream("POST", "/v1/completions", json=ENDLESS) as running:
            lines = running.aiter_lines()
            await anext(lines)
            process.terminate()
            await draining(client)
            process.terminate()
            with pytest.raises(httpx.RemoteProtocolError):
                async for _ in lines:
                    pass
        status, errors = await ended(process)
        assert status == 0
        assert "Traceback" not in errors


async def test_a_port_that_is_taken_is_a_sentence() -> None:
    async with serving("--reports-port", "0") as (_, where, _):
        taken = where["url"].rsplit(":", 1)[1]
        async with started("--model", "sim", "--port", taken) as second:
            status, errors = await ended(second)
        assert status == 1
        assert "cannot listen" in errors and "Traceback" not in errors
        taken = where["reports"].rsplit(":", 1)[1]
        flags = ("--model", "sim", "--port", "0", "--reports-port", taken)
        async with started(*flags) as second:
            status, errors = await ended(second)
        assert status == 1
        assert "cannot listen" in errors and "Traceback" not in errors


async def test_a_wrong_flag_is_a_sentence_and_status_2() -> None:
    async with started("--model", "m", "--client-quantum", "0") as process:
        status, errors = await ended(process)
    assert status == 2
    assert "client_quantum is 0.0, must be positive" in errors
    assert "Traceback" not in errors
