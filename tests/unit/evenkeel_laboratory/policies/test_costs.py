"""The profiled cost charges h exactly, by every policy that counts service."""

from __future__ import annotations

import pytest
from evenkeel_laboratory.experiments.generators import LogNormal
from evenkeel_laboratory.policies.costs import ArtifactProfiledCost, ProfiledCost, profiled
from evenkeel_laboratory.policies.registry import REPLICA_POLICIES, LaboratoryConfig
from hypothesis import given
from hypothesis import strategies as st

from tests.support.abstract_engine import AbstractEngine, Job


def test_it_is_a_tenth_of_the_printed_formula():
    printed = 2.1 * 100 + 200 + 0.04 * 100 * 200 + 0.032 * 200**2 + 11.46
    assert profiled(100, 200) == pytest.approx(printed / 10, rel=0.01)


@given(st.integers(1, 2000), st.lists(st.integers(1, 200), max_size=6))
def test_the_charges_of_a_request_add_up_to_its_cost(tokens, steps):
    cost, total, made = ProfiledCost(), 0.0, 0
    total += cost.input_cost(tokens)
    for step in steps:
        charge = cost.output_cost(tokens, made, made + step)
        assert charge > 0
        total, made = total + charge, made + step
    assert total == pytest.approx(profiled(tokens, made) - profiled(0, 0))


def test_the_artifact_charges_the_constant_at_admission():
    cost = ArtifactProfiledCost()
    assert cost.input_cost(40) + cost.output_cost(40, 0, 20) == pytest.approx(profiled(40, 20))


@pytest.mark.parametrize("name", ["VTC", "VTCOracle", "VTCCentral", "VTCPreempt"])
def test_counters_hold_the_cost_of_what_ended(name):
    policy = REPLICA_POLICIES[name](LaboratoryConfig(cost=ProfiledCost()))
    engine = AbstractEngine(policy, memory_tokens=500)
    job = Job(
        id="r",
        client="ns/t/c",
        tenant="ns/t",
        arrival_s=0.0,
        input_tokens=40,
        max_output_tokens=30,
        true_output_tokens=20,
        expected_output_tokens=20,
    )
    engine.submit(job)
    while engine.queue or engine.batch:
        engine.step()
    spent = -policy.clients()["ns/t/c"].deficit
    assert spent == pytest.approx(profiled(40, 20) - profiled(0, 0))


def test_lengths_of_chats_have_the_given_mean_and_a_long_tail():
    from random import Random

    spec = LogNormal(input_tokens=161, output_tokens=338, most_tokens=4096)
    rng = Random(1)
    calls = [spec.calls(f"p{n}", "c", rng)[0] for n in range(4000)]
    outputs = sorted(call.output_tokens for call in calls)
    assert sum(outputs) / len(outputs) == pytest.approx(338, rel=0.08)
    assert outputs[len(outputs) // 2] < 250
    assert all(1 <= one <= 4096 for one in outputs)
    assert {call.max_output_tokens for call in calls} == {4096}
