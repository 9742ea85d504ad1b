"""A long prompt in chunks inside the real engine: requests of other clients enter between two chunks (design R13)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.sglang.engine import Engine, ask, probed, tokens
from tests.sglang.ways import events
from tests.support.replicas import until

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

CHUNK_TOKENS, LONG_TOKENS = 32, 6000

Start = Callable[..., Engine]


def passes(trace: Path) -> int:
    """Passes so far that admitted a request."""
    if not trace.exists():
        return 0
    return sum(event["kind"] == "pass" and bool(event["admitted"]) for event in events(trace))


async def post(http: httpx.AsyncClient, body: dict[str, Any]) -> int:
    """The number of output tokens."""
    response = await http.post("/generate", json=body)
    return len(response.raise_for_status().json()["output_ids"])


@pytest.mark.parametrize("pool_tokens", [16_384, 6_400], ids=["much memory", "little memory"])
async def test_requests_of_others_enter_between_two_chunks(
    start: Start, tmp_path: Path, pool_tokens: int
) -> None:
    trace, rng = tmp_path / "trace", random.Random(1)
    engine = start(
        *("--schedule-policy", "dlpm", "--chunked-prefill-size", str(CHUNK_TOKENS)),
        *("--max-total-tokens", str(pool_tokens), "--max-running-requests", "16"),
        environment=probed(trace, with_plug_in=True),
    )
    long = ask("long", tokens(rng, LONG_TOKENS), output_tokens=8)
    async with httpx.AsyncClient(base_url=engine.url, timeout=600) as http:
        first = asyncio.create_task(post(http, long))
        await until(lambda: passes(trace) > 0)
        cut = []
        for _ in range(5):
            # One that fits into a chunk, and one that has to be cut into chunks itself.
            short = ask("short", tokens(rng, 20), output_tokens=6)
            longer = ask("short", tokens(rng, 100), output_tokens=6)
            cut.append(asyncio.create_task(post(http, longer)))
            assert await post(http, short) == 6
            assert not first.done(), "the short request waited for all chunks"
        assert await first == 8
        assert await asyncio.gather(*cut) == [6] * len(cut)
        await engine.idle(http)
        aborted = asyncio.create_task(post(http, ask("long", tokens(rng, LONG_TOKENS))))
        before = passes(trace)
        await until(lambda: passes(trace) > before)
        assert await post(http, ask("short", tokens(rng, 20), output_tokens=6)) == 6
        aborted.cancel()
        await engine.idle(http)
        assert await post(http, long) == 8, "the engine still serves"
