"""VTC with length prediction, on queues small enough to work out by hand. An output token costs 2."""

from __future__ import annotations

import pytest
from evenkeel_fairshare.replica.contract import Request
from evenkeel_fairshare.replica.output_lengths import OutputLengths
from evenkeel_fairshare.replica.vtc_predict import PredictedVtc

from tests.support.costs import QuadraticCost
from tests.support.replica import admit, arrive, decode, request


def counter(policy: PredictedVtc, client: str = "a") -> float:
    return -policy.clients()[client].deficit


def serve(policy: PredictedVtc, *lengths: int, client: str = "a") -> None:
    """One request after the other, each over after so many tokens."""
    for length in lengths:
        one = request("served", client)
        arrive(policy, one)
        admit(policy)
        decode(policy, one, length)
        policy.leave(one, 0.0)


def admitted(policy: PredictedVtc, **fields) -> Request:
    one = request("one", **fields)
    arrive(policy, one)
    assert admit(policy) == ["one"]
    return one


def test_output_that_was_paid_elsewhere_is_not_prepaid():
    policy = PredictedVtc()
    serve(policy, 30)
    before = counter(policy)
    admitted(policy, paid_output_tokens=20)
    assert counter(policy) - before == 100 + (30 - 20) * 2


def test_nothing_is_predicted_before_the_first_is_over():
    policy = PredictedVtc()
    one = admitted(policy)
    assert counter(policy) == 100
    decode(policy, one, 3)
    assert counter(policy) == 100 + 3 * 2


def test_the_mean_of_the_last_five_is_prepaid():
    policy = PredictedVtc()
    serve(policy, 99, 10, 20, 30, 40, 51)
    before = counter(policy)
    admitted(policy)
    assert counter(policy) - before == 100 + 30 * 2  # the mean is 30.2


def test_predicted_output_costs_no_more_and_further_output_as_it_comes():
    policy = PredictedVtc()
    serve(policy, 10)
    one = admitted(policy)
    before = counter(policy)
    decode(policy, one, 10)
    assert counter(policy) == before
    decode(policy, one, 3)
    decode(policy, one, 1)
    assert counter(policy) == before + 4 * 2


def test_a_piece_that_is_partly_predicted_is_charged_for_the_rest():
    policy = PredictedVtc()
    serve(policy, 10)
    one = admitted(policy)
    before = counter(policy)
    decode(policy, one, 14)
    assert counter(policy) == before + 4 * 2


@pytest.mark.parametrize("length", [0, 4, 10, 25])
def test_a_request_that_is_over_has_paid_for_what_it_got(length):
    policy = PredictedVtc()
    serve(policy, 10)
    before = counter(policy)
    one = admitted(policy)
    if length:
        decode(policy, one, length)
    policy.leave(one, 0.0)
    assert counter(policy) - before == 100 + 2 * length


def test_what_is_given_back_moves_the_client_forward_in_the_queue():
    policy = PredictedVtc()
    serve(policy, 50)
    serve(policy, 50, client="b")
    for client in "ab":
        arrive(policy, *(request(f"{client}{n}", client) for n in range(2)))
    assert admit(policy, room=1) == ["a0"]
    running = next(iter(policy._running))
    arrive(policy, request("b2", "b"))
    assert admit(policy, room=1) == ["b0"]
    policy.leave(running, 0.0)  # without any output: a is behind b again
    assert admit(policy) == ["a1", "b1", "b2"]


def test_a_prediction_is_at_most_the_limit():
    policy = PredictedVtc()
    serve(policy, 900)
    before = counter(policy)
    admitted(policy)  # may produce 100
    assert counter(policy) - before == 100 + 100 * 2


def test_each_client_is_predicted_by_its_own_requests():
    policy = PredictedVtc()
    serve(policy, 50)
    admitted(policy, client="b")
    assert counter(policy, "b") - counter(policy, "a") == 100


def test_a_retraction_refunds_and_the_next_admission_prepays_the_rest():
    policy = PredictedVtc()
    serve(policy, 10)
    before = counter(policy)
    one = admitted(policy)
    decode(policy, one, 4)
    policy.requeue(one, 0.0)
    assert counter(policy) - before == 100 + 4 * 2
    assert admit(policy) == ["one"]
    # Input and the four tokens are computed again; four tokens are made, six foreseen.
    assert counter(policy) - before == 100 + 4 * 2 + 104 + 6 * 2
    policy.leave(one, 0.0)
    assert counter(policy) - before == 100 + 4 * 2 + 104


def test_after_a_retraction_nothing_that_was_made_is_charged_twice():
    policy = PredictedVtc()
    serve(policy, 10)
    one = admitted(policy)
    decode(policy, one, 30)
    policy.requeue(one, 0.0)
    before = counter(policy)
    admit(policy)
    decode(policy, one, 2)
    assert counter(policy) - before == 130 + 2 * 2


def test_a_request_aborted_while_waiting_does_not_count_as_a_length():
    policy = PredictedVtc()
    serve(policy, 10)
    gone = request("gone")
    arrive(policy, gone)
    policy.leave(gone, 0.0)
    before = counter(policy)
    admitted(policy)
    assert counter(policy) - before == 100 + 10 * 2


def test_counters_are_forgotten_as_those_of_vtc():
    policy = PredictedVtc(sweep_above=1)
    serve(policy, 10, client="a")
    serve(policy, 10, client="b")
    assert set(policy.clients()) == {"b"}


def test_lengths_of_those_seen_last_are_kept():
    lengths = OutputLengths(remembered=2)
    for client, tokens in (("a", 10), ("b", 20), ("a", 12), ("c", 30)):
        lengths.learn(client, tokens)
    assert [lengths.longest_by_client.get(client) for client in "abc"] == [12, None, 30]
    assert [lengths.mean(client) for client in "abc"] == [11, 0, 30]


def test_a_cost_that_is_not_linear_is_prepaid_by_the_same_h():
    cost = QuadraticCost(extend=1, output=2, product=0.5, output_squared=1)
    policy = PredictedVtc(cost=cost)
    serve(policy, 10)
    before = counter(policy)
    one = admitted(policy)
    assert counter(policy) - before == cost.input_cost(100) + cost.output_cost(100, 0, 10)
    decode(policy, one, 12)
    policy.leave(one, 0.0)
    assert counter(policy) - before == cost.input_cost(100) + cost.output_cost(100, 0, 12)
