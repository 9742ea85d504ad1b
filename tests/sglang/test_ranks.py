"""Tensor-parallel ranks decide alike, during the warm-up and with a measured quantum (`evenkeel_sglang.rank_clock`)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sglang.engine import Engine, ask, probed, tokens
from tests.sglang.ways import events

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1800)]

RANKS = 2
CLIENTS = {"light": 8, "heavy": 40}
OUTPUT_TOKENS = 8


async def test_both_ranks_admit_the_same_requests_in_the_same_order(
    start: Callable[..., Engine], tmp_path: Path
) -> None:
    rng, trace = random.Random(5), tmp_path / "trace"
    engine = start(
        *("--schedule-policy", "dlpm", "--tensor-parallel-size", str(RANKS)),
        *("--max-total-tokens", "4096", "--max-running-requests", "4"),
        environment=probed(trace, with_plug_in=True),
    )
    asks = [
        ask(client, tokens(rng, 100), output_tokens=OUTPUT_TOKENS)
        for client, count in CLIENTS.items()
        for _ in range(count)
    ]

    answers = await engine.run_queue(asks)

    assert all(len(answer.output_ids) == OUTPUT_TOKENS for answer in answers)
    # Both ranks write into one file, each its own passes.
    passes = Counter(
        tuple(map(tuple, event["admitted"]))
        for event in events(trace)
        if event["kind"] == "pass" and event["admitted"]
    )
    assert sum(map(len, passes)) >= len(asks)
    assert set(passes.values()) == {RANKS}
