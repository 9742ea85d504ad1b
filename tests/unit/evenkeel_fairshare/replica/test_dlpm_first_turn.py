"""DLPM: who joins without a debt gets the quantum of the current round, once per round (design R17)."""

from __future__ import annotations

import pytest
from evenkeel_fairshare.replica.deficit import DeficitRules, Rejoin
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_laboratory.policies.registry import LaboratoryConfig, policies

from tests.support.replica import admit, arrive, deficit, request


def busy(**rules) -> Dlpm:
    """A quantum of 100; `heavy` has used one, has 90 of the second, and waits with longer matches than others have."""
    policy = Dlpm(rules=DeficitRules(quantum=100, **rules))
    arrive(policy, *(request(f"heavy-{n}", "heavy", extend=10, matched=50) for n in range(60)))
    assert len(admit(policy, room=11)) == 11
    return policy


def visit(policy: Dlpm, name: str, *, extend: int = 10) -> None:
    """A request of client `a` is admitted, and ends."""
    one = request(name, extend=extend)
    arrive(policy, one)
    assert admit(policy, room=1) == [name]
    policy.leave(one, 0.0)


def next_round(policy: Dlpm) -> None:
    """`heavy` uses up its quantum, and the next refill comes."""
    admit(policy, room=10)
    assert deficit(policy, "heavy") == 90


def test_a_newcomer_goes_before_clients_with_credit_are_through():
    policy = busy()
    arrive(policy, request("new"))
    assert deficit(policy, "a") == 100
    assert admit(policy, room=2) == ["new", "heavy-11"]


def test_the_first_round_of_a_level_comes_with_its_first_refill():
    policy = Dlpm(rules=DeficitRules(quantum=100))
    arrive(policy, request("new"))
    assert deficit(policy, "a") == 0


def test_coming_back_in_the_same_round_earns_nothing():
    policy = busy()
    visit(policy, "first", extend=30)
    for n in range(3):
        arrive(policy, again := request(f"again-{n}"))
        assert deficit(policy, "a") == 0
        policy.leave(again, 0.0)


def test_a_client_that_comes_back_in_a_later_round_gets_that_round_s_quantum():
    policy = busy()
    visit(policy, "first", extend=30)
    next_round(policy)
    arrive(policy, request("second"))
    assert deficit(policy, "a") == 100, "neither the 70 of the round before, nor both"


def test_a_client_in_debt_gets_no_turn_until_its_debt_is_paid():
    policy = busy()
    visit(policy, "first", extend=250)
    for owed in (-150, -50, -50):
        arrive(policy, one := request("again"))
        assert deficit(policy, "a") == owed
        policy.leave(one, 0.0)
        next_round(policy)


def test_a_refill_that_pays_the_last_of_a_debt_is_no_turn_too():
    policy = busy()
    visit(policy, "first", extend=200)
    next_round(policy)
    arrive(policy, one := request("paid"))
    assert deficit(policy, "a") == 0
    policy.leave(one, 0.0)
    next_round(policy)
    arrive(policy, request("later"))
    assert deficit(policy, "a") == 100


def test_a_tenant_joins_the_service_as_a_client_joins_its_tenant():
    policy = busy()
    arrive(policy, request("new", "a", "other"))
    state = policy.clients()["a"]
    assert state.tenant_deficit == 100
    assert state.deficit == 0, "its own level has had no refill yet"
    assert admit(policy, room=2) == ["new", "heavy-11"]


def test_a_new_client_of_a_tenant_in_debt_waits_with_its_tenant():
    policy = busy()
    spend = request("spend", "a", "other", extend=500)
    arrive(policy, spend)
    assert admit(policy, room=1) == ["spend"]
    for n in range(3):
        arrive(policy, request(f"name-{n}", f"churned-{n}", "other"))
    assert admit(policy, room=5) == [f"heavy-{n}" for n in range(11, 16)]


@pytest.mark.parametrize(("seed", "want"), [(-30, -30), (0, 100), (60, 100), (130, 130)])
def test_a_seed_of_credit_is_topped_up_to_a_quantum_and_a_debt_is_not(seed, want):
    policy = busy()
    arrive(policy, request("new", seed=seed))
    assert deficit(policy, "a") == want
    assert policy.clients()["a"].seed == seed, "the ledger reads the seed, not the turn"


def test_a_turn_is_given_by_weight():
    policy = busy()
    arrive(policy, request("new", client_weight=3))
    assert deficit(policy, "a") == 300


def test_a_turn_is_what_the_refill_gave_whatever_the_quantum_is_now():
    policy = busy()
    policy.change_quantum(400)
    arrive(policy, request("new"))
    assert deficit(policy, "a") == 100


def test_debts_of_absent_clients_are_paid_in_the_quanta_of_their_time():
    policy = busy()
    visit(policy, "first", extend=600)
    policy.change_quantum(50)
    admit(policy, room=10)  # 90 of credit, and the refill after it
    assert deficit(policy, "heavy") == 40
    assert policy.clients()["a"].deficit == -500 + 50


@pytest.mark.parametrize("rules", [{"first_turn": False}, {"rejoin": Rejoin.PAPER}])
def test_as_the_paper_prints_it_a_newcomer_waits_for_the_next_refill(rules):
    policy = busy(**rules)
    arrive(policy, request("new"))
    assert deficit(policy, "a") == 0


def test_the_printed_policy_of_experiments_gives_no_first_turn():
    made = policies(printed=True, artifact=False)["DLPM"]
    policy = made(LaboratoryConfig(deficits=DeficitRules(quantum=100)))
    assert isinstance(policy, Dlpm)
    assert not policy.tenants.rules.first_turn
