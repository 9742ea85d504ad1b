"""The suite of `tests/sglang/test_policies.py` on vLLM: every other policy keeps its promise inside the engine."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sglang.engine import tokens
from tests.sglang.test_policies import (
    GREEDY,
    INPUT_TOKENS,
    MODEST,
    OUTPUT_TOKENS,
    PREFIX_TOKENS,
    TAIL_TOKENS,
    Moment,
    in_order_of_arrival,
    level,
    longest_match_first,
    lowest_counter_first,
)
from tests.vllm.test_plugin import Ask, engine, run_queue

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("policy", "keeps"),
    [
        ("VTC", lowest_counter_first),
        *(
            pytest.param(policy, keeps, marks=pytest.mark.slow)
            for policy, keeps in (
                ("LCF", lowest_counter_first),
                ("VTCPredict", level),
                ("DRR", level),
                ("FCFS", in_order_of_arrival),
                ("LPM", longest_match_first),
            )
        ),
    ],
)
async def test_a_policy_keeps_its_promise_beside_a_flood(
    environment: Path,
    tmp_path: Path,
    policy: str,
    keeps: Callable[[list[Moment], list[str]], None],
) -> None:
    rng = random.Random(7)
    asks, names = [], []
    for client, count in ((GREEDY, 40), (MODEST, 8)):
        prefix = tokens(rng, PREFIX_TOKENS)
        for number in range(count):
            prompt = prefix + tokens(rng, TAIL_TOKENS)
            asks.append(Ask(client, prompt, output_tokens=OUTPUT_TOKENS))
            names.append(f"{client}-{number}")
    # One request at a time: the order of the ends is the order of the admissions.
    with engine(environment, tmp_path, "--max-num-seqs=1", policy=policy) as found:
        answers = await run_queue(found, asks)
    served = dict.fromkeys((GREEDY, MODEST), 0)
    waiting = {GREEDY: 40, MODEST: 8}
    seen = []
    for name, answer in sorted(zip(names, answers, strict=True), key=lambda one: one[1].finished_s):
        assert len(answer.token_ids) == OUTPUT_TOKENS
        client = answer.client
        seen.append(
            Moment(name, client, answer.cached_tokens, True, dict(served), dict(waiting))
        )  # fmt: skip
        served[client] += INPUT_TOKENS + 2 * OUTPUT_TOKENS
        waiting[client] -= 1
    keeps(seen, names)
