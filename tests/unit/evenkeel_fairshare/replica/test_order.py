"""The order among the requests that DLPM may admit. All are of one client with enough credit."""

from __future__ import annotations

import pytest
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.order import LONGEST_MATCH, MATCH_OCTAVES, ORDERS

from tests.support.replica import admit, arrive, request


def dlpm(**options) -> Dlpm:
    return Dlpm(rules=DeficitRules(quantum=10**9), **options)


def test_long_cold_prompts_go_after_short_ones_and_warm_ones():
    policy = dlpm(order=MATCH_OCTAVES)
    arrive(
        policy,
        request("very long", extend=80_000),
        request("long", extend=12_000),
        request("half cached", extend=12_000, matched=12_000),
        request("short", extend=2_000),
        request("warm", extend=90, matched=3_000),
        request("warmer", extend=500, matched=9_000),
    )
    assert admit(policy) == ["warmer", "warm", "half cached", "short", "long", "very long"]


def test_equal_requests_go_by_arrival():
    policy = dlpm(order=MATCH_OCTAVES)
    arrive(policy, request("first"), request("second", extend=90), request("third", extend=80))
    assert admit(policy) == ["first", "second", "third"]


@pytest.mark.parametrize("order", [LONGEST_MATCH, MATCH_OCTAVES])
def test_short_prompts_go_in_the_order_of_lpm(order):
    policy = dlpm(order=order)
    arrive(policy, request("long", extend=900), request("match", matched=1), request("short"))
    assert admit(policy) == ["match", "long", "short"]


def test_the_longest_match_is_the_default():
    policy = dlpm()
    arrive(policy, request("short"), request("match", extend=80_000, matched=500))
    assert admit(policy) == ["match", "short"]


@pytest.mark.parametrize(("name", "limit"), [("LongestMatch", 32), ("MatchOctaves", 16)])
def test_each_order_has_its_own_limit_on_overtaking(name, limit):
    policy = dlpm(order=ORDERS[name])
    arrive(policy, request("cold", extend=80_000))
    arrive(policy, *(request(f"warm{n}", matched=9_000) for n in range(limit + 2)))
    assert admit(policy).index("cold") == limit


@pytest.mark.parametrize(("waiting", "limit"), [(10, 16), (50, 50)])
def test_with_match_octaves_all_that_wait_may_overtake_the_oldest(waiting, limit):
    policy = dlpm(order=MATCH_OCTAVES)
    arrive(policy, request("first"), request("cold", extend=80_000))
    arrive(policy, *(request(f"warm{n}", matched=9_000) for n in range(waiting)))
    policy.leave(next(iter(policy.waiting())), 0.0)  # "cold" becomes the oldest
    arrive(policy, *(request(f"warmer{n}", matched=9_500) for n in range(100)))
    assert admit(policy).index("cold") == limit
