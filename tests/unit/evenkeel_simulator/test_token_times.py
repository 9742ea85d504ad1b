"""The time of every output token, while requests are retracted and steps are jumped over."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from evenkeel_laboratory.experiments.setup import engine_config
from evenkeel_laboratory.policies.registry import REPLICA_POLICIES, LaboratoryConfig
from evenkeel_simulator.engine.model import Engine
from evenkeel_simulator.engine.profiles import PROFILES
from evenkeel_simulator.engine.request import EngineRequest


@pytest.mark.parametrize("jump", [True, False], ids=["jumps", "single steps"])
@pytest.mark.parametrize("policy", ["FCFS", "PreemptiveRoundRobin"])
def test_every_token_has_its_time_whatever_interrupts_the_request(policy: str, jump: bool) -> None:
    config = replace(engine_config(kv_tokens=900, admission="sglang"), token_times=True)
    engine = Engine(
        config,
        REPLICA_POLICIES[policy](LaboratoryConfig(turn_tokens=20)),
        PROFILES["a10g-llama2-7b"],
    )
    assert engine.token_times is not None
    requests = [
        EngineRequest(
            id=f"r{number}",
            client="a",
            tenant="t",
            arrival_s=0.0,
            input_tokens=40,
            max_output_tokens=150,
            target_output_tokens=150 - number,
        )
        for number in range(10)
    ]
    for request in requests:
        engine.submit(request, 0.0)
    now_s, ends = 0.0, set()
    while (end_s := engine.start(now_s, 1e9 if jump else now_s)) is not None:
        now_s = end_s
        ends.add(end_s)
        for request in engine.finish().finished:
            times = engine.token_times.take(request)
            assert len(times) == request.output_tokens
            assert times[0] == request.first_token_s
            assert times[-1] == pytest.approx(request.finished_s)
            assert all(before < after for before, after in pairwise(times))
            if not jump:
                assert {round(one, 9) for one in times} <= {round(one, 9) for one in ends}
    assert sum(request.retractions for request in requests) > 0
