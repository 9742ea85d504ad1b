"""DLPM as replicas run it: who goes before whom, of different clients and of one (docs/design/0001).

A request extends by 100 tokens unless it says otherwise.
"""

from __future__ import annotations

import pytest
from evenkeel_fairshare.replica.deficit import DeficitLevel, DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.longest_first import MOST_OVERTAKEN

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


def test_whoever_has_just_come_is_sparing_down_to_its_last_token_of_credit():
    level = DeficitLevel(DeficitRules(quantum=100))
    account = level.join("a", weight=1)
    account.begin_waiting()
    level.refill()
    account.charge(99)
    assert account.sparing
    account.charge(1)
    assert not account.sparing


def test_of_the_sparing_the_longest_match_goes_first():
    policy = dlpm(1000)
    arrive(policy, request("cold", "a"), request("warm", "b", matched=5))
    assert admit(policy) == ["warm", "cold"]


def cold_beside_warm(count: int) -> Dlpm:
    """A client with a cold request, the oldest, and `count` warm ones."""
    policy = dlpm(1_000_000)
    arrive(policy, request("cold", "a"))
    arrive(policy, *(request(f"warm{n}", "a", matched=9) for n in range(count)))
    return policy


def test_the_oldest_goes_next_once_it_was_overtaken_often_enough():
    policy = cold_beside_warm(MOST_OVERTAKEN + 2)
    *before, cold, after, last = admit(policy)
    assert before == [f"warm{n}" for n in range(MOST_OVERTAKEN)]
    assert (cold, after, last) == ("cold", f"warm{MOST_OVERTAKEN}", f"warm{MOST_OVERTAKEN + 1}")


def test_how_often_it_was_overtaken_counts_over_all_passes():
    policy = cold_beside_warm(MOST_OVERTAKEN)
    assert "cold" not in admit(policy, room=MOST_OVERTAKEN - 1)
    arrive(policy, *(request(f"more{n}", "a", matched=9) for n in range(2)))
    assert admit(policy) == [f"warm{MOST_OVERTAKEN - 1}", "cold", "more0", "more1"]


def test_those_of_other_clients_overtake_nobody():
    policy = cold_beside_warm(1)
    arrive(policy, *(request(f"b{n}", "b", matched=5) for n in range(2 * MOST_OVERTAKEN)))
    assert admit(policy)[-1] == "cold"


def test_who_becomes_the_oldest_was_overtaken_by_nobody():
    policy = dlpm(1_000_000)
    gone = request("gone", "a")
    arrive(policy, gone, request("cold", "a"))
    arrive(policy, *(request(f"warm{n}", "a", matched=9) for n in range(MOST_OVERTAKEN)))
    admit(policy, room=MOST_OVERTAKEN - 1)
    policy.leave(gone, 0.0)
    arrive(policy, request("warmer", "a", matched=10))
    assert admit(policy) == ["warmer", f"warm{MOST_OVERTAKEN - 1}", "cold"]


def test_others_go_on_while_the_oldest_waits_for_a_prefix():
    policy = cold_beside_warm(MOST_OVERTAKEN + 2)
    admit(policy, room=MOST_OVERTAKEN)
    last = [f"warm{MOST_OVERTAKEN}", f"warm{MOST_OVERTAKEN + 1}"]
    assert admit(policy, later=("cold",)) == last


def test_who_gives_up_overtakes_nobody():
    policy = cold_beside_warm(MOST_OVERTAKEN)
    for one in [one for one in policy.waiting() if one.id != "cold"][:5]:
        policy.leave(one, 0.0)
    arrive(policy, *(request(f"more{n}", "a", matched=9) for n in range(5)))
    assert admit(policy)[-1] == "cold"


def test_a_retracted_request_is_the_oldest_of_its_client():
    policy = cold_beside_warm(MOST_OVERTAKEN)
    retracted = next(one for one in policy.waiting() if one.id == "warm0")
    admit(policy, room=MOST_OVERTAKEN - 1)
    retracted.matched_tokens = 0
    policy.requeue(retracted, 0.0)
    arrive(policy, request("more", "a", matched=9))
    assert admit(policy) == [f"warm{MOST_OVERTAKEN - 1}", "warm0", "more", "cold"]


def test_lines_are_forgotten_with_those_that_stood_in_them():
    policy = cold_beside_warm(2)
    cold, warm, aborted = policy.waiting()
    admit(policy, room=1)
    policy.leave(aborted, 0.0)
    assert list(policy.lines) == [policy.tenants.members["t"].children.members["a"]]
    admit(policy)
    policy.leave(cold, 0.0)
    policy.leave(warm, 0.0)
    assert not policy.lines
