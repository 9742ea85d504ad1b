"""Requests per minute: rejected or deferred, on arrivals small enough to count by hand."""

from __future__ import annotations

from collections import Counter
from math import inf

import pytest
from evenkeel_fairshare.replica.contract import AdmissionResult, Arrival, Request
from evenkeel_laboratory.experiments.setup import Setup, SetupError, simulate
from evenkeel_laboratory.policies.rpm import DeferredRpm, Rpm
from evenkeel_simulator.engine.profiles import PROFILES
from evenkeel_simulator.traffic.workload import Call, Program, Workload
from hypothesis import given
from hypothesis import strategies as st

from tests.support.replica import request


def admitted(policy: Rpm | DeferredRpm, now_s: float) -> list[str]:
    ids: list[str] = []
    conversation = policy.admissions(now_s)
    proposed = next(conversation, None)
    while proposed is not None:
        ids.append(proposed.id)
        try:
            proposed = conversation.send(AdmissionResult.ADMITTED)
        except StopIteration:
            proposed = None
    return ids


def test_arrivals_beyond_the_limit_of_the_last_minute_are_rejected() -> None:
    policy = Rpm(limit=2)
    times_s = (0.0, 10.0, 20.0, 60.0, 60.1, 69.9, 70.1)
    outcomes = [policy.arrive(request(str(at)), at) for at in times_s]
    # 60 s after the first one it still counts; rejected ones never do.
    assert [outcome is Arrival.QUEUED for outcome in outcomes] == [
        True,
        True,
        False,
        False,
        True,
        False,
        True,
    ]
    assert admitted(policy, 71.0) == ["0.0", "10.0", "60.1", "70.1"]


def test_each_client_has_its_own_limit() -> None:
    for policy in (Rpm(limit=1), DeferredRpm(limit=1)):
        for number, client in enumerate("abab"):
            policy.arrive(request(str(number), client), 1.0)
        assert admitted(policy, 1.0) == ["0", "1"]


def test_a_minute_of_silence_leaves_no_memory() -> None:
    policy = Rpm(limit=3)
    for number in range(50):
        policy.arrive(request(str(number), f"client-{number}"), float(number))
    policy.arrive(request("late", "other"), 500.0)
    assert len(policy._accepted) == len(policy._counts) == 1


def test_deferred_requests_are_admitted_in_later_minutes_in_order_of_arrival() -> None:
    policy = DeferredRpm(limit=2)
    for number in range(5):
        policy.arrive(request(f"a{number}", "a"), 50.0)
    policy.arrive(request("b0", "b"), 51.0)
    assert admitted(policy, 59.9) == ["a0", "a1", "b0"]
    assert len(policy) == 3 and policy.opens_s() == 60.0
    assert {one.id for one in policy.waiting()} == {"a2", "a3", "a4"}
    assert admitted(policy, 60.0) == ["a2", "a3"]
    policy.arrive(request("a5", "a"), 61.0)
    assert admitted(policy, 119.0) == []
    assert policy.opens_s() == 120.0
    assert admitted(policy, 300.0) == ["a4", "a5"]
    assert policy.opens_s() == inf


def test_a_deferred_request_may_be_aborted() -> None:
    policy = DeferredRpm(limit=1)
    first, second = request("first"), request("second")
    policy.arrive(first, 0.0)
    policy.arrive(second, 0.0)
    policy.leave(second, 1.0)
    assert len(policy) == 1 and policy.opens_s() == inf
    assert admitted(policy, 60.0) == ["first"]


arrivals = st.lists(
    st.tuples(st.floats(0.0, 40.0), st.sampled_from("abc")), min_size=1, max_size=80
)


@given(gaps=arrivals, limit=st.integers(1, 4))
def test_no_client_has_more_accepted_arrivals_than_the_limit_in_any_minute(
    gaps: list[tuple[float, str]], limit: int
) -> None:
    policy = Rpm(limit=limit)
    accepted: list[tuple[float, str]] = []
    now_s = 0.0
    for number, (gap_s, client) in enumerate(gaps):
        now_s += gap_s
        before = sum(one == client and now_s - at <= 60.0 for at, one in accepted)
        outcome = policy.arrive(request(str(number), client), now_s)
        assert (outcome is Arrival.QUEUED) == (before < limit)
        if outcome is Arrival.QUEUED:
            accepted.append((now_s, client))


@given(gaps=arrivals, limit=st.integers(1, 4))
def test_deferral_loses_no_request_and_admits_at_most_the_limit_per_minute(
    gaps: list[tuple[float, str]], limit: int
) -> None:
    policy = DeferredRpm(limit=limit)
    per_minute: Counter[tuple[int, str]] = Counter()
    sent: dict[str, Request] = {}
    order: list[str] = []
    now_s = 0.0

    def passes() -> None:
        for name in admitted(policy, now_s):
            per_minute[int(now_s // 60), sent[name].client] += 1
            order.append(name)

    for number, (gap_s, client) in enumerate(gaps):
        now_s += gap_s
        one = sent[str(number)] = request(str(number), client)
        assert policy.arrive(one, now_s) is Arrival.QUEUED
        passes()
    while (opens_s := policy.opens_s()) < inf:
        assert len(policy) > 0
        now_s = opens_s
        passes()
    assert set(order) == set(sent) and len(policy) == 0
    assert max(per_minute.values()) <= limit
    for client in "abc":
        own = [name for name in order if sent[name].client == client]
        assert own == sorted(own, key=int)


def programs(count: int) -> list[Program]:
    call = Call(input_tokens=100, output_tokens=5, max_output_tokens=5)
    return [Program(str(number), "c", number / 10, (call,)) for number in range(count)]


@pytest.mark.parametrize(("policy", "status"), [("RPM", "rejected"), ("rpm-defer", "finished")])
def test_a_fleet_rejects_or_admits_when_time_alone_passed(policy: str, status: str) -> None:
    setup = Setup(
        profile=PROFILES["a10g-llama3.2-3b"], replica_policy=policy, requests_per_minute=3
    )
    records, makespan_s = simulate(setup, Workload("w", programs(8)))
    by_id = {record.id: record for record in records}
    assert [by_id[str(n)].status for n in range(8)] == ["finished"] * 3 + [status] * 5
    if policy == "RPM":
        assert makespan_s < 60
    else:  # the fleet was idle meanwhile, and woke at the start of each minute
        admitted_s = [by_id[str(n)].admitted_s for n in range(8)]
        assert [int(at_s // 60) for at_s in admitted_s if at_s is not None] == [0] * 3 + [1] * 3 + [
            2
        ] * 2
        assert admitted_s[3] == 60.0 and admitted_s[6] == 120.0


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({"replica_policy": "RPM", "requests_per_minute": 0}, "requests_per_minute is 0"),
        ({"replica_policy": "VTCPreempt", "preemption_lead": -1.0}, "preemption_lead is -1.0"),
        ({"replica_policy": "VTCOracle", "prediction_error": 1.5}, "prediction_error is 1.5"),
    ],
)
def test_an_invalid_parameter_is_named(change: dict[str, object], want: str) -> None:
    with pytest.raises(SetupError, match=want):
        Setup(profile=PROFILES["a10g-llama3.2-3b"], **change).fleet()  # type: ignore[arg-type]
