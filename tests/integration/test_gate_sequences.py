"""Lists of prompts of one tenant behind the gate: another tenant waits for at most one of them (R12, R19)."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.gated import ask, cut_off, gated, is_idle, served
from tests.support.routers import until

PROMPTS, OUTPUT, BATCHES = 64, 16, 8


@pytest.mark.parametrize(
    "fields", [{"prompt": [f"batch {n} " for n in range(PROMPTS)]}, {"n": PROMPTS}]
)
async def test_lists_of_prompts_go_through_the_gate_one_after_the_other(
    fields: dict[str, object],
) -> None:
    async with gated() as (router, (server,), client):
        engine = server.replica.engine
        batches = [
            asyncio.create_task(ask(client, "heavy", n, stream=False, max_tokens=OUTPUT, **fields))
            for n in range(BATCHES)
        ]
        await until(lambda: served(server).get("heavy", 0.0) > 0, "the first batch to begin")
        gate = router.rooms.gates.gate("r0")
        assert gate is not None
        await until(lambda: gate.clients.total() == (BATCHES - 1) * PROMPTS, "the other batches")
        before = engine.accounts.clients["ns/heavy/c"].requests
        answer = await ask(client, "light", 0, max_tokens=1)
        assert answer.status_code == 200
        # Sequences of heavy that the engine began while light waited: the rest of one batch, not of eight.
        assert engine.accounts.clients["ns/heavy/c"].requests - before <= PROMPTS
        assert gate.at_engine <= 2 * PROMPTS
        await cut_off(batches)
        await until(lambda: is_idle(router), "all requests to be over")
