"""D2LPM's fleet half, each reading of Algorithm 2 as a case."""

from collections.abc import Sequence
from math import inf

import pytest
from evenkeel_fairshare.fleet.contract import NOTHING, Dispatch, Usage, replica_set
from evenkeel_fairshare.fleet.d2lpm import D2lpm

from tests.support.costs import QuadraticCost

IDLE = [0] * 8


def fleet(slots: Sequence[int], **options: float) -> D2lpm:
    policy = D2lpm(**{"worker_quantum": 100.0, **options})  # type: ignore[arg-type]
    for slot in slots:
        policy.joined(slot)
    return policy


def send(
    policy: D2lpm,
    tokens: int = 10,
    *,
    to: Sequence[int] = (0, 1, 2),
    longest: Sequence[int] = (),
    client: str = "a",
    outstanding: Sequence[int] = IDLE,
    weight: float = 1.0,
) -> int | None:
    request = Dispatch(
        client=client, input_tokens=tokens, longest=replica_set(longest), weight=weight
    )
    slot = policy.select(request, replica_set(to), outstanding)
    assert slot is not None
    policy.dispatched(request, slot)
    return slot


def test_the_longest_match_wins_while_there_is_credit() -> None:
    policy = fleet([0, 1, 2])
    assert [send(policy, 40, longest=[2]) for _ in range(3)] == [2, 2, 2]
    assert policy.credit("a") == {0: 100.0, 1: 100.0, 2: -20.0}


def test_without_credit_there_the_least_loaded_replica_with_credit_wins() -> None:
    policy = fleet([0, 1, 2])
    send(policy, 100, longest=[2])
    assert send(policy, longest=[2], outstanding=[5, 4, 0]) == 1


def test_among_matches_the_least_loaded_wins_then_the_lowest() -> None:
    policy = fleet([0, 1, 2])
    assert send(policy, longest=[1, 2], outstanding=[0, 3, 2]) == 2
    assert send(policy, longest=[1, 2], outstanding=[0, 3, 3]) == 1


def test_no_match_means_that_all_match() -> None:
    policy = fleet([0, 1, 2])
    assert send(policy, outstanding=[2, 2, 1]) == 2


def test_a_client_starts_at_nothing_and_is_refilled_at_once() -> None:
    policy = fleet([0, 1])
    assert policy.credit("a") == {}
    send(policy, 30, to=[0, 1])
    assert policy.credit("a") == {0: 70.0, 1: 100.0}


def test_credit_of_exactly_nothing_is_spent() -> None:
    policy = fleet([0, 1])
    assert [send(policy, 100, to=[0, 1], longest=[0]) for _ in range(2)] == [0, 1]


def test_the_output_is_charged_at_the_end() -> None:
    policy = fleet([0])
    request = Dispatch(client="a", input_tokens=10)
    send(policy, 10, to=[0])
    policy.finished(request, 0, Usage(10, 0, 20))
    assert policy.credit("a") == {0: 50.0}


@pytest.mark.parametrize(
    ("usage", "want"),
    [
        (Usage(25, 0, 10), 55.0),  # more than estimated
        (Usage(25, 20, 10), 55.0),  # the whole prompt, whatever was cached
        (Usage(4, 0, 10), 76.0),  # less
        (Usage(4), 96.0),
        (NOTHING, 100.0),  # refused: it never ran
        (None, 90.0),  # unknown: the estimate stays
    ],
)
def test_the_replica_s_count_takes_the_place_of_the_estimate(
    usage: Usage | None, want: float
) -> None:
    policy = fleet([0])
    send(policy, 10, to=[0])
    policy.finished(Dispatch(client="a", input_tokens=10), 0, usage)
    assert policy.credit("a") == {0: want}


def test_a_refund_after_a_refill_lifts_no_credit_above_a_quantum() -> None:
    policy = fleet([0])
    for _ in range(4):  # the third takes it to -40, the fourth finds it refilled
        send(policy, 80, to=[0], weight=2.0)
    assert policy.credit("a") == {0: 80.0}
    request = Dispatch(client="a", input_tokens=80, weight=2.0)
    credit = []
    for _ in range(3):
        policy.finished(request, 0, NOTHING)
        credit.append(policy.credit("a")[0])
    assert credit == [160.0, 200.0, 200.0]


def test_a_refund_takes_nothing_from_a_credit_above_a_quantum() -> None:
    """A weight can fall while a request runs."""
    policy = fleet([0])
    send(policy, 10, to=[0], weight=5.0)
    policy.finished(Dispatch(client="a", input_tokens=10, weight=1.0), 0, NOTHING)
    assert policy.credit("a") == {0: 490.0}


def test_a_refund_brings_credit_back_into_play() -> None:
    policy = fleet([0, 1])
    assert [send(policy, 100, to=[0, 1], longest=[0]) for _ in range(2)] == [0, 1]
    policy.finished(Dispatch(client="a", input_tokens=100), 1, NOTHING)
    assert send(policy, 1, to=[0, 1], longest=[0]) == 1


def test_the_whole_input_is_charged_whatever_was_cached() -> None:
    policy = fleet([0])
    request = Dispatch(client="a", input_tokens=60, matched_tokens=59, longest=replica_set([0]))
    assert policy.select(request, replica_set([0]), IDLE) == 0
    policy.dispatched(request, 0)
    assert policy.credit("a") == {0: 40.0}


def test_any_cost_function_can_be_charged() -> None:
    cost = QuadraticCost(extend=2.0, output=1.0, product=0.5, output_squared=0.25)
    policy = D2lpm(worker_quantum=1000.0, cost=cost)
    policy.joined(0)
    send(policy, 10, to=[0])
    policy.finished(Dispatch(client="a", input_tokens=10), 0, Usage(10, 0, 4))
    assert policy.credit("a") == {0: 1000.0 - 20.0 - (4 + 20 + 4)}


def test_a_refill_gives_all_the_same_quanta_until_one_is_positive() -> None:
    policy = fleet([0, 1])
    send(policy, 350, to=[0])  # one quantum for slot 0, then the charge
    send(policy, 360, to=[1])
    assert policy.credit("a") == {0: -250.0, 1: -260.0}
    assert send(policy, 1, to=[0, 1]) == 0  # three quanta for both
    assert policy.credit("a") == {0: 49.0, 1: 40.0}


def test_a_replica_deep_in_debt_is_passed_over_by_refills_until_it_is_repaid() -> None:
    policy = fleet([0, 1])
    send(policy, 350, to=[0])
    assert [send(policy, 100, to=[0, 1], longest=[0]) for _ in range(4)] == [1, 1, 0, 1]


def test_selecting_alone_charges_nothing() -> None:
    policy = fleet([0])
    request = Dispatch(client="a", input_tokens=10)
    policy.select(request, replica_set([0]), IDLE)
    assert policy.credit("a") == {0: 100.0}


def test_a_refill_is_due_when_no_routable_replica_has_credit() -> None:
    policy = fleet([0, 1])
    send(policy, 130, to=[0, 1])
    assert policy.credit("a") == {0: -30.0, 1: 100.0}
    assert send(policy, 10, to=[0]) == 0
    assert policy.credit("a") == {0: 60.0, 1: 100.0}  # the account at slot 1 stands still


def test_matches_that_are_not_routable_do_not_count() -> None:
    policy = fleet([0, 1])
    assert send(policy, to=[1], longest=[0]) == 1


def test_clients_have_accounts_of_their_own() -> None:
    policy = fleet([0])
    send(policy, 10, to=[0], client="a")
    send(policy, 20, to=[0], client="b")
    assert (policy.credit("a"), policy.credit("b")) == ({0: 90.0}, {0: 80.0})


def test_a_weight_scales_the_quantum() -> None:
    policy = fleet([0, 1])
    send(policy, 10, to=[0, 1], weight=3.0)
    assert policy.credit("a") == {0: 290.0, 1: 300.0}


def test_a_joining_replica_starts_level_with_the_best_of_the_others() -> None:
    policy = fleet([0, 1])
    send(policy, 30, longest=[0], to=[0, 1])
    policy.joined(4)
    assert policy.credit("a") == {0: 70.0, 1: 100.0, 4: 100.0}
    assert send(policy, longest=[4], to=[0, 1, 4]) == 4


def test_a_replica_that_joins_indebted_others_starts_in_debt_too() -> None:
    policy = fleet([0])
    send(policy, 130, to=[0])
    policy.joined(1)
    assert policy.credit("a") == {0: -30.0, 1: -30.0}


def test_the_first_replica_starts_at_zero() -> None:
    policy = fleet([0])
    send(policy, 130, to=[0])
    policy.left(0)
    policy.joined(1)
    assert policy.credit("a") == {1: 0.0}


def test_a_leaving_replica_takes_its_credit_along() -> None:
    policy = fleet([0, 1])
    send(policy, 30, longest=[0], to=[0, 1])
    policy.left(1)
    policy.left(7)  # never joined: no fault
    assert policy.credit("a") == {0: 70.0}
    policy.joined(1)
    assert policy.credit("a") == {0: 70.0, 1: 70.0}


def test_an_end_after_its_replica_left_is_not_charged() -> None:
    policy = fleet([0, 1])
    request = Dispatch(client="a", input_tokens=10)
    send(policy, 10, longest=[1], to=[0, 1])
    policy.left(1)
    policy.finished(request, 1, Usage(10, 0, 50))
    policy.joined(1)
    assert policy.credit("a") == {0: 100.0, 1: 100.0}


def test_an_unknown_client_s_end_is_no_fault() -> None:
    policy = fleet([0])
    policy.finished(Dispatch(client="never seen", input_tokens=1), 0, Usage(1, 0, 5))
    assert policy.credit("never seen") == {}


def test_the_client_longest_without_a_dispatch_is_forgotten() -> None:
    policy = fleet([0], max_clients=2)
    for client in "aba":
        send(policy, 10, to=[0], client=client)
    send(policy, 10, to=[0], client="c")
    assert (policy.credit("a"), policy.credit("b")) == ({0: 80.0}, {})


def test_by_default_ten_thousand_clients_are_known() -> None:
    policy = D2lpm(worker_quantum=20_000.0)
    policy.joined(0)
    for client in range(10_001):
        send(policy, 1, to=[0], client=str(client))
    assert policy.credit("0") == {}
    assert policy.credit("1") == {0: 19_999.0}


def test_one_client_can_be_remembered() -> None:
    policy = fleet([0], max_clients=1)
    send(policy, 10, to=[0], client="a")
    assert policy.credit("a") == {0: 90.0}


def test_an_infinite_quantum_never_leaves_the_prefix() -> None:
    policy = fleet([0, 1], worker_quantum=inf)
    assert {send(policy, 10**6, to=[0, 1], longest=[1]) for _ in range(20)} == {1}
    policy.joined(2)
    assert policy.credit("a") == {0: inf, 1: inf, 2: inf}


@pytest.mark.parametrize("debt_tokens", [10**3, 10**15])
def test_a_tiny_quantum_refills_exactly(debt_tokens: int) -> None:
    policy = fleet([0, 1], worker_quantum=1e-3)
    send(policy, debt_tokens, to=[0])
    send(policy, debt_tokens + 5, to=[1])
    assert send(policy, 0, to=[0, 1]) == 0
    credit = policy.credit("a")
    assert 0 < credit[0] <= 1e-3
    assert credit[1] == pytest.approx(credit[0] - 5)


def test_a_replica_that_never_joined_is_refused_by_name() -> None:
    policy = fleet([0])
    with pytest.raises(ValueError, match=r"slots \[3\] are routable but have not joined"):
        send(policy, to=[0, 3])


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan")])
def test_a_weight_that_is_not_positive_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="weight is .*; it must be positive"):
        send(fleet([0]), to=[0], weight=weight)


@pytest.mark.parametrize("quantum", [0.0, -1.0, float("nan")])
def test_a_quantum_that_is_not_positive_is_refused(quantum: float) -> None:
    with pytest.raises(ValueError, match="worker_quantum is .*; it must be positive"):
        D2lpm(worker_quantum=quantum)


def test_a_memory_of_zero_clients_is_refused() -> None:
    with pytest.raises(ValueError, match="max_clients is 0; it must be at least 1"):
        D2lpm(worker_quantum=1.0, max_clients=0)
