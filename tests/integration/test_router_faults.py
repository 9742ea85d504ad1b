"""A fault of the router itself: one of its background tasks ends with an exception."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterator

import httpx
import pytest
from evenkeel_router.app import running
from evenkeel_router.process import until_signalled
from evenkeel_router.telemetry.recorder import Recorder
from evenkeel_simulator.server.app import running_server

from tests.support.routers import (
    KEY,
    MODEL,
    PATIENCE_S,
    config_for,
    replica_of,
    routable,
    simulated,
)

TOKENS = 40


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """A router as a process changes the settings of the garbage collector."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


async def test_a_router_with_a_failed_task_finishes_what_runs_and_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fault = asyncio.Event()

    async def fails(_: Recorder) -> None:
        await fault.wait()
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(Recorder, "run", fails)
    headers = {"Authorization": f"Bearer {KEY}"}
    body = {"model": MODEL, "prompt": "x", "max_tokens": TOKENS, "stream": True}
    texts = 0
    async with (
        running_server(simulated(speed=0.5)) as server,
        running(config_for(replica_of(server, "r1"))) as router,
        httpx.AsyncClient(timeout=PATIENCE_S, headers=headers) as client,
        asyncio.timeout(PATIENCE_S),
    ):
        await routable(router, 1)
        ended = asyncio.create_task(until_signalled(router, asyncio.Queue()))
        url = f"{router.url}/v1/completions"
        async with client.stream("POST", url, json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    texts += bool(json.loads(line.removeprefix("data: "))["choices"][0]["text"])
                    fault.set()
        assert await ended == 1
    assert texts == TOKENS
    assert "a background task failed" in caplog.text
