"""Deficit round robin, on rings small enough to go round by hand.

A request has 100 tokens of input unless it says otherwise, an output token costs 2, and a turn gives 100.
"""

from __future__ import annotations

import pytest
from evenkeel_fairshare.replica.contract import ClientDeficits, Request
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.drr import Drr
from evenkeel_fairshare.replica.registry import ReplicaPolicyConfig, make_policy

from tests.support.costs import QuadraticCost
from tests.support.replica import admit, arrive, decode, deficit, request


def drr(quantum: float = 100, **options) -> Drr:
    return Drr(rules=DeficitRules(quantum=quantum, **options))


def requests(client: str, count: int, **fields) -> list[Request]:
    return [request(f"{client}{n}", client, **fields) for n in range(count)]


def test_clients_take_turns_in_order_of_joining():
    policy = drr()
    arrive(policy, *requests("b", 2), *requests("a", 2), *requests("c", 2))
    assert admit(policy) == ["b0", "a0", "c0", "b1", "a1", "c1"]


def test_a_turn_lasts_until_the_last_request_has_spent_the_quantum():
    policy = drr(quantum=250)
    arrive(policy, *requests("a", 5), *requests("b", 4))
    assert admit(policy) == ["a0", "a1", "a2", "b0", "b1", "b2", "a3", "a4", "b3"]
    # a: 250 - 300 + 250 - 200; b: 250 - 300 + 250 - 100
    assert (deficit(policy, "a"), deficit(policy, "b")) == (0, 100)


def test_the_next_pass_goes_on_with_the_turn_that_memory_ended():
    policy = drr(quantum=250)
    arrive(policy, *requests("a", 4), *requests("b", 2))
    assert admit(policy, room=1) == ["a0"]
    assert admit(policy, room=1) == ["a1"]
    assert deficit(policy, "a") == 50
    assert admit(policy) == ["a2", "b0", "b1", "a3"]


def test_a_turn_is_over_when_output_has_spent_what_was_left():
    policy = drr(quantum=250)
    one, *others = requests("a", 3)
    arrive(policy, one, *others, *requests("b", 1))
    assert admit(policy, room=1) == ["a0"]
    decode(policy, one, 75)
    assert deficit(policy, "a") == 0
    assert admit(policy) == ["b0", "a1", "a2"]


def test_who_has_something_left_waits_for_its_turn_all_the_same():
    policy = drr(quantum=500)
    arrive(policy, *requests("a", 1), *requests("b", 2))
    assert admit(policy, room=2) == ["a0", "b0"]
    arrive(policy, request("a1", "a"))
    assert admit(policy) == ["b1", "a1"]


def test_output_may_cost_many_turns():
    policy = drr()
    long = request("long", "a")
    arrive(policy, long, request("a1", "a"), *requests("b", 6))
    assert admit(policy, room=1) == ["long"]
    decode(policy, long, 200)  # a is at -400: positive after its fifth turn from now
    assert admit(policy) == ["b0", "b1", "b2", "b3", "b4", "a1", "b5"]


def test_a_misfit_ends_the_pass():
    policy = drr()
    arrive(policy, *requests("a", 1), *requests("b", 1))
    assert admit(policy, misfits=("a0",)) == []
    assert admit(policy) == ["a0", "b0"]


def test_a_turn_gives_the_quantum_times_both_weights():
    policy = drr()
    arrive(policy, *requests("a", 6, tenant_weight=3, client_weight=2), *requests("b", 2))
    assert admit(policy) == [*(f"a{n}" for n in range(6)), "b0", "b1"]


def test_the_newest_weight_counts_from_the_next_turn_on():
    policy = drr()
    arrive(policy, *requests("a", 2), *requests("b", 2))
    assert admit(policy, room=2) == ["a0", "b0"]
    arrive(policy, request("a2", "a", client_weight=3), request("a3", "a", client_weight=3))
    # a's second turn had begun before memory was full: it gave 100.
    assert admit(policy) == ["a1", "b1", "a2", "a3"]


def test_a_newcomer_sits_down_last_and_has_its_turn_in_the_same_round():
    policy = drr()
    arrive(policy, *requests("a", 3), *requests("b", 3))
    assert admit(policy, room=1) == ["a0"]
    arrive(policy, *requests("c", 2))
    assert admit(policy) == ["b0", "c0", "a1", "b1", "c1", "a2", "b2"]


def test_turns_pay_off_the_debt_of_a_client_without_waiting_requests():
    policy = drr()
    running = request("a0", "a")
    arrive(policy, running, *requests("b", 9))
    assert admit(policy, room=1) == ["a0"]
    decode(policy, running, 75)
    assert deficit(policy, "a") == -150
    for want in (-50, 50, 50):
        assert admit(policy, room=1)  # and b's next turn begins, after one of a
        assert deficit(policy, "a") == want


def test_who_leaves_loses_its_credit():
    policy = drr(quantum=1000)
    one = request("a0", "a")
    arrive(policy, one)
    admit(policy)
    assert deficit(policy, "a") == 900
    policy.leave(one, 0.0)
    assert policy.clients() == {}
    arrive(policy, request("a1", "a"))
    assert deficit(policy, "a") == 0


def leave_in_debt(policy: Drr, client: str, debt: int) -> None:
    one = request(f"{client}0", client, extend=policy._rules.quantum + debt)
    arrive(policy, one)
    assert admit(policy) == [one.id]
    policy.leave(one, 0.0)


def test_who_leaves_keeps_its_debt_and_turns_work_it_off():
    policy = drr()
    leave_in_debt(policy, "a", 250)
    assert deficit(policy, "a") == -250
    arrive(policy, *requests("b", 3))
    assert admit(policy, room=2) == ["b0", "b1"]
    assert deficit(policy, "a") == -50
    arrive(policy, request("a1", "a"))
    assert deficit(policy, "a") == -50, "it comes back with what is left"
    assert admit(policy) == ["b2", "a1"]


def test_a_debt_worked_off_to_the_last_token_is_reported_no_more():
    policy = drr()
    leave_in_debt(policy, "a", 100)
    arrive(policy, *requests("b", 2))
    assert admit(policy, room=1) == ["b0"]
    assert set(policy.clients()) == {"b"}


def test_who_leaves_with_neither_debt_nor_credit_gives_up_its_seat():
    policy = drr()
    leave_in_debt(policy, "a", 0)
    assert policy._accounts == policy._away == {}


def test_reports_have_balances_and_waiting_requests():
    policy = drr()
    arrive(policy, *requests("a", 3), request("b0", "b"))
    admit(policy, room=1)
    assert policy.clients() == {"a": ClientDeficits(0, 0, 2), "b": ClientDeficits(100, 0, 1)}


def test_a_debt_worked_off_makes_room_for_a_new_seat_without_credit():
    policy = drr()
    leave_in_debt(policy, "a", 150)
    arrive(policy, *requests("b", 4), *requests("c", 4))
    assert admit(policy, room=5) == ["b0", "c0", "b1", "c1", "b2"]
    assert "a" not in policy.clients()
    arrive(policy, request("a1", "a"))
    assert deficit(policy, "a") == 0
    assert admit(policy) == ["c2", "a1", "b3", "c3"]


def test_a_debt_worked_off_to_the_last_token_makes_room_too():
    policy = drr()
    leave_in_debt(policy, "a", 100)
    arrive(policy, *requests("b", 2))
    assert admit(policy, room=1) == ["b0"]
    arrive(policy, request("a1", "a"))
    assert policy._accounts["a"].tie > policy._accounts["b"].tie, (
        "the last in the ring, no more the first"
    )
    assert admit(policy) == ["b1", "a1"]


def test_of_those_that_left_in_debt_the_largest_debts_are_remembered():
    policy = drr(quantum=1, remembered=4)
    for client, debt in zip("abcd", (700, 200, 900, 400), strict=True):
        leave_in_debt(policy, client, debt)
    assert set(policy.clients()) == set("abcd")
    leave_in_debt(policy, "e", 800)
    assert set(policy.clients()) == set("ace")
    assert set(policy._away) == set("ace")


def test_a_retracted_request_goes_first_and_pays_again():
    policy = drr(quantum=1000)
    one, two = requests("a", 2)
    arrive(policy, one, two)
    admit(policy, room=1)
    decode(policy, one, 10)
    policy.requeue(one, 0.0)
    assert admit(policy) == ["a0", "a1"]
    assert deficit(policy, "a") == 1000 - 100 - 20 - 110 - 100


def test_input_charged_elsewhere_is_charged_only_when_computed_again():
    policy = drr(quantum=1000)
    one = request("a0", "a", charge_input=False)
    arrive(policy, one)
    admit(policy)
    assert deficit(policy, "a") == 1000
    policy.requeue(one, 0.0)
    admit(policy)
    assert deficit(policy, "a") == 900


def test_aborting_what_waits_gives_up_the_seat():
    policy = drr()
    one, two = requests("a", 2)
    arrive(policy, one, two)
    policy.leave(one, 0.0)
    assert set(policy.clients()) == {"a"} and len(policy) == 1
    policy.leave(two, 0.0)
    assert policy.clients() == {} and len(policy) == 0


def test_a_general_cost_is_charged_by_the_difference():
    policy = Drr(
        rules=DeficitRules(quantum=10_000),
        cost=QuadraticCost(extend=1, output=2, product=0.5, output_squared=1),
    )
    one = request("a0", "a")
    arrive(policy, one)
    admit(policy)
    decode(policy, one, 3)
    decode(policy, one, 2)
    assert deficit(policy, "a") == 10_000 - (100 + 2 * 5 + 0.5 * 100 * 5 + 25)


@pytest.mark.parametrize("quantum", [8000.0, 7.0])
def test_the_registry_passes_its_configuration_on(quantum):
    policy = make_policy("DRR", ReplicaPolicyConfig(deficits=DeficitRules(quantum=quantum)))
    arrive(policy, request("a0", "a", extend=5))
    admit(policy)
    assert deficit(policy, "a") == quantum - 5
