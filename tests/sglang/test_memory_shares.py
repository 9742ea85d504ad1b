"""The KV pool is shared inside the real engine (design R16): a client of long outputs gives memory back to one below its share."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx
import pytest

from tests.sglang.engine import Since, ask, tokens
from tests.sglang.shared import POOL_TOKENS, SharedEngine
from tests.support.replicas import until

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

HOLDER = "ns/holder/holder"
INPUT_TOKENS, LONG_TOKENS = 64, 1800


async def post(http: httpx.AsyncClient, body: dict[str, Any]) -> int:
    """The number of output tokens."""
    response = await http.post("/generate", json=body)
    return len(response.raise_for_status().json()["output_ids"])


def produced(since: Since) -> int:
    """Output tokens of the long requests so far."""
    row = since.rows().get(HOLDER)
    return 0 if row is None else row.output_tokens


async def test_a_chat_client_gets_memory_back_from_one_of_long_outputs(
    plain: SharedEngine,
) -> None:
    rng, since = random.Random(6), Since(plain.reports_port)
    holds = 2 * (INPUT_TOKENS + LONG_TOKENS)
    assert POOL_TOKENS - holds < 2 * INPUT_TOKENS + LONG_TOKENS, "a third long one would fit"
    long = [ask("holder", tokens(rng, INPUT_TOKENS), output_tokens=LONG_TOKENS) for _ in range(2)]
    chat = ask("chat", tokens(rng, 6 * INPUT_TOKENS), output_tokens=16)
    async with httpx.AsyncClient(base_url=plain.url, timeout=600) as http:
        open_ = [asyncio.create_task(post(http, body)) for body in long]
        # Above its share of a half, with many steps to come.
        await until(lambda: produced(since) > 0.55 * POOL_TOKENS)
        assert await post(http, chat) == 16
        assert not any(one.done() for one in open_), "the chat waited for a long output"
        assert await asyncio.gather(*open_) == [LONG_TOKENS] * len(long)
        await plain.idle(http)
    holder = since.rows()[HOLDER]
    assert holder.output_tokens == LONG_TOKENS * len(long)
    assert holder.extend_tokens > INPUT_TOKENS * len(long), "nothing was computed again"
    assert holder.service == len(long) * (INPUT_TOKENS + 2 * LONG_TOKENS), "it was paid twice"
