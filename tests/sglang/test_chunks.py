"""A long prompt in chunks inside the real engine: requests of other clients enter between two chunks (design R13)."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.sglang.engine import ask, tokens
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
