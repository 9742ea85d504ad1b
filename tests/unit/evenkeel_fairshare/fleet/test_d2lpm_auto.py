"""D2LPM with a worker quantum that follows the prompts (R2; docs/design/0005)."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from evenkeel_fairshare.fleet.contract import NOTHING, Dispatch, Usage, replica_set
from evenkeel_fairshare.fleet.d2lpm_auto import AutoD2lpm

IDLE = [0] * 8


def fleet(slots: Sequence[int], *, patience: float = 4.0, max_clients: int = 100) -> AutoD2lpm:
    policy = AutoD2lpm(patience=patience, max_clients=max_clients)
    for slot in slots:
        policy.joined(slot)
    return policy


def request(
    tokens: int = 100,
    *,
    client: str = "a",
    longest: Sequence[int] = (),
    matched: int = 0,
    weight: float = 1.0,
) -> Dispatch:
    return Dispatch(
        client=client,
        input_tokens=tokens,
        weight=weight,
        longest=replica_set(longest),
        matched_tokens=matched,
    )


def send(
    policy: AutoD2lpm,
    sent: Dispatch,
    *,
    to: Sequence[int] = (0, 1),
    outstanding: Sequence[int] = IDLE,
) -> int | None:
    slot = policy.select(sent, replica_set(to), outstanding)
    assert slot is not None
    policy.dispatched(sent, slot)
    return slot


def stays(policy: AutoD2lpm, question: Dispatch) -> int:
    """How many requests go to the match before one leaves it."""
    return [send(policy, question) for _ in range(200)].index(0)


def test_an_idle_replica_is_used_once_the_prefix_takes_no_longer_there() -> None:
    # Each question adds 10 tokens of wait at slot 1. The idle replica computes 100 tokens again.
    assert stays(fleet([0, 1]), request(110, longest=[1], matched=100)) == 11
    assert stays(fleet([0, 1]), request(210, longest=[1], matched=200)) == 21


def test_a_replica_with_work_is_used_once_the_wait_outweighs_the_price() -> None:
    policy = fleet([0, 1], patience=4.0)
    policy.dispatched(request(1000, client="b"), 0)
    # At slot 0 the client waits for 110 tokens of "b", as much as it needs itself.
    assert stays(policy, request(110, longest=[1], matched=100)) == 1 + (110 + 4 * 100) // 10


@pytest.mark.parametrize(("work", "chosen"), [(249, 0), (250, 1)])
def test_a_replica_with_under_a_quarter_of_the_work_counts_as_idle(work: int, chosen: int) -> None:
    policy = fleet([0, 1], patience=32.0)
    policy.dispatched(request(1000), 1)
    policy.dispatched(request(work, client="b"), 0)
    assert send(policy, request(110, longest=[1], matched=100)) == chosen


def test_waits_are_compared_in_seconds() -> None:
    question = request(110, longest=[1], matched=100)
    moved = []
    for speeds in ({}, {0: 1000.0, 1: 500.0}, {0: 500.0, 1: 1000.0}):
        policy = fleet([0, 1])
        policy.measured(speeds)
        moved.append(stays(policy, question))
    # The wait at slot 1 counts by its speed, and computing 100 tokens by the speed of slot 0.
    assert moved == [11, 6, 21]


def test_a_slow_replica_gets_less_of_what_has_no_match() -> None:
    policy = fleet([0, 1])
    policy.measured({0: 1000.0, 1: 250.0})
    chosen = [send(policy, request(10)) for _ in range(50)]
    assert chosen.count(1) == 10


def test_speeds_that_hardly_differ_count_as_equal() -> None:
    policy = fleet([0, 1])
    policy.measured({0: 1000.0, 1: 1250.0})
    assert stays(policy, request(110, longest=[1], matched=100)) == 11


@pytest.mark.parametrize(
    ("speed", "works"), [(0.0, (249, 251)), (1.0, (249, 251)), (1e9, (3999, 4001))]
)
def test_a_wild_measurement_counts_as_four_times_the_median_at_most(
    speed: float, works: tuple[int, int]
) -> None:
    chosen = []
    for work in works:
        policy = fleet([0, 1, 2])
        policy.measured({0: 1000.0, 1: speed, 2: 1000.0, 7: 1.0})  # slot 7 has left meanwhile
        policy.dispatched(request(1000), 0)
        policy.dispatched(request(work), 1)
        chosen.append(policy.select(request(10), replica_set([0, 1]), IDLE))
    assert chosen == [1, 0]


def test_a_new_process_has_the_median_speed() -> None:
    policy = fleet([0, 1, 2])
    policy.measured({0: 1000.0, 1: 250.0, 2: 1000.0})
    policy.left(1)
    policy.joined(1)
    assert stays(policy, request(110, longest=[1], matched=100)) == 11


def test_a_request_waits_no_longer_than_an_idle_replica_needs() -> None:
    policy = fleet([0, 1, 2])
    question = request(9000, longest=[1], matched=8000)
    # Nothing was measured yet: a prefix may take any time, and what has none only waits.
    assert policy.longest_wait_s(question, 1, 0) == float("inf")
    assert policy.longest_wait_s(request(9000), 1, 0) == 1.0
    policy.measured({0: 500.0, 1: 1000.0, 2: 1000.0})
    assert [policy.longest_wait_s(question, 1, idle) for idle in (0, 2)] == [16.0, 8.0]
    part = replace(question, matched_at=lambda slot: 6000)
    assert policy.longest_wait_s(part, 1, 2) == 2.0
    # Where it waits it has no match either; and a report may be a second old.
    assert policy.longest_wait_s(question, 0, 2) == 1.0


def test_finished_work_no_longer_counts() -> None:
    policy = fleet([0, 1])
    question = request(110, longest=[1], matched=100)
    for _ in range(100):
        assert send(policy, question) == 1
        policy.finished(question, 1, Usage(110, 100, 0))


def test_credit_is_minus_the_open_work() -> None:
    policy = fleet([0, 1])
    question = request(110, longest=[1], matched=100)
    assert policy.credit(question.client) == {}
    send(policy, question)
    send(policy, question)
    assert policy.credit(question.client) == {1: -20.0}
    for _ in range(2):
        policy.finished(question, 1, NOTHING)
    assert policy.credit(question.client) == {}


def test_the_expected_output_counts_as_work() -> None:
    policy = fleet([0, 1])
    question = request(110, longest=[1], matched=100)
    send(policy, question)
    policy.finished(question, 1, Usage(110, 100, 45))
    # From now on each question is 10 + 2 * 45 tokens of work.
    assert stays(policy, question) == 2


def test_the_output_of_a_request_that_never_ran_or_is_unknown_is_ignored() -> None:
    policy = fleet([0, 1])
    question = request(110, longest=[1], matched=100)
    for usage in (NOTHING, None):
        send(policy, question)
        policy.finished(question, 1, usage)
    assert stays(policy, question) == 11


def test_a_light_client_stays_at_its_match_behind_a_flooding_client() -> None:
    policy = fleet([0, 1])
    for _ in range(50):
        flood = request(10_000, client="flooder")
        policy.dispatched(flood, 1)
    assert send(policy, request(110, longest=[1], matched=100)) == 1


def test_many_light_clients_with_one_system_prompt_spread_over_replicas() -> None:
    policy = fleet([0, 1])
    chosen = [
        send(policy, request(110, client=f"user-{number}", longest=[1], matched=100))
        for number in range(60)
    ]
    assert chosen.index(0) == 11


def test_the_work_of_others_counts_by_weight() -> None:
    """A client of weight 6 waits for a sixth of what each other client gets."""
    chosen = []
    for weight in (1.0, 6.0):
        policy = fleet([0, 1])
        for number in range(50):
            policy.dispatched(request(1000, client=f"user-{number}"), 1)
        chosen.append(send(policy, request(110, longest=[1], matched=100, weight=weight)))
    assert chosen == [0, 1]


def test_without_a_match_the_replica_with_the_least_work_of_the_client_wins() -> None:
    policy = fleet([0, 1, 2])
    for slot, tokens in enumerate((300, 100, 200)):
        policy.dispatched(request(tokens), slot)
    assert send(policy, request(), to=[0, 1, 2]) == 1


def test_the_replica_with_fewest_tokens_wins_if_none_has_work_of_the_client() -> None:
    policy = fleet([0, 1, 2])
    policy.dispatched(request(1000, client="b"), 0)
    for _ in range(5):
        policy.dispatched(request(100, client="b"), 1)
    policy.dispatched(request(900, client="b"), 2)
    assert send(policy, request(), to=[0, 1, 2], outstanding=[1, 5, 1]) == 1


def test_among_equal_replicas_the_fewest_requests_win_then_the_lowest_slot() -> None:
    policy = fleet([0, 1, 2])
    assert policy.select(request(), replica_set([0, 1, 2]), [3, 2, 2]) == 1


def test_a_client_goes_to_the_least_loaded_of_several_matches() -> None:
    policy = fleet([0, 1, 2])
    policy.dispatched(request(50), 1)
    assert send(policy, request(110, longest=[1, 2], matched=100), to=[0, 1, 2]) == 2


def test_a_replica_that_left_takes_its_work_along() -> None:
    policy = fleet([0, 1])
    policy.dispatched(request(5000), 1)
    late = request(300)
    policy.dispatched(late, 0)
    policy.left(1)
    policy.joined(1)
    assert send(policy, request()) == 1
    policy.left(0)
    policy.finished(late, 0, Usage(300, 0, 5))  # it ends after its replica has left
    policy.dispatched(late, 0)
    assert send(policy, request(), to=[1]) == 1


def test_the_client_longest_without_a_dispatch_is_removed_with_its_work() -> None:
    policy = fleet([0, 1], max_clients=1)
    large = request(10_000, client="b")
    assert send(policy, large) == 0
    assert send(policy, request(10)) == 0  # the work of "b" no longer counts
    policy.finished(large, 0, Usage(10_000, 0, 5))
    assert send(policy, request(20)) == 1


def test_the_weight_of_a_removed_client_no_longer_counts() -> None:
    policy = fleet([0, 1], max_clients=2)
    policy.dispatched(request(client="heavy", weight=1000.0), 1)
    policy.dispatched(request(10_000, client="b"), 1)
    # It is the third client, so the first one is removed. It waits for as much of b as it needs, and not for all of it.
    assert send(policy, request(110, longest=[1], matched=100)) == 1


def test_the_late_end_of_a_removed_client_leaves_no_load_behind() -> None:
    policy = fleet([0, 1], max_clients=1)
    small, large = request(10, client="b"), request(10_000, client="b")
    policy.dispatched(small, 0)
    policy.dispatched(request(), 1)  # removes "b"
    policy.dispatched(large, 0)
    for ended in (small, large):
        policy.finished(ended, 0, None)
    assert send(policy, request(client="c")) == 0


def test_a_replica_that_never_joined_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"slots \[3\] are routable but have not joined"):
        send(fleet([0]), request(), to=[0, 3])


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan")])
def test_a_weight_that_is_not_positive_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="weight is .*; it must be positive"):
        send(fleet([0]), request(weight=weight), to=[0])


@pytest.mark.parametrize("patience", [0.0, -1.0, float("nan")])
def test_a_patience_that_is_not_positive_is_refused(patience: float) -> None:
    with pytest.raises(ValueError, match="patience is .*; it must be positive"):
        AutoD2lpm(patience=patience)


def test_a_memory_of_zero_clients_is_refused() -> None:
    with pytest.raises(ValueError, match="max_clients is 0; it must be at least 1"):
        AutoD2lpm(max_clients=0)
