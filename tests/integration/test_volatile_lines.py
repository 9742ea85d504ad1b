"""An agent's line of billing, another one in every request, in front of a real cache: what is found of its prompt."""

from __future__ import annotations

from itertools import count
from typing import Any

import httpx
import pytest
from evenkeel_contract.routerconfig import PrefixConfig, VolatileLines

from tests.support.routers import MODEL, PATIENCE_S, fleet

SYSTEM = "You are an agent that works on the files of a project. " * 200
TURNS = 4
_numbers = count(0xE0000)


def body(turns: list[Any]) -> dict[str, Any]:
    """A request as Claude Code 2.1.177 makes it: `cch` is another in each."""
    line = f"x-anthropic-billing-header: cc_version=2.1.177.e57; cc_entrypoint=cli; cch={next(_numbers):x};"
    system = [{"type": "text", "text": line}, {"type": "text", "text": SYSTEM}]
    return {"model": MODEL, "max_tokens": 16, "system": system, "messages": turns}


@pytest.mark.parametrize("lines", VolatileLines)
async def test_turns_of_an_agent_are_found_in_the_cache_unless_its_line_is_kept(
    lines: VolatileLines,
) -> None:
    cached, turns, prefix = [], [], PrefixConfig(volatile_lines=lines)
    async with (
        fleet(2, prefix=prefix) as (router, _),
        httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S) as http,
    ):
        for turn in range(TURNS):
            turns.append({"role": "user", "content": f"Step {turn}."})
            answer = (await http.post("/v1/messages", json=body(turns))).raise_for_status().json()
            cached.append(answer["usage"].get("cache_read_input_tokens") or 0)
            turns.append({"role": "assistant", "content": answer["content"]})
        counted = await http.post("/v1/messages/count_tokens", json=body(turns))
        removed = router.rooms.totals.stripped["x-anthropic-billing-header"]
    system_tokens = counted.json()["input_tokens"]
    if lines is VolatileLines.REMOVE:
        assert all(found > len(SYSTEM) / 5 for found in cached[1:]), cached
        assert removed == TURNS + 1
    else:
        assert max(cached) < 64 < system_tokens
        assert removed == 0
