"""Andes: selective triggering, packing, batch sizes, the cap, and what users get of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from evenkeel_fairshare.qoe import Expectation
from evenkeel_laboratory.experiments.generators import Arrivals, Single
from evenkeel_laboratory.experiments.setup import Setup, engine_config, simulate
from evenkeel_laboratory.experiments.workload_file import ClientSpec, WorkloadSpec, make_workload
from evenkeel_laboratory.policies.andes import HIGH_WATERMARK, Andes
from evenkeel_simulator.engine.profiles import PROFILES, CostProfile
from evenkeel_simulator.traffic.summary import Summary, summarise
from hypothesis import given
from hypothesis import strategies as st

from tests.support.abstract_engine import AbstractEngine, Job
from tests.support.examples import examples

PROFILE = PROFILES["a10g-llama2-7b"]
SLOW = CostProfile(
    prefill_ms=10,
    prefill_token_ms=0.2,
    decode_ms=100,
    decode_request_ms=50,
    decode_kv_token_ms=0.0,
    kv_tokens=10_000,
)


def job(number: int, *, tokens: int = 10, arrival_s: float = 0.0) -> Job:
    return Job(
        id=f"r{number}",
        client="ns/t/c",
        tenant="ns/t",
        arrival_s=arrival_s,
        input_tokens=tokens,
        max_output_tokens=50,
        true_output_tokens=50,
    )


class Audited(Andes):
    """Tests every choice against the rules of packing."""

    choices = 0

    def _pack(self, candidates, batch, now_s):
        choice = super()._pack(candidates, batch, now_s)
        type(self).choices += 1
        held = sum(one.input_tokens + one.output_tokens for one in choice.chosen)
        assert len(choice.chosen) <= batch
        assert held <= self._capacity or len(choice.chosen) == 1
        return choice

    def _choose(self, now_s):
        choice = super()._choose(now_s)
        gains = self._pack(list(choice.ranked), choice.batch, now_s)
        best_alone = max(
            self._gain(one, 1 / self._step_s(1, 10), now_s=now_s, until_s=now_s + self._horizon_s())
            for one in choice.ranked
        )
        assert gains.gain >= 0
        assert best_alone <= 1
        return choice


@examples(30)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=5, max_size=40),
    memory=st.integers(120, 300),
    cap=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_choices_fit_memory_and_batch_and_preemptions_the_cap(sizes, memory, cap):
    policy = Audited(profile=PROFILE, kv_tokens=memory, quantum_s=3, preemption_cap=cap)
    engine = AbstractEngine(policy, memory_tokens=memory)
    jobs = [job(number, tokens=size) for number, size in enumerate(sizes)]
    for number, one in enumerate(jobs):
        engine.submit(one)
        if number % 3 == 0:
            engine.step()
    while engine.queue or engine.batch:
        engine.step()
    assert all(one.output_tokens == 50 for one in jobs)
    assert sum(one.retractions for one in jobs) <= cap * len(jobs)


def test_with_memory_for_all_it_is_first_come_first_served_and_preempts_none():
    policy = Andes(profile=PROFILE)
    engine = AbstractEngine(policy, memory_tokens=100_000)
    for number in range(30):
        engine.submit(job(number, tokens=100 - number))
    admitted = engine.step()
    assert [one.id for one in admitted] == [f"r{number}" for number in range(30)]
    while engine.batch:
        engine.step()
    assert policy._choice is None


def test_without_preemptions_allowed_running_requests_stay():
    policy = Andes(profile=PROFILE, kv_tokens=130, quantum_s=1, preemption_cap=0.0)
    engine = AbstractEngine(policy, memory_tokens=130)
    jobs = [job(number) for number in range(8)]
    for one in jobs:
        engine.submit(one)
    while engine.queue or engine.batch:
        engine.step()
    assert sum(one.retractions for one in jobs) == 0


def test_batch_sizes_reach_from_reading_speed_to_what_fits():
    policy = Andes(
        profile=SLOW, expectation=Expectation(1.0, 4.0)
    )  # a step may take 250 ms: batch 3
    candidates = [job(number, tokens=100) for number in range(200)]
    sizes = policy._batch_sizes(candidates)
    assert sizes[0] == 3
    assert sizes[-1] == HIGH_WATERMARK * 10_000 / 100
    assert len(sizes) == 8
    fast = Andes(profile=PROFILE, expectation=Expectation(1.0, 4.0))
    assert fast._batch_sizes(candidates) == [90]


def test_a_reader_with_a_full_buffer_yields_to_one_who_has_nothing():
    slow_reader = Expectation(1.0, 0.2)  # the abstract engine makes a token a second
    policy = Andes(profile=PROFILE, kv_tokens=100, quantum_s=1, expectation=slow_reader)
    engine = AbstractEngine(policy, memory_tokens=100)
    first = job(0)
    engine.submit(first)
    for _ in range(30):
        engine.step()
    late = job(1, tokens=50, arrival_s=30.0)
    engine.submit(late)
    engine.step()
    engine.step()
    assert late in engine.batch
    assert first.retractions == 1


def run(policy: str) -> tuple[Summary, float]:
    spec = WorkloadSpec(
        about="more than memory holds",
        profile="a10g-llama2-7b",
        duration_s=60,
        clients=(
            ClientSpec(
                name="reader",
                arrivals=Arrivals(rate_per_s=3),
                program=Single(input_tokens=200, output_tokens=200, spread=0.8),
            ),
        ),
    )
    setup = Setup(
        profile=PROFILE,
        replica_policy=policy,
        fleet_policy="RoundRobin",
        engine=engine_config(kv_tokens=4000),
        expectation=Expectation(),
    )
    records, makespan_s = simulate(setup, make_workload("x", spec, seed=3, traces=Path()))
    return summarise(records, makespan_s), makespan_s


def test_users_are_better_served_than_by_fcfs_at_a_tenth_of_throughput():
    andes, andes_s = run("Andes")
    fcfs, fcfs_s = run("FCFS")
    assert andes.finished == fcfs.finished == andes.requests
    assert andes.qoe_mean is not None and fcfs.qoe_mean is not None
    assert andes.qoe_mean > 1.1 * fcfs.qoe_mean
    assert andes_s < 1.1 * fcfs_s


def test_impossible_knobs_are_refused():
    with pytest.raises(ValueError, match="quantum_s is 0"):
        Andes(profile=PROFILE, quantum_s=0)
    with pytest.raises(ValueError, match="preemption_cap is -1"):
        Andes(profile=PROFILE, preemption_cap=-1)
