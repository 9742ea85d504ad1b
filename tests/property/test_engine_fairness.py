"""The theorems on the engine itself: chunked prefill, radix cache and reservation instead of an abstract batch.

Two clients stay backlogged throughout, one of them warm (one long prefix shared by all its requests), so that
a scheduler that follows the cache alone would serve nobody else.
"""

from __future__ import annotations

from random import Random

import pytest
from evenkeel_fairshare.bounds import dlpm_overshoot
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.registry import ReplicaPolicyConfig, make_policy
from evenkeel_simulator.engine.config import AdmissionRule, EngineConfig
from evenkeel_simulator.engine.model import Engine
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.theorems import dlpm_backlogged_gap, vtc_backlogged_gap, vtc_overshoot
from tests.unit.evenkeel_simulator.engine_support import PROFILE, make_request

KV_TOKENS = 600
MAX_INPUT = 80
BACKLOG = 8
WARM, COLD = "ns/t/warm", "ns/t/cold"


def widest_gap(
    policy: str,
    *,
    quantum: float,
    seed: int,
    prefix_cache: bool,
    steps: int,
    isolation: float | None = None,
) -> float:
    """The largest difference of what the two clients were served over any interval from the start."""
    config = EngineConfig(
        kv_tokens=KV_TOKENS,
        admission=AdmissionRule.RESERVATION,
        prefill_tokens=100,
        prefix_cache=prefix_cache,
        isolation=isolation,
    )
    rules = ReplicaPolicyConfig(deficits=DeficitRules(quantum=quantum))
    engine = Engine(config, make_policy(policy, rules), PROFILE)
    rng = Random(seed)
    number = 0
    now_s, served = 0.0, {WARM: 0.0, COLD: 0.0}
    gaps = [0.0]
    for _ in range(steps):
        for client in (WARM, COLD):  # the theorems' premise: both always have requests waiting
            waiting = sum(request.client == client for request in engine.policy.waiting())
            for _ in range(BACKLOG - waiting):
                number += 1
                output = rng.randint(1, 40)
                engine.submit(
                    make_request(
                        f"{client}{number}",
                        prompt=(("prefix", 60),) if client == WARM else (),
                        tail=rng.randint(1, MAX_INPUT - 60)
                        if client == WARM
                        else rng.randint(1, 80),
                        output=output,
                        max_output=output + rng.randint(0, 20),
                        client=client,
                    ),
                    now_s,
                )
        step = engine.step(now_s)
        assert step is not None
        now_s = step.end_s
        for client, totals in engine.accounts.clients.items():
            served[client] = totals.service
        gaps.append(served[WARM] - served[COLD])
    return max(gaps) - min(gaps)


@examples(12)
@given(
    seed=st.integers(0, 10**6),
    quantum=st.sampled_from([50.0, 500.0]),
    isolation=st.sampled_from([None, 0.5, 2.0]),
)
def test_under_dlpm_two_backlogged_clients_stay_within_theorem_4_1(
    seed: int, quantum: float, isolation: float | None
) -> None:
    """A request that waits for engine time (R13) counts as queued, so it changes no refill."""
    overshoot = dlpm_overshoot(max_input_tokens=MAX_INPUT, memory_tokens=KV_TOKENS)
    gap = widest_gap(
        "DLPM", quantum=quantum, seed=seed, prefix_cache=True, steps=400, isolation=isolation
    )
    assert gap <= dlpm_backlogged_gap(overshoot, quantum)


@examples(12)
@given(seed=st.integers(0, 10**6))
def test_under_vtc_two_backlogged_clients_stay_within_theorem_4_4(seed: int) -> None:
    overshoot = vtc_overshoot(max_input_tokens=MAX_INPUT, memory_tokens=KV_TOKENS)
    gap = widest_gap("VTC", quantum=1.0, seed=seed, prefix_cache=False, steps=400)
    assert gap <= vtc_backlogged_gap(overshoot)


@pytest.mark.parametrize("seed", [0, 1])
def test_under_lpm_the_warm_client_leaves_those_bounds_behind(seed: int) -> None:
    overshoot = dlpm_overshoot(max_input_tokens=MAX_INPUT, memory_tokens=KV_TOKENS)
    gap = widest_gap("LPM", quantum=1.0, seed=seed, prefix_cache=True, steps=1500)
    assert gap > dlpm_backlogged_gap(overshoot, 500.0)
