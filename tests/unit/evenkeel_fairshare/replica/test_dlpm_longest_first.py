"""DLPM's order: of different clients, and of the requests of one (docs/design/0001).

A request extends by 100 tokens unless it says otherwise.
"""

from __future__ import annotations

import pytest
from evenkeel_fairshare.replica.contract import AdmissionResult
from evenkeel_fairshare.replica.deficit import DeficitLevel, DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.order import LONGEST_MATCH
from evenkeel_laboratory.policies.registry import check_refill

from tests.support.replica import admit, arrive, deficit, request

MAX_OVERTAKEN = LONGEST_MATCH.max_overtaken


def dlpm(quantum: float) -> Dlpm:
    return Dlpm(rules=DeficitRules(quantum=quantum))


LEVELS = pytest.mark.parametrize("others", ["t", "u"], ids=["of one tenant", "of two"])


def beside_a_flood(others: str) -> Dlpm:
    """b, of the tenant `others`, took three refills; a lived on its first during two of them."""
    policy = dlpm(150)
    flood = (request(f"b{n}", "b", others, matched=9) for n in range(8))
    arrive(policy, request("a0", "a"), *flood)
    assert admit(policy, room=4) == ["b0", "b1", "a0", "b2"]
    assert (deficit(policy, "a"), deficit(policy, "b")) == (50, 150)
    return policy


@LEVELS
def test_credit_of_an_older_refill_goes_before_a_longer_match(others):
    policy = beside_a_flood(others)
    arrive(policy, request("a1", "a"))
    assert admit(policy) == ["a1", "b3", "b4", "b5", "b6", "b7"]


@LEVELS
def test_a_client_below_its_share_goes_first_after_its_next_refill(others):
    policy = beside_a_flood(others)
    arrive(policy, *(request(f"a{n}", "a") for n in range(1, 5)))
    # a1 spends what a had. After the refill a2 spends all of it at once, so in the next the longer match goes first.
    assert admit(policy) == ["a1", "b3", "b4", "a2", "b5", "b6", "b7", "a3", "a4"]


@LEVELS
def test_a_new_client_goes_first_after_the_next_refill(others):
    policy = dlpm(150)
    arrive(policy, *(request(f"b{n}", "b", others, matched=9) for n in range(5)))
    assert admit(policy, room=1) == ["b0"]
    arrive(policy, request("a0", "a"))
    assert admit(policy) == ["b1", "a0", "b2", "b3", "b4"]


def test_a_client_that_comes_back_goes_first_after_the_next_refill():
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
def test_heavy_clients_yield_while_a_light_one_waits_for_a_prefix(others):
    policy = beside_a_flood(others)
    arrive(policy, request("fork", "a"), request("a1", "a", extend=40))
    assert admit(policy, later=("fork",)) == ["a1"]
    assert admit(policy, room=2) == ["fork", "b3"]


def test_no_client_yields_to_a_heavy_one():
    policy = beside_a_flood("t")
    assert admit(policy, later=("b3", "b5")) == ["b4", "b6", "b7"]


def test_a_new_member_is_light_down_to_its_last_token_of_credit():
    level = DeficitLevel(DeficitRules(quantum=100))
    account = level.join("a", weight=1)
    account.waiting = 1
    check_refill(level)
    account.charge(99)
    assert account.is_light
    account.charge(1)
    assert not account.is_light


def test_the_end_of_debts_makes_no_member_light():
    level = DeficitLevel(DeficitRules(quantum=100))
    heavy, indebted = (level.join(name, weight=1) for name in "ab")
    heavy.waiting = 1
    check_refill(level)
    heavy.charge(100)
    check_refill(level)  # it needed both refills
    indebted.charge(350)
    assert not heavy.is_light
    level.end_debts()
    assert level.refills == 5
    assert not heavy.is_light


@pytest.mark.parametrize("told", [{"later": ("x0", "x1")}, {"held": ("x",)}], ids=["each", "once"])
def test_requests_that_have_to_wait_bring_their_tenant_no_refill(told):
    policy = dlpm(100)
    arrive(policy, request("x0", "x"), request("x1", "x"), request("y0", "y"))
    assert admit(policy, **told) == ["y0"]
    assert policy.tenants.refills == 1, (
        "the tenant is in debt, and all of its requests were refused"
    )


def test_among_light_clients_the_longest_match_goes_first():
    policy = dlpm(1000)
    arrive(policy, request("cold", "a"), request("warm", "b", matched=5))
    assert admit(policy) == ["warm", "cold"]


def test_a_waiting_request_moves_with_its_match():
    policy = dlpm(1000)
    colder, same, warmer = (request(one, "a", matched=5) for one in ("colder", "same", "warmer"))
    arrive(policy, colder, same, warmer)
    colder.matched_tokens, warmer.matched_tokens = 0, 9
    for one in (colder, same, warmer):
        policy.rematched(one)
    assert admit(policy) == ["warmer", "same", "colder"]


def test_equal_matches_go_in_order_of_arrival_also_after_a_change():
    policy = dlpm(1000)
    older, newer = request("older", "a"), request("newer", "a", matched=5)
    arrive(policy, older, newer)
    older.matched_tokens = 5
    policy.rematched(older)
    assert admit(policy) == ["older", "newer"]


def cold_beside_warm(count: int) -> Dlpm:
    """A client with a cold request, the oldest, and `count` warm ones."""
    policy = dlpm(1_000_000)
    arrive(policy, request("cold", "a"))
    arrive(policy, *(request(f"warm{n}", "a", matched=9) for n in range(count)))
    return policy


def test_the_oldest_goes_next_once_it_was_overtaken_often_enough():
    policy = cold_beside_warm(MAX_OVERTAKEN + 2)
    *before, cold, after, last = admit(policy)
    assert before == [f"warm{n}" for n in range(MAX_OVERTAKEN)]
    assert (cold, after, last) == ("cold", f"warm{MAX_OVERTAKEN}", f"warm{MAX_OVERTAKEN + 1}")


def test_how_often_it_was_overtaken_counts_over_all_passes():
    policy = cold_beside_warm(MAX_OVERTAKEN)
    assert "cold" not in admit(policy, room=MAX_OVERTAKEN - 1)
    arrive(policy, *(request(f"more{n}", "a", matched=9) for n in range(2)))
    assert admit(policy) == [f"warm{MAX_OVERTAKEN - 1}", "cold", "more0", "more1"]


def test_requests_of_other_clients_do_not_count():
    policy = cold_beside_warm(1)
    arrive(policy, *(request(f"b{n}", "b", matched=5) for n in range(2 * MAX_OVERTAKEN)))
    assert admit(policy)[-1] == "cold"


def test_the_count_begins_anew_with_the_next_oldest_request():
    policy = dlpm(1_000_000)
    gone = request("gone", "a")
    arrive(policy, gone, request("cold", "a"))
    arrive(policy, *(request(f"warm{n}", "a", matched=9) for n in range(MAX_OVERTAKEN)))
    admit(policy, room=MAX_OVERTAKEN - 1)
    policy.leave(gone, 0.0)
    arrive(policy, request("warmer", "a", matched=10))
    assert admit(policy) == ["warmer", f"warm{MAX_OVERTAKEN - 1}", "cold"]


def test_others_go_on_while_the_oldest_waits_for_a_prefix():
    policy = cold_beside_warm(MAX_OVERTAKEN + 2)
    admit(policy, room=MAX_OVERTAKEN)
    last = [f"warm{MAX_OVERTAKEN}", f"warm{MAX_OVERTAKEN + 1}"]
    assert admit(policy, later=("cold",)) == last


def test_an_aborted_request_does_not_count():
    policy = cold_beside_warm(MAX_OVERTAKEN)
    for one in [one for one in policy.waiting() if one.id != "cold"][:5]:
        policy.leave(one, 0.0)
    arrive(policy, *(request(f"more{n}", "a", matched=9) for n in range(5)))
    assert admit(policy)[-1] == "cold"


def test_a_retracted_request_is_the_oldest_of_its_client():
    policy = cold_beside_warm(MAX_OVERTAKEN)
    retracted = next(one for one in policy.waiting() if one.id == "warm0")
    admit(policy, room=MAX_OVERTAKEN - 1)
    retracted.matched_tokens = 0
    policy.requeue(retracted, 0.0)
    arrive(policy, request("more", "a", matched=9))
    assert admit(policy) == [f"warm{MAX_OVERTAKEN - 1}", "warm0", "more", "cold"]


def test_a_client_queue_is_forgotten_once_it_is_empty():
    policy = cold_beside_warm(2)
    cold, warm, aborted = policy.waiting()
    admit(policy, room=1)
    policy.leave(aborted, 0.0)
    tenant = policy.tenants.members["t"]
    assert [*policy.tenant_queues] == [tenant]
    assert [*policy.tenant_queues[tenant]] == [tenant.children.members["a"]]
    admit(policy)
    policy.leave(cold, 0.0)
    policy.leave(warm, 0.0)
    assert not policy.tenant_queues


def test_a_light_client_that_a_larger_quantum_makes_heavy_goes_last():
    policy = Dlpm(rules=DeficitRules(quantum=100))
    arrive(policy, request("a0", "a", extend=150), request("b", "b", extend=50))
    admit(policy)
    arrive(policy, request("a1", "a", matched=9), *(request(f"b{n}", "b") for n in range(6)))
    # The others get refills that `a` does not need.
    assert admit(policy, room=4, answers={"a1": AdmissionResult.HELD}) == ["b0", "b1", "b2", "b3"]
    assert admit(policy, room=0) == []
    client = policy.tenants.members["t"].children.members["a"]
    assert client.is_light
    policy.change_quantum(1000)
    assert not client.is_light
    arrive(policy, request("c0", "c"))
    assert admit(policy) == ["c0", "a1", "b4", "b5"]
