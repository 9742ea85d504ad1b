"""VTC with preemption: when it preempts, which requests, and what they pay. Input costs 1, an output token 2."""

from __future__ import annotations

import pytest
from evenkeel_fairshare.replica.contract import Request
from evenkeel_laboratory.experiments.setup import Setup, engine_config, simulate
from evenkeel_laboratory.policies.vtc_preempt import PreemptiveVtc
from evenkeel_simulator.engine.profiles import PROFILES
from evenkeel_simulator.traffic.workload import Call, Program, Workload

from tests.support.replica import admit, arrive, decode, request


def full(lead: float = 500) -> tuple[PreemptiveVtc, list[Request]]:
    """Three requests of client `flood` run and fill the memory; one of `late` waits."""
    policy = PreemptiveVtc(lead=lead)
    running = [request(f"f{n}", "flood") for n in range(3)]
    arrive(policy, *running)
    assert admit(policy) == ["f0", "f1", "f2"]
    arrive(policy, request("late", "late"))
    assert admit(policy, room=0) == []
    return policy, running


def preempted(policy: PreemptiveVtc, running: list[Request]) -> list[str]:
    return [one.id for one in policy.preempt(running, 1.0)]


def test_the_latest_request_of_the_client_that_is_ahead_makes_room():
    policy, running = full()
    assert preempted(policy, running) == []  # late was lifted to flood's counter
    for one in running:
        decode(policy, one, 83)
    assert preempted(policy, running) == []  # ahead by 498
    decode(policy, running[0], 2)
    assert preempted(policy, running) == ["f2"]


def test_as_many_make_room_as_hold_the_tokens_that_are_needed():
    policy, running = full()
    arrive(policy, request("huge", "later", extend=250))
    policy.leave(next(one for one in policy.waiting() if one.id == "late"), 0.0)
    admit(policy, room=0)
    for one in running:
        decode(policy, one, 99)
    # f2 and f1 hold 100 + 100 each, huge needs 250 + 100.
    assert preempted(policy, running) == ["f2", "f1"]


def test_none_is_preempted_while_memory_refuses_none():
    policy, running = full()
    for one in running:
        decode(policy, one, 99)
    policy.leave(running.pop(), 1.0)  # frees memory: the next pass tries first
    assert preempted(policy, running) == []
    assert admit(policy, room=0) == []
    assert preempted(policy, running) == ["f1"]
    assert admit(policy) == ["late"]
    assert preempted(policy, running) == []


def test_a_preempted_request_is_its_client_s_first_and_pays_recomputation():
    policy, running = full()
    arrive(policy, request("f3", "flood"))
    for one in running:
        decode(policy, one, 90)
    (victim,) = policy.preempt(running, 1.0)
    policy.requeue(victim, 1.0)
    before = -policy.clients()["flood"].deficit
    assert before == 3 * (100 + 90 * 2)
    assert admit(policy) == ["late", "f2", "f3"]
    assert -policy.clients()["flood"].deficit == before + (100 + 90) + 100


def test_an_infinite_lead_never_preempts():
    policy, running = full(lead=float("inf"))
    for one in running:
        decode(policy, one, 10**6)
    assert preempted(policy, running) == []


@pytest.mark.parametrize("lead", [-1.0, float("nan")])
def test_an_invalid_lead_is_refused(lead):
    with pytest.raises(ValueError, match="preemption_lead"):
        PreemptiveVtc(lead=lead)


def test_a_late_client_of_a_full_engine_waits_only_for_the_lead():
    """In the engine model: with two requests of 2000 tokens each, memory for one at a time."""
    call = Call(input_tokens=100, output_tokens=2000, max_output_tokens=2000)
    programs = [
        Program("flood", "flood", 0.0, (call,)),
        Program("flood2", "flood", 0.0, (call,)),
        Program("late", "late", 0.5, (call,)),
    ]
    waits_s, retractions = [], []
    for policy in ("VTC", "VTCPreempt"):
        setup = Setup(
            profile=PROFILES["a10g-llama3.2-3b"],
            replica_policy=policy,
            preemption_lead=500.0,
            engine=engine_config(kv_tokens=2300, admission="reservation"),
        )
        records, _ = simulate(setup, Workload("w", programs))
        by_id = {record.id: record for record in records}
        assert all(record.status == "finished" for record in records)
        assert by_id["late"].admitted_s is not None
        waits_s.append(by_id["late"].admitted_s - 0.5)
        retractions.append(sum(record.retractions for record in records))
    assert waits_s[1] < waits_s[0] / 3
    assert retractions[0] == 0 and retractions[1] > 0
