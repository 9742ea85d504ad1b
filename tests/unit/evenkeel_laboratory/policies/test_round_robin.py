"""Round-robin with preemption: turns in a cycle."""

from __future__ import annotations

from math import ceil

import pytest
from evenkeel_fairshare.replica.contract import Request
from evenkeel_laboratory.experiments.setup import Setup, engine_config, simulate
from evenkeel_laboratory.policies.round_robin import PreemptiveRoundRobin
from evenkeel_simulator.engine.profiles import PROFILES
from evenkeel_simulator.traffic.workload import Call, Program, Workload
from hypothesis import given
from hypothesis import strategies as st

from tests.support.abstract_engine import AbstractEngine, Job
from tests.support.replica import admit, arrive, request


def full() -> tuple[PreemptiveRoundRobin, list[Request]]:
    """Two requests run and fill the memory; one waits."""
    policy = PreemptiveRoundRobin(turn_tokens=10)
    running = [request("r0"), request("r1")]
    arrive(policy, *running, request("waits"))
    assert admit(policy, room=2) == ["r0", "r1"]
    return policy, running


def preempt(policy: PreemptiveRoundRobin, running: list[Request]) -> list[str]:
    chosen = policy.preempt(running, 1.0)
    for one in chosen:
        running.remove(one)
        policy.requeue(one, 1.0)
    return [one.id for one in chosen]


def test_a_request_that_had_its_turn_makes_room_and_waits_last():
    policy, running = full()
    for one in running:
        one.output_tokens = 9
    assert preempt(policy, running) == []
    for one in running:
        one.output_tokens = 10
    assert preempt(policy, running) == ["r0"]  # as much as the waiting one needs
    assert [one.id for one in policy.waiting()] == ["waits", "r0"]
    assert admit(policy, room=1) == ["waits"]
    assert preempt(policy, running) == ["r1"]


def test_a_turn_begins_anew_at_each_admission():
    policy, running = full()
    running[0].output_tokens = 10
    first = running[0]
    assert preempt(policy, running) == ["r0"]
    assert admit(policy) == ["waits", "r0"]
    arrive(policy, request("next"))
    assert admit(policy, room=0) == []
    first.output_tokens = 19
    assert preempt(policy, [first]) == []
    first.output_tokens = 20
    assert preempt(policy, [first]) == ["r0"]


def test_without_a_refused_request_none_is_preempted():
    policy, running = full()
    running[0].output_tokens = 50
    policy.leave(running.pop(), 1.0)  # frees memory: the next pass tries first
    assert preempt(policy, running) == []
    assert admit(policy) == ["waits"]
    assert preempt(policy, running) == []


def test_a_request_that_lost_its_memory_during_its_turn_goes_first():
    policy, running = full()
    policy.requeue(running[1], 1.0)
    assert [one.id for one in policy.waiting()] == ["r1", "waits"]


def test_a_turn_of_nothing_is_refused():
    with pytest.raises(ValueError, match="turn_tokens is 0"):
        PreemptiveRoundRobin(turn_tokens=0)


@given(count=st.integers(1, 20), slots=st.integers(1, 6), turn=st.integers(1, 12))
def test_no_request_waits_longer_than_the_turns_of_those_before_it(
    count: int, slots: int, turn: int
) -> None:
    """Equal requests, `slots` of which fit: each begins a turn within ceil(n / slots) turns of one step more than its tokens."""
    engine = AbstractEngine(PreemptiveRoundRobin(turn_tokens=turn), memory_tokens=slots * 110)
    jobs = [
        Job(
            id=str(number),
            client="c",
            tenant="t",
            arrival_s=0.0,
            input_tokens=10,
            max_output_tokens=100,
            true_output_tokens=100,
        )
        for number in range(count)
    ]
    for job in jobs:
        engine.submit(job)
    waiting = dict.fromkeys(jobs, 0)
    longest = 0
    while engine.queue or engine.batch:
        engine.step()
        for job in jobs:
            waiting[job] = waiting[job] + 1 if job in engine.queue else 0
            longest = max(longest, waiting[job])
    assert all(job.output_tokens == 100 for job in jobs)
    assert longest <= ceil(count / slots) * (turn + 1)
    assert (longest > 0) == (count > slots)


def test_in_the_engine_model_no_request_waits_for_the_end_of_another():
    call = Call(input_tokens=100, output_tokens=1000, max_output_tokens=1000)
    programs = [Program(name, name, 0.0, (call,)) for name in "abcd"]
    first_s = {}
    for policy in ("FCFS", "preemptive-round-robin"):
        setup = Setup(
            profile=PROFILES["a10g-llama3.2-3b"],
            replica_policy=policy,
            engine=engine_config(kv_tokens=1200, admission="reservation"),
        )
        records, makespan_s = simulate(setup, Workload("w", programs))
        assert all(record.status == "finished" for record in records)
        first_s[policy] = max(record.first_token_s or 0.0 for record in records) / makespan_s
    assert first_s["FCFS"] > 0.7
    assert first_s["preemptive-round-robin"] < 0.25
