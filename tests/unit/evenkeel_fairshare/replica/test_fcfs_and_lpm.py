"""The two orders without fairness."""

from __future__ import annotations

from evenkeel_fairshare.replica.contract import ReplicaPolicy
from evenkeel_fairshare.replica.fcfs import Fcfs
from evenkeel_fairshare.replica.lpm import Lpm
from evenkeel_fairshare.replica.registry import POLICIES, ReplicaPolicyConfig, make_policy

from tests.support.replica import admit, arrive, request


def four(policy: ReplicaPolicy) -> None:
    arrive(
        policy,
        request("cold", "a"),
        request("warm", "b", matched=50),
        request("warmer", "a", matched=70),
        request("as warm", "c", matched=50),
    )


def test_fcfs_goes_by_arrival():
    policy = Fcfs()
    four(policy)
    assert admit(policy) == ["cold", "warm", "warmer", "as warm"]


def test_fcfs_stops_at_the_first_misfit():
    policy = Fcfs()
    four(policy)
    assert admit(policy, misfits=("warm",)) == ["cold"]
    assert admit(policy) == ["warm", "warmer", "as warm"]


def test_lpm_goes_by_match_and_by_arrival_among_equals():
    policy = Lpm()
    four(policy)
    assert admit(policy) == ["warmer", "warm", "as warm", "cold"]


def test_lpm_stops_at_the_first_misfit():
    policy = Lpm()
    four(policy)
    assert admit(policy, misfits=("warm",)) == ["warmer"]


def test_lpm_can_skip_misfits():
    policy = make_policy("LPM", ReplicaPolicyConfig(skip_misfit=True))
    four(policy)
    assert admit(policy, misfits=("warm",)) == ["warmer", "as warm", "cold"]
    assert [one.id for one in policy.waiting()] == ["warm"]


def test_a_retracted_request_is_the_first_among_its_equals():
    for policy in (Fcfs(), Lpm()):
        first, second = request("first"), request("second")
        arrive(policy, first, second)
        admit(policy, room=1)
        policy.requeue(first, 1.0)
        assert admit(policy) == ["first", "second"]


def test_only_policies_that_sort_by_match_ask_for_matches():
    assert {name: make_policy(name).matches_prefix for name in POLICIES} == {
        "FCFS": False,
        "LPM": True,
        "HRRN": True,
        "VTC": False,
        "VTCPredict": False,
        "LCF": False,
        "DRR": False,
        "DLPM": True,
    }


def test_policies_without_fairness_keep_no_deficits_and_preempt_none():
    for policy in (Fcfs(), Lpm()):
        four(policy)
        assert all(state.deficit == 0 for state in policy.clients().values())
        assert policy.preempt([], 0.0) == ()
