"""DLPM reading by reading (ALGORITHMS §1.13), on queues small enough to work out by hand.

A request extends by 100 tokens unless it says otherwise, and an output token costs 2.
"""

from __future__ import annotations

import gc
from collections import Counter

import pytest
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.replica.contract import AdmissionResult, Request
from evenkeel_fairshare.replica.deficit import DeficitLevel, DeficitRules, Rejoin
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.registry import ReplicaPolicyConfig, make_policy
from evenkeel_fairshare.replica.rounds import HELD_REFILLS
from evenkeel_laboratory.policies.registry import PrintedDlpm, check_refill

from tests.support.costs import QuadraticCost
from tests.support.replica import admit, arrive, decode, deficit, request


def dlpm(quantum: float = 100, rejoin: Rejoin = Rejoin.KEEP_DEBT, **options) -> Dlpm:
    return Dlpm(rules=DeficitRules(quantum=quantum, rejoin=rejoin), **options)


# Order within a pass.


def test_the_longest_match_of_those_with_a_positive_deficit_goes_first():
    policy = dlpm(quantum=1000)
    arrive(
        policy,
        request("cold", "a"),
        request("warm", "b", matched=50),
        request("warmer", "a", matched=70),
    )
    assert admit(policy) == ["warmer", "warm", "cold"]


def test_equal_matches_go_in_order_of_arrival():
    policy = dlpm(quantum=1000)
    arrive(policy, *(request(id, id) for id in "cab"))
    assert admit(policy) == ["c", "a", "b"]


def test_a_client_pauses_once_its_quantum_is_spent_and_others_get_theirs():
    policy = dlpm()
    arrive(
        policy,
        *(request(f"a{n}", "a", matched=100) for n in range(3)),
        *(request(f"b{n}", "b") for n in range(3)),
    )
    # Each refill is for both, and a's matches are the longer ones.
    assert admit(policy) == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_a_refill_goes_back_to_the_longest_match_of_those_it_makes_positive():
    policy = dlpm()
    arrive(policy, *between_two_refills())
    # a0, b0, c0 spend the first quantum (c goes to -150). The refill gives a and b 100 each; c stays in debt. Then c is alone.
    assert admit(policy) == ["a0", "b0", "c0", "a1", "b1", "c1"]


def test_as_printed_a_refill_does_not_go_back_to_requests_passed_over():
    policy = PrintedDlpm(rules=DeficitRules(quantum=100))
    arrive(policy, *between_two_refills())
    # c1 refills a and b. b1 is still ahead in this walk; a1 was passed over and waits for the next.
    assert admit(policy) == ["a0", "b0", "c0", "b1", "a1", "c1"]


def between_two_refills() -> list[Request]:
    return [
        request("a0", "a", matched=9),
        request("a1", "a", matched=8),
        request("b0", "b", matched=7),
        request("c0", "c", matched=6, extend=250),
        request("c1", "c", matched=5),
        request("b1", "b", matched=4),
    ]


def test_one_request_may_overshoot_and_so_may_its_output():
    policy = dlpm()
    first, second = request("first", extend=500), request("second")
    arrive(policy, first, second, request("other", "b"))
    assert admit(policy, room=1) == ["first"]
    assert deficit(policy, "a") == 100 - 500
    decode(policy, first, 30)
    assert deficit(policy, "a") == 100 - 500 - 60
    assert admit(policy, room=1) == ["other"]


def test_a_misfit_ends_the_pass():
    policy = dlpm(quantum=1000)
    arrive(policy, request("big", "a", matched=5), request("small", "b"))
    assert admit(policy, misfits=("big",)) == []
    assert deficit(policy, "b") == 1000, "no client paid"


def test_a_misfit_can_be_skipped():
    policy = dlpm(quantum=1000, skip_misfit=True)
    arrive(policy, request("big", "a", matched=5), request("small", "b"))
    assert admit(policy, misfits=("big",)) == ["small"]
    assert [one.id for one in policy.waiting()] == ["big"]


def test_a_client_stays_while_one_of_its_requests_runs():
    policy = dlpm(quantum=1000)
    first, second = request("first", "a"), request("second", "a")
    arrive(policy, first, second)
    assert admit(policy) == ["first", "second"]
    policy.leave(first, 0.0)
    assert deficit(policy, "a") == 800
    policy.leave(second, 0.0)
    assert "a" not in policy.clients()


def test_no_refill_once_all_requests_were_proposed():
    policy = dlpm(skip_misfit=True)
    arrive(policy, request("big", "a", matched=5), request("small", "a"))
    assert admit(policy, misfits=("big",)) == ["small"]
    tenant = policy.tenants.members["t"]
    assert (tenant.deficit, deficit(policy, "a")) == (0, 0)
    assert (policy.tenants.refills, tenant.children.refills) == (1, 1)


def test_a_skipped_misfit_blocks_the_refill_of_others():
    """§1.13 f: the only positive client does not fit, so no other is refilled."""
    policy = dlpm(skip_misfit=True)
    spent = request("spent", "b")
    arrive(policy, spent, request("big", "a"), request("more", "b"))
    assert admit(policy, misfits=("big",)) == ["spent"]
    assert admit(policy, misfits=("big",)) == []
    assert admit(policy) == ["big", "more"]


# Refills.


def test_a_refill_gives_every_queued_client_the_same_least_number_of_quanta():
    """§1.13 b: k is the smallest that makes one of them positive."""
    policy = dlpm()
    arrive(
        policy,
        request("a0", "a", seed=-250),
        request("b0", "b", seed=-310),
        request("c0", "c", seed=-1000),
    )
    assert admit(policy, room=0) == []
    assert [deficit(policy, client) for client in "abc"] == [50, -10, -700]
    assert policy.tenants.members["t"].children.refills == 3


def test_a_deficit_of_exactly_zero_is_not_positive():
    policy = dlpm()
    arrive(policy, request("a0", "a", seed=-100))
    assert admit(policy, room=0) == []
    assert deficit(policy, "a") == 100
    assert policy.tenants.members["t"].children.refills == 2


def test_a_refill_gives_by_weight():
    policy = dlpm()
    arrive(policy, request("a0", "a", client_weight=3), request("b0", "b"))
    assert admit(policy, room=0) == []
    assert [deficit(policy, client) for client in "ab"] == [300, 100]


def test_weights_decide_which_client_is_positive_first():
    policy = dlpm()
    arrive(policy, request("a0", "a", seed=-500), request("b0", "b", seed=-900, client_weight=10))
    assert admit(policy, room=1) == ["b0"]


def test_a_new_weight_counts_from_the_next_refill_on():
    policy = dlpm()
    arrive(policy, request("a0", "a"))
    assert admit(policy, room=0) == []
    arrive(policy, request("a1", "a", client_weight=7))
    assert deficit(policy, "a") == 100
    assert admit(policy) == ["a0", "a1"]
    assert deficit(policy, "a") == 100 - 100 + 700 - 100


def test_a_waiting_client_whose_weight_rises_becomes_positive_first():
    policy = dlpm()
    arrive(policy, request("a0", "a", seed=-1000), request("b0", "b", seed=-500))
    arrive(policy, request("a1", "a", client_weight=50))
    assert admit(policy, room=1) == ["a0"]
    assert deficit(policy, "b") == -400


def test_a_client_without_queued_requests_is_refilled_until_it_is_positive():
    policy = dlpm()
    running = request("a0", "a", extend=250)
    arrive(policy, running)
    assert admit(policy) == ["a0"]  # a: 100 - 250, and it only runs now
    arrive(policy, request("b0", "b", seed=-950))
    assert admit(policy) == ["b0"]  # ten rounds, of which a needs two
    assert deficit(policy, "a") == -150 + 200


# Coming and going (§1.13 c, R4).


def test_a_client_that_waits_or_runs_stays_with_its_credit():
    policy = dlpm()
    first, second = request("first", extend=10), request("second", extend=10)
    arrive(policy, first)
    assert admit(policy) == ["first"]
    arrive(policy, second)
    policy.leave(first, 1.0)
    assert deficit(policy, "a") == 90
    assert admit(policy) == ["second"]
    policy.leave(second, 2.0)
    assert policy.clients() == {}


@pytest.mark.parametrize(
    ("rejoin", "extend", "want"),
    [
        (Rejoin.KEEP_DEBT, 10, 0),  # credit is forfeited
        (Rejoin.KEEP_DEBT, 350, -250),  # a debt is not, while another client waits
        (Rejoin.PAPER, 10, 0),
        (Rejoin.PAPER, 350, 0),
    ],
)
def test_what_a_client_comes_back_with(rejoin, extend, want):
    policy = dlpm(rejoin=rejoin)
    first = request("first", extend=extend)
    arrive(policy, first, request("b", "b"))
    assert admit(policy, room=1) == ["first"]
    policy.leave(first, 1.0)
    arrive(policy, request("second"))
    assert deficit(policy, "a") == want


# Debts fade (R15).


def test_a_client_that_used_an_idle_engine_has_less_debt_than_a_quantum():
    policy = dlpm()
    running, gone = request("running", extend=1250), request("gone", "b", extend=350)
    arrive(policy, running, gone)
    assert admit(policy) == ["running", "gone"]
    policy.leave(gone, 1.0)
    assert (deficit(policy, "a"), policy.clients()["b"].deficit) == (-1150, -250)
    arrive(policy, request("c", "c"))
    assert deficit(policy, "a") == 50, "one that runs gets the refill that makes it positive"
    assert policy.clients()["b"].deficit == -50


def test_a_debt_at_either_level_ends_when_nothing_of_that_level_waits():
    policy = dlpm()
    used = request("used", "a", "t", extend=350)
    arrive(policy, used)
    admit(policy)
    policy.leave(used, 1.0)
    arrive(policy, request("waits", "c", "u"))
    arrive(policy, request("again", "a", "t"))
    state = policy.clients()["a"]
    assert (state.deficit, state.tenant_deficit) == (-50, -50)


def test_an_empty_queue_does_not_pay_off_seeds_while_a_new_replica_warms_up():
    policy = dlpm(warmup_s=10)
    arrive(policy, request("a", "a", seed=-350))
    assert admit(policy) == ["a"]
    arrive(policy, request("b", "b"))
    assert deficit(policy, "a") == -350 - 100


def test_refills_of_others_reduce_the_debt_of_a_client_that_left():
    policy = dlpm()
    first = request("first", extend=750)
    arrive(policy, first, *(request(f"b{n}", "b", extend=100) for n in range(9)))
    assert admit(policy, room=2) == ["first", "b0"]
    policy.leave(first, 1.0)
    assert policy.clients()["a"].deficit == -550, "a debt is reported while its client is away"
    assert admit(policy, room=3) == ["b1", "b2", "b3"]
    assert policy.clients()["a"].deficit == -250, "one quantum for each of three refills"
    assert len(admit(policy)) == 5
    arrive(policy, request("b9", "b"))
    arrive(policy, request("second"))
    assert deficit(policy, "a") == -50, "less than a quantum is never worked off while it is away"


def test_a_client_with_one_retracted_aborted_request_leaves_with_its_tenant():
    policy = dlpm(quantum=1000)
    one = request("one", "a")
    arrive(policy, one)
    admit(policy)
    policy.requeue(one, 1.0)
    policy.leave(one, 2.0)
    assert not policy.tenants.members
    arrive(policy, request("two", "a"))
    assert deficit(policy, "a") == 0, "its credit is forfeited"


def test_a_client_that_leaves_by_abort_leaves_all_the_same():
    policy = dlpm()
    waiting, running = request("waiting"), request("running", extend=300)
    arrive(policy, running, waiting, request("b0", "b"))
    assert admit(policy, room=1) == ["running"]
    policy.leave(running, 1.0)
    policy.leave(waiting, 1.0)
    assert admit(policy) == ["b0"]
    assert deficit(policy, "a") == -200


def test_a_tenant_whose_last_request_leaves_leaves_no_reference_cycle():
    policy, waiting = dlpm(), request("waiting", matched=9)
    arrive(policy, waiting, request("large", extend=300), request("u0", "b", "u"))
    assert admit(policy, room=1, later=("waiting",)) == ["large"]
    gc.collect()
    gc.disable()
    try:
        policy.leave(waiting, 1.0)
        assert admit(policy) == ["u0"]
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_the_paper_s_rejoin_can_be_farmed_and_keeping_debts_cannot():
    """Each time g comes back it sends one request of many quanta; f always waits."""

    def lead(rejoin: Rejoin) -> float:
        policy = dlpm(rejoin=rejoin)
        served = {"f": 0, "g": 0}
        for turn in range(300):  # one request at a time runs
            waiting = Counter(one.client for one in policy.waiting())
            arrive(policy, *(request(f"f{turn}.{n}", "f") for n in range(2 - waiting["f"])))
            if not waiting["g"]:
                arrive(policy, request(f"g{turn}", "g", extend=1000, matched=50))
            by_id = {one.id: one for one in policy.waiting()}
            (id,) = admit(policy, room=1)
            served[by_id[id].client] += by_id[id].extend_tokens
            policy.leave(by_id[id], 0.0)
        assert min(served.values()) > 0
        return served["g"] - served["f"]

    bound = 2 * 1000 + 2 * 100
    assert lead(Rejoin.KEEP_DEBT) <= bound
    assert lead(Rejoin.PAPER) > 5 * bound


# Forgetting.


def leave_in_debt(policy: Dlpm, client: str, debt: int) -> None:
    one = request(client, client, extend=100 + debt)
    arrive(policy, one)
    admit(policy)
    policy.leave(one, 0.0)


def test_debts_of_clients_that_left_are_kept_up_to_a_bound_largest_first():
    policy = Dlpm(rules=DeficitRules(quantum=100, remembered=4))
    for client, debt in zip("abcd", (50, 10, 70, 30), strict=True):
        leave_in_debt(policy, client, debt)
    assert set(policy.clients()) == set("abcd")
    leave_in_debt(policy, "e", 60)
    # The fifth is one too many: half of five, two, are forgotten.
    assert {client: -state.deficit for client, state in policy.clients().items()} == {
        "a": 50,
        "c": 70,
        "e": 60,
    }


def test_among_equal_debts_those_that_left_first_are_forgotten():
    policy = Dlpm(rules=DeficitRules(quantum=100, remembered=4))
    for client in "abcde":
        leave_in_debt(policy, client, 50)
    assert set(policy.clients()) == {"c", "d", "e"}


# Seeds (R5) and retries (R11).


def test_the_seed_counts_where_the_client_is_new_and_only_there():
    policy = dlpm()
    first = request("a0", seed=-300)
    arrive(policy, first)
    arrive(policy, request("a1", seed=-5000))
    assert deficit(policy, "a") == -300
    assert policy.clients()["a"].tenant_deficit == 0
    policy.leave(first, 0.0)
    assert deficit(policy, "a") == -300


def test_a_tenant_has_a_seed_of_its_own_which_counts_where_the_tenant_is_new():
    policy = dlpm()
    arrive(policy, request("a0", "a", tenant_seed=-70), request("b0", "b", tenant_seed=-5000))
    states = policy.clients()
    assert {name: state.tenant_deficit for name, state in states.items()} == {"a": -70, "b": -70}
    assert {name: state.tenant_seed for name, state in states.items()} == {"a": -70, "b": -70}
    assert {name: state.seed for name, state in states.items()} == {"a": 0, "b": 0}


def test_the_seed_of_a_client_that_is_remembered_without_debt_does_not_count():
    policy = dlpm()
    first = request("a0", extend=10)
    arrive(policy, first)
    admit(policy)
    policy.leave(first, 0.0)
    arrive(policy, request("a1", seed=-300))
    assert deficit(policy, "a") == 0


def test_credit_can_be_brought_along():
    """The ledger gives back a round, and what a crash destroyed; only routers write keys."""
    policy = dlpm()
    arrive(policy, request("a0", "a", seed=60), request("b0", "b", seed=130))
    assert [deficit(policy, client) for client in "ab"] == [60, 130]


def test_seeds_and_debts_are_reported_after_their_client_left():
    policy = dlpm()
    gone = [request("a0", "a", seed=60), request("b0", "b", extend=150)]
    arrive(policy, *gone)
    assert admit(policy) == ["a0", "b0"]
    for one in gone:
        policy.leave(one, 0.0)
    states = policy.clients()
    assert {client: state.deficit for client, state in states.items()} == {"a": 0, "b": -50}
    assert {state.tenant_deficit for state in states.values()} == {-50}
    assert states["a"].seed == 60


@pytest.mark.parametrize("seeds", [{"seed": 60}, {"tenant_seed": 60}], ids=["client", "tenant"])
def test_a_seed_at_either_level_is_reported_after_leaving(seeds):
    policy = dlpm()
    gone = request("a0", **seeds)
    arrive(policy, gone)
    policy.leave(gone, 0.0)
    (state,) = policy.clients().values()
    assert {"seed": state.seed, "tenant_seed": state.tenant_seed} == {
        "seed": 0,
        "tenant_seed": 0,
    } | seeds


def test_who_left_without_debt_or_seed_is_not_reported():
    policy = dlpm()
    gone = request("a0", extend=10)
    arrive(policy, gone)
    admit(policy)
    policy.leave(gone, 0.0)
    assert policy.clients() == {}


def test_input_charged_elsewhere_is_not_charged_again():
    policy = dlpm()
    retry = request("retry", charge_input=False)
    arrive(policy, retry)
    assert admit(policy) == ["retry"]
    assert deficit(policy, "a") == 100
    decode(policy, retry, 5)
    assert deficit(policy, "a") == 90


def test_what_is_computed_again_after_a_retraction_is_charged_again():
    policy = dlpm(quantum=1000)
    one = request("one", charge_input=False)
    arrive(policy, one)
    admit(policy)
    decode(policy, one, 5)
    policy.requeue(one, 1.0)
    assert len(policy) == 1 and deficit(policy, "a") == 990
    one.extend_tokens = 105
    assert admit(policy) == ["one"]
    assert deficit(policy, "a") == 990 - 105


# Cost (§1.6).


def test_a_finished_request_has_paid_h_exactly():
    cost = QuadraticCost(extend=2.5, output=1.25, product=0.5, output_squared=0.125)
    policy = dlpm(quantum=1 << 20, cost=cost)
    one = request("one", extend=30)
    arrive(policy, one, request("keeps a in l"))
    admit(policy, room=1)
    for tokens in (1, 1, 5, 2):
        decode(policy, one, tokens)
    paid = (1 << 20) - deficit(policy, "a")
    assert paid == 2.5 * 30 + 1.25 * 9 + 0.5 * 30 * 9 + 0.125 * 81


def test_prices_are_those_of_the_cost():
    policy = dlpm(quantum=1000, cost=LinearCost(input_weight=3, output_weight=5))
    one = request("one", extend=30)
    arrive(policy, one)
    admit(policy)
    decode(policy, one, 2)
    assert deficit(policy, "a") == 1000 - 90 - 10


# Two levels (R9).


def test_a_request_needs_its_tenant_and_its_client_to_be_positive():
    policy = dlpm()
    arrive(
        policy,
        request("s.a", "s/a", "s", matched=9, extend=300),
        request("s.b", "s/b", "s", matched=8),
        request("t.a", "t/a", "t"),
        request("t.b", "t/b", "t"),
    )
    # s.a puts tenant s 200 into debt, so s.b waits although its client has its quantum. t.b is proposed
    # after one more refill of the tenants, with which s owes 100 still.
    assert admit(policy, room=2) == ["s.a", "t.a"]
    assert policy.clients()["s/b"].deficit == 100
    assert policy.clients()["s/b"].tenant_deficit == -100


def test_a_tenant_with_one_client_gets_what_a_tenant_with_fifty_gets():
    policy = dlpm()
    arrive(policy, *(request(f"many{n}", f"many/{n % 50}", "many", matched=9) for n in range(200)))
    arrive(policy, *(request(f"one{n}", "one/a", "one") for n in range(200)))
    admitted = admit(policy, room=100)
    assert sum(id.startswith("one") for id in admitted) in (49, 50, 51)
    clients = policy.clients()
    assert all(clients[f"many/{n}"].waiting == 3 for n in range(50)), "each of the fifty got one"


def test_tenant_weights_divide_the_replica_and_client_weights_the_tenant():
    policy = dlpm()
    sizes = {("s", "s/a"): (3, 1), ("s", "s/b"): (3, 2), ("t", "t/a"): (1, 5)}
    for (tenant, client), (tenant_weight, weight) in sizes.items():
        arrive(
            policy,
            *(
                request(
                    f"{client}{n}",
                    client,
                    tenant,
                    tenant_weight=tenant_weight,
                    client_weight=weight,
                )
                for n in range(200)
            ),
        )
    admitted = admit(policy, room=160)
    got = {client: sum(id.startswith(client) for id in admitted) for _, client in sizes}
    assert got == {"s/a": 40, "s/b": 80, "t/a": 40}


def test_reports_have_the_deficits_of_both_levels_and_the_waiting_requests():
    policy = dlpm()
    arrive(policy, request("s0", "s/a", "s"), request("s1", "s/b", "s"))
    admit(policy, room=1)  # and s1 is proposed, for which the tenant is refilled
    state = policy.clients()
    assert set(state) == {"s/a", "s/b"}
    assert (state["s/a"].deficit, state["s/a"].tenant_deficit, state["s/a"].waiting) == (0, 100, 0)
    assert (state["s/b"].deficit, state["s/b"].tenant_deficit, state["s/b"].waiting) == (
        100,
        100,
        1,
    )


def test_a_member_joins_a_level_with_nothing_and_asks_for_one_round():
    level = DeficitLevel(DeficitRules(quantum=100))
    account = level.join("a", weight=1)
    assert (account.deficit, account.positive_from, account.waiting, account.running) == (
        0,
        1,
        0,
        0,
    )
    assert account.seed == 0
    check_refill(level)
    assert level.refills == 0, "no member waits"


# Configuration.


@pytest.mark.parametrize("field", ["quantum", "remembered"])
def test_rules_that_cannot_work_are_refused(field):
    with pytest.raises(ValueError, match=field):
        DeficitRules(**{field: 0})


def test_one_member_may_be_all_that_is_remembered():
    policy = Dlpm(rules=DeficitRules(quantum=100, remembered=1))
    leave_in_debt(policy, "a", 50)
    leave_in_debt(policy, "b", 40)
    assert set(policy.clients()) == {"a"}


@pytest.mark.parametrize("answer", [AdmissionResult.LATER, AdmissionResult.HELD])
@pytest.mark.parametrize("tenants", [("t", "t"), ("t", "u")], ids=["clients", "tenants"])
def test_only_a_held_request_of_a_positive_client_leaves_refills_to_others(answer, tenants):
    policy = Dlpm(rules=DeficitRules(quantum=100))
    arrive(
        policy, request("0", "a", tenants[0], extend=10), request("1", "b", tenants[1], extend=150)
    )
    arrive(policy, request("2", "a", tenants[0]), request("3", "b", tenants[1]))
    assert admit(policy, later=("2",)) == ["0", "1"]
    assert deficit(policy, "a") > 0 > deficit(policy, "b")
    assert admit(policy, answers={"2": answer}) == (["3"] if answer is AdmissionResult.HELD else [])


@pytest.mark.parametrize(("owed", "enters"), [(HELD_REFILLS - 1, ["3"]), (HELD_REFILLS, [])])
def test_beside_a_held_request_no_large_debt_is_refilled(owed, enters):
    policy = Dlpm(rules=DeficitRules(quantum=100))
    arrive(policy, request("0", "a", extend=10), request("1", "b", extend=100 + 100 * owed))
    arrive(policy, request("2", "a"), request("3", "b"))
    assert admit(policy, later=("2",)) == ["0", "1"]
    assert deficit(policy, "b") == -100 * owed
    assert admit(policy, answers={"2": AdmissionResult.HELD}) == enters


def test_the_registry_passes_its_configuration_on():
    config = ReplicaPolicyConfig(
        deficits=DeficitRules(quantum=7), cost=LinearCost(input_weight=10), skip_misfit=True
    )
    policy = make_policy("DLPM", config)
    arrive(policy, request("big", matched=5), request("small"))
    assert admit(policy, misfits=("big",)) == ["small"]
    assert deficit(policy, "a") == 7 - 1000


def test_the_defaults_are_those_of_the_design():
    rules = DeficitRules()
    assert (rules.quantum, rules.rejoin) == (None, Rejoin.KEEP_DEBT)
