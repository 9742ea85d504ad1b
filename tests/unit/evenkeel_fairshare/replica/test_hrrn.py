"""Highest response ratio next: work since the arrival over uncached input."""

from __future__ import annotations

from evenkeel_fairshare.replica.hrrn import Hrrn
from evenkeel_fairshare.replica.registry import ReplicaPolicyConfig, make_policy

from tests.support.replica import admit, arrive, request


def after_work(policy: Hrrn, tokens: int) -> None:
    """The replica computes `tokens` input tokens, of a request that goes first: its match is lost before it enters."""
    work = request("work", extend=0, matched=tokens)
    work.extend_tokens = tokens
    arrive(policy, work)
    assert admit(policy, room=1) == ["work"]


def test_before_any_work_requests_go_by_arrival():
    policy = Hrrn()
    arrive(policy, request("long", extend=900), request("short", extend=10))
    assert admit(policy) == ["long", "short"]


def test_among_requests_of_equal_wait_the_least_uncached_input_goes_first():
    policy = Hrrn()
    arrive(policy, request("cold", extend=900), request("warm", extend=100, matched=800))
    after_work(policy, 50)
    assert admit(policy) == ["warm", "cold"]


def test_a_long_request_goes_first_once_it_waited_long_enough():
    policy = Hrrn()
    arrive(policy, request("long", extend=900))
    after_work(policy, 1000)
    arrive(policy, request("short", extend=100))
    after_work(policy, 120)
    assert admit(policy) == ["long", "short"]  # 1120/900 against 120/100


def test_a_short_request_overtakes_a_long_one():
    policy = Hrrn()
    arrive(policy, request("long", extend=900))
    after_work(policy, 1000)
    arrive(policy, request("short", extend=100))
    after_work(policy, 140)
    assert admit(policy) == ["short", "long"]  # 140/100 against 1140/900


def test_a_cached_request_goes_first():
    policy = Hrrn()
    arrive(policy, request("cold", extend=10))
    after_work(policy, 5000)
    arrive(policy, request("cached", extend=0, matched=700))
    assert admit(policy) == ["cached", "cold"]


def test_a_retracted_request_has_waited_since_it_arrived():
    policy = Hrrn()
    retracted = request("retracted")
    arrive(policy, retracted)
    admit(policy)
    arrive(policy, request("new"), request("newer", extend=60))
    policy.requeue(retracted, 1.0)
    assert admit(policy) == ["retracted", "new", "newer"]


def test_it_stops_at_the_first_misfit_or_skips_it():
    for skip_misfit, admitted in ((False, ["one"]), (True, ["one", "three"])):
        policy = make_policy("HRRN", ReplicaPolicyConfig(skip_misfit=skip_misfit))
        arrive(policy, request("one"), request("two"), request("three"))
        assert admit(policy, misfits=("two",)) == admitted


def test_ended_requests_leave_nothing():
    policy = Hrrn()
    running, waiting = request("running"), request("waiting")
    arrive(policy, running, waiting)
    admit(policy, room=1)
    for one in (running, waiting):
        policy.leave(one, 1.0)
    assert len(policy) == 0 and admit(policy) == []
