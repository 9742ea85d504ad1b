"""DLPM as replicas run it: who needs every round stands back for those that do not (docs/design/0001).

A request extends by 100 tokens unless it says otherwise.
"""

from __future__ import annotations

import pytest
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm

from tests.support.replica import admit, arrive, deficit, request


def dlpm(quantum: float) -> Dlpm:
    return Dlpm(rules=DeficitRules(quantum=quantum), longest_first=True)


LEVELS = pytest.mark.parametrize("others", ["t", "u"], ids=["of one tenant", "of two"])


def beside_a_flood(others: str) -> Dlpm:
    """b, of the tenant `others`, took three rounds, for two of which a lived on its first."""
    policy = dlpm(150)
    flood = (request(f"b{n}", "b", others, matched=9) for n in range(8))
    arrive(policy, request("a0", "a"), *flood)
    assert admit(policy, room=4) == ["b0", "b1", "a0", "b2"]
    assert (deficit(policy, "a"), deficit(policy, "b")) == (50, 150)
    return policy


@LEVELS
def test_credit_of_an_older_round_goes_before_a_longer_match(others):
    policy = beside_a_flood(others)
    arrive(policy, request("a1", "a"))
    assert admit(policy) == ["a1", "b3", "b4", "b5", "b6", "b7"]


@LEVELS
def test_who_lived_longer_than_a_round_on_its_credit_goes_first_in_the_next_round_it_gets(others):
    policy = beside_a_flood(others)
    arrive(policy, *(request(f"a{n}", "a") for n in range(1, 5)))
    # a1 spends what a had. After the refill a2 spends all of a's round within it, so in the next the longer match goes first.
    assert admit(policy) == ["a1", "b3", "b4", "a2", "b5", "b6", "b7", "a3", "a4"]


@LEVELS
def test_who_has_just_come_goes_first_in_the_next_round(others):
    policy = dlpm(150)
    arrive(policy, *(request(f"b{n}", "b", others, matched=9) for n in range(5)))
    assert admit(policy, room=1) == ["b0"]
    arrive(policy, request("a0", "a"))
    assert admit(policy) == ["b1", "a0", "b2", "b3", "b4"]


def test_who_comes_back_goes_first_in_the_next_round_whatever_it_took_before():
    policy = dlpm(150)
    gone = [request("c0", "c"), request("c1", "c")]
    arrive(policy, *(request(f"b{n}", "b", matched=9) for n in range(4)), *gone)
    assert admit(policy) == ["b0", "b1", "c0", "c1", "b2", "b3"]
    for one in gone:
        policy.leave(one, 0.0)
    arrive(policy, *(request(f"b{n}", "b", matched=9) for n in range(4, 8)))
    arrive(policy, request("c2", "c"), request("c3", "c"))
    assert admit(policy) == ["b4", "c2", "c3", "b5", "b6", "b7"]


@LEVELS
def test_who_takes_every_round_stands_back_while_a_sparing_one_waits_for_a_prefix(others):
    policy = beside_a_flood(others)
    arrive(policy, request("fork", "a"), request("a1", "a", extend=40))
    assert admit(policy, later=("fork",)) == ["a1"]
    assert admit(policy, room=2) == ["fork", "b3"]


def test_nobody_stands_back_for_one_that_takes_every_round_as_well():
    policy = beside_a_flood("t")
    assert admit(policy, later=("b3", "b5")) == ["b4", "b6", "b7"]


def test_of_the_sparing_the_longest_match_goes_first():
    policy = dlpm(1000)
    arrive(policy, request("cold", "a"), request("warm", "b", matched=5))
    assert admit(policy) == ["warm", "cold"]
