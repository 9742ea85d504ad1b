"""The order among the requests that DLPM may admit. All are of one client with enough credit."""

from __future__ import annotations

from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.order import least_work_for_its_match

from tests.support.replica import admit, arrive, request


def dlpm(**options) -> Dlpm:
    return Dlpm(rules=DeficitRules(quantum=10**9), **options)


def test_the_least_uncached_input_for_its_match_goes_first():
    policy = dlpm(order=least_work_for_its_match)
    arrive(
        policy,
        request("long", extend=5000),
        request("half cached", extend=3000, matched=3000),
        request("warm", extend=90, matched=200),
        request("short", extend=300),
        request("warmer", extend=500, matched=4000),
    )
    assert admit(policy) == ["warmer", "warm", "half cached", "short", "long"]


def test_equal_requests_go_by_arrival():
    policy = dlpm(order=least_work_for_its_match)
    arrive(policy, request("first"), request("with a match", extend=200, matched=100))
    assert admit(policy) == ["first", "with a match"]


def test_the_longest_match_is_the_default():
    policy = dlpm()
    arrive(policy, request("long", extend=900), request("match", matched=1), request("short"))
    assert admit(policy) == ["match", "long", "short"]
