"""A long prompt in chunks inside the real engine: requests of other clients enter between two chunks (design R13)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.sglang.engine import Engine, ask, tokens
from tests.sglang.shared import SharedEngine
from tests.sglang.ways import events
from tests.support.replicas import until

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]


def passes(trace: Path) -> int:
    """Passes so far that admitted a request."""
    if not trace.exists():
        return 0
    return sum(event["kind"] == "pass" and bool(event["admitted"]) for event in events(trace))


async def post(http: httpx.AsyncClient, body: dict[str, Any]) -> int:
    """The number of output tokens."""
    response = await http.post("/generate", json=body)
    return len(response.raise_for_status().json()["output_ids"])


@pytest.mark.parametrize("long_tokens", [3000, 6000], ids=["much memory", "little memory"])
async def test_requests_of_others_enter_between_two_chunks(
    chunked: SharedEngine, long_tokens: int
) -> None:
    """The prompt leaves more than half of the pool, or very little of it."""
    trace, rng = chunked.trace, random.Random(long_tokens)
    long_client, short_client = f"long-{long_tokens}", f"short-{long_tokens}"
    long = ask(long_client, tokens(rng, long_tokens), output_tokens=8)
    async with httpx.AsyncClient(base_url=chunked.url, timeout=600) as http:
        before = passes(trace)
        first = asyncio.create_task(post(http, long))
        await until(lambda: passes(trace) > before)
        cut = []
        for _ in range(5):
            # One that fits into a chunk, and one that has to be cut into chunks itself.
            short = ask(short_client, tokens(rng, 20), output_tokens=6)
            longer = ask(short_client, tokens(rng, 100), output_tokens=6)
            cut.append(asyncio.create_task(post(http, longer)))
            assert await post(http, short) == 6
            assert not first.done(), "the short request waited for all chunks"
        assert await first == 8
        assert await asyncio.gather(*cut) == [6] * len(cut)
        await chunked.idle(http)
        aborted = asyncio.create_task(post(http, ask(long_client, tokens(rng, long_tokens))))
        before = passes(trace)
        await until(lambda: passes(trace) > before)
        assert await post(http, ask(short_client, tokens(rng, 20), output_tokens=6)) == 6
        aborted.cancel()
        await chunked.idle(http)
        assert await post(http, long) == 8, "the engine still serves"


@pytest.mark.slow
async def test_a_chunk_that_waits_in_a_small_pool_finds_its_memory_when_it_goes_on(
    start: Callable[..., Engine],
) -> None:
    """Outputs grow far beyond what their client's last requests produced, while long prompts in chunks wait."""
    engine = start(
        *("--schedule-policy=dlpm", "--max-total-tokens=2048", "--max-running-requests=16"),
        *("--chunked-prefill-size=64", "--schedule-conservativeness=0.1"),
    )
    rng = random.Random(1)
    bodies = [ask("grows", tokens(rng, 20), output_tokens=2) for _ in range(10)]
    for _ in range(60):
        kind = rng.random()
        if kind < 0.15:
            bodies.append(ask("long", tokens(rng, rng.randrange(600, 1500)), output_tokens=4))
        elif kind < 0.6:
            bodies.append(ask("grows", tokens(rng, 60), output_tokens=rng.randrange(100, 400)))
        else:
            bodies.append(ask("short", tokens(rng, 20), output_tokens=2))
    for body in bodies:  # a length that the engine cannot know
        parameters = body["sampling_params"]
        parameters |= {"ignore_eos": False, "min_new_tokens": parameters["max_new_tokens"]}

    async def one(http: httpx.AsyncClient, number: int) -> int:
        await asyncio.sleep(number * 0.05)
        return await post(http, bodies[number])

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=engine.url, timeout=600, limits=limits) as http:
        made = await asyncio.gather(*(one(http, number) for number in range(len(bodies))))
    assert made == [body["sampling_params"]["max_new_tokens"] for body in bodies]
    assert "Retract requests" in engine.log
