"""Reservations of output inside the real engine (design R14): a lie about `max_tokens` shrinks no batch, and retraction stays safe."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sglang.engine import Engine, ask, probed, tokens
from tests.sglang.shared import POOL_TOKENS, RUNNING, SharedEngine
from tests.sglang.ways import events

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(1800)]

INPUT_TOKENS, USED_TOKENS, LIE_TOKENS = 64, 32, 1024
REQUESTS = 48
STOP_TOKEN = 7

Start = Callable[..., Engine]


def using(rng: random.Random, client: str, used_tokens: int, *, most: int) -> dict[str, Any]:
    """A request that may produce `most` tokens and ends by itself after `used_tokens`."""
    body = ask(client, tokens(rng, INPUT_TOKENS), output_tokens=most)
    body["sampling_params"] |= {
        "ignore_eos": False,
        "min_new_tokens": used_tokens - 1,
        "stop_token_ids": [STOP_TOKEN],
        "logit_bias": {str(STOP_TOKEN): 100.0},
    }
    return body


def steps(trace: Path) -> int:
    """Forward passes so far that made output."""
    return sum(event["kind"] == "step" and bool(event["made"]) for event in events(trace))


async def steps_of_a_queue(engine: Engine, trace: Path, *, most: int) -> int:
    """Forward passes for the same service of two clients, of which one says that it may need `most` tokens."""
    rng = random.Random(3)
    # Without history a request counts in full, also that of an honest client.
    await engine.run_queue([using(rng, client, USED_TOKENS, most=USED_TOKENS) for client in "ab"])
    before = steps(trace)
    asks = []
    for _ in range(REQUESTS // 2):
        asks.append(using(rng, "a", USED_TOKENS, most=most))
        asks.append(using(rng, "b", USED_TOKENS, most=USED_TOKENS))
    answers = await engine.run_queue(asks)
    assert [len(answer.output_ids) for answer in answers] == [USED_TOKENS] * REQUESTS
    return steps(trace) - before


async def test_a_lie_about_max_tokens_costs_at_most_a_tenth_of_total_service(
    plain: SharedEngine,
) -> None:
    honest = await steps_of_a_queue(plain, plain.trace, most=USED_TOKENS)
    lying = await steps_of_a_queue(plain, plain.trace, most=LIE_TOKENS)

    assert honest >= 0.9 * lying, (honest, lying)


@pytest.mark.slow
async def test_without_the_plug_in_the_lie_costs_more_than_a_tenth(
    start: Start, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    size = ("--max-total-tokens", str(POOL_TOKENS), "--max-running-requests", str(RUNNING))
    engine = start("--schedule-policy", "lpm", *size, environment=probed(trace, with_plug_in=False))

    honest = await steps_of_a_queue(engine, trace, most=USED_TOKENS)
    lying = await steps_of_a_queue(engine, trace, most=LIE_TOKENS)

    assert honest < 0.9 * lying, (honest, lying)


@pytest.mark.slow
async def test_a_client_that_exceeds_its_history_is_retracted_and_served(
    start: Start, tmp_path: Path
) -> None:
    rng, trace = random.Random(4), tmp_path / "trace"
    size = ("--max-total-tokens", str(POOL_TOKENS // 2), "--max-running-requests", str(RUNNING))
    engine = start("--schedule-policy", "dlpm", *size, environment=probed(trace, with_plug_in=True))
    await engine.run_queue([using(rng, "a", 8, most=8) for _ in range(5)])

    asks = [using(rng, "a", 200, most=LIE_TOKENS) for _ in range(RUNNING)]
    answers = await engine.run_queue(asks)

    # After a retraction SGLang counts `min_new_tokens` anew, so some of them become longer.
    assert all(200 <= len(answer.output_ids) < LIE_TOKENS for answer in answers)
    assert any(event["kind"] == "arrival" and event["retracted"] for event in events(trace))
