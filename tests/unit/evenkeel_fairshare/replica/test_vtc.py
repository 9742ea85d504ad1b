"""VTC line by line, and the accounts of the paper's artifact, on queues small enough to work out by hand.

A request has 100 tokens of input unless it says otherwise, and an output token costs 2.
"""

from __future__ import annotations

import pytest
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.replica.contract import ClientDeficits
from evenkeel_fairshare.replica.registry import ReplicaPolicyConfig
from evenkeel_fairshare.replica.vtc import Vtc
from evenkeel_laboratory.policies.registry import LaboratoryConfig, policies
from evenkeel_laboratory.policies.vtc_artifact import ArtifactVtc

from tests.support.costs import QuadraticCost
from tests.support.replica import admit, arrive, decode, request


def counters(policy: Vtc) -> dict[str, float]:
    return {client: -state.deficit for client, state in policy.clients().items()}


def test_the_least_served_client_goes_first_and_equals_by_name():
    policy = Vtc()
    arrive(policy, *(request(f"{client}{n}", client) for client in "ba" for n in range(2)))
    assert admit(policy) == ["a0", "b0", "a1", "b1"]


def test_the_earliest_request_of_the_client_goes_first_whatever_its_match():
    policy = Vtc()
    arrive(policy, request("early"), request("late", matched=90))
    assert admit(policy) == ["early", "late"]


def test_input_is_charged_in_full_when_admitted_and_output_as_it_comes():
    policy = Vtc()
    one = request("one", extend=40, matched=60)
    arrive(policy, one)
    admit(policy)
    assert counters(policy) == {"a": 100}
    decode(policy, one, 1)
    decode(policy, one, 3)
    assert counters(policy) == {"a": 108}


def test_an_adapter_that_is_loaded_for_a_request_is_charged_too():
    policy = Vtc()
    one = request("one", extend=40, matched=60)
    one.load_tokens = 256
    arrive(policy, one)
    admit(policy)
    assert counters(policy) == {"a": 100 + 256}


def test_a_misfit_ends_the_pass_without_trying_another_client():
    policy = Vtc()
    arrive(policy, request("big", "a"), request("small", "b"))
    assert admit(policy, misfits=("big",)) == []


def test_charges_are_divided_by_the_tenants_weight_times_the_clients():
    policy = Vtc()
    arrive(policy, request("one", tenant_weight=2, client_weight=5))
    admit(policy)
    assert counters(policy) == {"a": 10}


def test_the_newest_weight_counts_and_rewrites_no_history():
    policy = Vtc()
    arrive(policy, request("one"))
    admit(policy)
    arrive(policy, request("two", client_weight=4))
    admit(policy)
    assert counters(policy) == {"a": 125}


def test_a_newcomer_is_lifted_to_the_least_that_waits():
    policy = Vtc()
    arrive(
        policy,
        *(request(f"{c}{n}", c, extend=300 if c == "a" else 100) for c in "ab" for n in range(3)),
    )
    assert admit(policy, room=4) == ["a0", "b0", "b1", "b2"]
    arrive(policy, request("b3", "b"), request("c0", "c"))
    assert counters(policy) == {"a": 300, "b": 300, "c": 300}


def test_a_lift_lowers_no_counter():
    policy = Vtc()
    arrive(policy, request("a0", "a", extend=700), request("b0", "b"), request("b1", "b"))
    assert admit(policy, room=2) == ["a0", "b0"]
    arrive(policy, request("a1", "a"))
    assert counters(policy) == {"a": 700, "b": 100}


def test_a_client_that_already_waits_is_not_lifted():
    policy = Vtc()
    arrive(policy, request("a0", "a"), request("a1", "a"), request("b0", "b"), request("b1", "b"))
    assert admit(policy, room=1) == ["a0"]
    arrive(policy, request("b2", "b"))
    assert counters(policy) == {"a": 100, "b": 0}


def test_running_requests_do_not_keep_a_client_from_being_lifted():
    policy = Vtc()
    arrive(
        policy, request("b0", "b", extend=10), request("a0", "a", extend=400), request("a1", "a")
    )
    assert admit(policy, room=2) == ["a0", "b0"]
    arrive(policy, request("b1", "b"))
    assert counters(policy) == {"a": 400, "b": 400}


def test_into_an_empty_queue_a_client_is_lifted_to_the_last_that_left():
    policy = Vtc()
    first, last = request("a0", "a", extend=500), request("b0", "b", extend=200)
    arrive(policy, first, last)
    assert admit(policy) == ["a0", "b0"]
    decode(policy, last, 50)  # counts too: it is b's counter now that line 10 takes
    policy.leave(first, 0.0)
    policy.leave(last, 0.0)
    arrive(policy, request("c0", "c"))
    assert counters(policy) == {"a": 500, "b": 300, "c": 300}


def test_who_leaves_the_queue_by_abort_leaves_it_too():
    policy = Vtc()
    aborted = request("b0", "b")
    arrive(policy, request("a0", "a", extend=500), aborted)
    assert admit(policy, room=1) == ["a0"]
    policy.leave(aborted, 0.0)
    arrive(policy, request("c0", "c"))
    assert counters(policy)["c"] == 0, "b left last, at 0"


def test_the_first_client_of_all_starts_at_zero():
    policy = Vtc()
    arrive(policy, request("a0"))
    assert counters(policy) == {"a": 0}


def test_input_charged_elsewhere_is_not_charged_again():
    policy = Vtc()
    arrive(policy, request("retry", charge_input=False))
    admit(policy)
    assert counters(policy) == {"a": 0}


def test_what_is_computed_again_after_a_retraction_is_charged_again():
    policy = Vtc()
    one = request("one", charge_input=False)
    arrive(policy, one)
    admit(policy)
    decode(policy, one, 7)
    policy.requeue(one, 1.0)
    assert admit(policy) == ["one"]
    assert counters(policy) == {"a": 14 + 100 + 7}


def test_a_retracted_client_is_lifted_as_one_that_arrives():
    policy = Vtc()
    one = request("a0", "a")
    arrive(policy, one, request("b0", "b", extend=600), request("b1", "b"))
    assert admit(policy, room=2) == ["a0", "b0"]
    policy.requeue(one, 1.0)
    assert counters(policy) == {"a": 600, "b": 600}
    assert admit(policy) == ["a0", "b1"]


def test_a_finished_request_has_paid_h_exactly():
    cost = QuadraticCost(extend=2.5, output=1.25, product=0.5, output_squared=0.125)
    policy = Vtc(cost=cost)
    one = request("one", extend=20, matched=10)
    arrive(policy, one)
    admit(policy)
    for tokens in (1, 1, 5, 2):
        decode(policy, one, tokens)
    assert counters(policy) == {"a": 2.5 * 30 + 1.25 * 9 + 0.5 * 30 * 9 + 0.125 * 81}


def test_clients_that_would_come_back_as_new_ones_are_forgotten():
    policy = Vtc(sweep_above=2)
    for client in "ab":
        one = request(client, client, extend=100)
        arrive(policy, one)
        admit(policy)
        policy.leave(one, 0.0)
    assert counters(policy) == {"a": 100, "b": 200}
    arrive(policy, request("c", "c"))  # a is below the level that c is lifted to, b is at it
    assert counters(policy) == {"c": 200}
    arrive(policy, request("b1", "b"))
    assert counters(policy) == {"b": 200, "c": 200}


def test_clients_that_wait_or_run_or_are_ahead_are_not_forgotten():
    policy = Vtc(sweep_above=2)
    running, ahead = request("a0", "a"), request("b0", "b", extend=900)
    arrive(policy, running, ahead, request("c0", "c"), request("c1", "c"))
    assert admit(policy, room=3) == ["a0", "b0", "c0"]
    policy.leave(ahead, 0.0)
    arrive(policy, request("d0", "d"))
    assert counters(policy) == {"a": 100, "b": 900, "c": 100, "d": 100}
    policy.leave(running, 0.0)
    arrive(policy, request("e0", "e"))
    assert set(counters(policy)) == {"b", "c", "d", "e"}


def test_a_client_with_one_of_two_requests_still_running_is_not_forgotten():
    policy = Vtc(sweep_above=1)
    over, running = request("a0", "a"), request("a1", "a")
    arrive(policy, over, running)
    admit(policy)
    policy.leave(over, 0.0)
    arrive(policy, request("b0", "b"))
    assert counters(policy) == {"a": 200, "b": 200}


def test_a_client_whose_retracted_request_is_aborted_may_be_forgotten():
    policy = Vtc(sweep_above=2)
    one = request("a0", "a", charge_input=False)
    arrive(policy, one)
    admit(policy)
    policy.requeue(one, 0.0)
    policy.leave(one, 0.0)
    arrive(policy, request("b0", "b"))
    arrive(policy, request("c0", "c"))
    assert set(counters(policy)) == {"b", "c"}


def test_memory_stays_in_proportion_to_those_that_are_there():
    policy = Vtc(sweep_above=10)
    for number in range(500):
        one = request(str(number), f"c{number}")
        arrive(policy, one)
        admit(policy)
        policy.leave(one, 0.0)
        assert len(policy.clients()) <= 11


def test_reports_have_the_counter_and_the_waiting_requests():
    policy = Vtc()
    arrive(policy, request("one"), request("two"))
    admit(policy, room=1)
    assert policy.clients() == {"a": ClientDeficits(deficit=-100, tenant_deficit=0, waiting=1)}


# The artifact's accounts (VTC_ARTIFACT_FACTS §1.2). A prompt of 100 words has 102 tokens.


def artifact(**config) -> ArtifactVtc:
    policy = policies(printed=False, artifact=True)["VTC"](ReplicaPolicyConfig(**config))
    assert isinstance(policy, ArtifactVtc)
    return policy


def passes(policy: Vtc, batch: list, *, prefill: bool = False) -> None:
    """One forward pass over `batch`; requests that have all of their output leave."""
    if not prefill:
        policy.decoding(batch)
    for one in batch:
        decode(policy, one, 1)
    over = [one for one in batch if one.output_tokens == one.max_output_tokens]
    policy.forwarded(batch, finished=bool(over))
    for one in over:
        batch.remove(one)
        policy.leave(one, 0.0)


def test_the_artifacts_first_token_is_free_and_a_finish_is_charged_twice():
    """A request of q tokens pays 2(q - 1), and 2 for every pass in which anything finished."""
    policy = artifact()
    short, long = request("short", "a"), request("long", "b")
    short.max_output_tokens, long.max_output_tokens = 3, 5
    arrive(policy, short, long)
    assert admit(policy) == ["short", "long"]
    batch = [short, long]
    passes(policy, batch, prefill=True)
    assert counters(policy) == {"a": 102, "b": 102}
    while batch:
        passes(policy, batch)
    assert counters(policy) == {"a": 102 + 2 * 2 + 2, "b": 102 + 2 * 4 + 2 * 2}


def test_the_artifact_charges_a_finish_in_the_prefill_pass_to_that_pass():
    policy = artifact()
    running, single, other = request("running", "a"), request("single", "b"), request("other", "c")
    single.max_output_tokens = 1
    arrive(policy, running, single, other)
    admit(policy)
    passes(policy, [single, other], prefill=True)
    assert counters(policy) == {"a": 102, "b": 104, "c": 104}


def test_the_artifact_takes_a_general_cost_token_by_token():
    cost = QuadraticCost(extend=1, output=1, product=0, output_squared=10)
    policy = artifact(cost=cost)
    one = request("one")
    one.max_output_tokens = 3
    arrive(policy, one)
    admit(policy)
    batch = [one]
    passes(policy, batch, prefill=True)
    passes(policy, batch)
    assert counters(policy) == {"a": 102 + 1 + 10}  # the pass starts with one token: h(1) - h(0)
    passes(policy, batch)
    # It starts with two, h(2) - h(1), and is charged once more with three, h(3) - h(2).
    assert counters(policy) == {"a": 113 + (1 + 30) + (1 + 50)}


def test_the_artifact_charges_its_prediction_first_and_corrects_it_later():
    policy = policies(printed=False, artifact=True)["VTCPredict"](LaboratoryConfig())
    paid = []
    for length in (3, 5, 1):
        one = request(f"of {length}")
        one.max_output_tokens = length
        before = counters(policy).get("a", 0)
        arrive(policy, one)
        admit(policy)
        paid.append(counters(policy)["a"] - before)
        batch = [one]
        passes(policy, batch, prefill=True)
        while batch:
            passes(policy, batch)
        paid.append(counters(policy)["a"] - before)
    assert paid[:2] == [102, 108]  # nothing is known; two decode passes and the finish
    assert paid[2:4] == [108, 112]  # three tokens; the fourth, and the finish with the fifth
    assert paid[4:] == [108, 104]  # three, of which two do not come: (4 * 3 + 5) / 5 is 3.4


def test_the_artifact_s_oracle_is_right_or_wrong_by_its_error():
    exact, wrong = (
        policies(printed=False, artifact=True)["VTCOracle"](
            LaboratoryConfig(prediction_error=error)
        )
        for error in (0.0, 0.5)
    )
    for policy in (exact, wrong):
        one = request("one")
        one.expected_output_tokens = one.max_output_tokens = 100
        arrive(policy, one)
        admit(policy)
    assert counters(exact) == {"a": 302}
    assert 202 <= counters(wrong)["a"] <= 402
    assert counters(wrong) != {"a": 302}


def test_the_artifact_does_not_lift_into_an_empty_queue():
    policy = artifact()
    arrive(policy, request("a0", "a", extend=500))
    admit(policy)
    arrive(policy, request("b0", "b"))
    assert counters(policy) == {"a": 502, "b": 0}
    arrive(policy, request("a1", "a"), request("c0", "c"))
    assert counters(policy) == {"a": 502, "b": 0, "c": 0}


def test_the_artifact_lifts_to_others_that_wait():
    policy = artifact()
    arrive(policy, request("a0", "a", extend=500), request("a1", "a"))
    assert admit(policy, room=1) == ["a0"]
    arrive(policy, request("b0", "b"))
    assert counters(policy) == {"a": 502, "b": 502}


def test_a_client_that_arrives_in_a_pass_of_the_artifact_pays_the_lift_only():
    policy = artifact()
    small, big = request("small", "a"), request("big", "b", extend=500)
    arrive(policy, small, big)
    admit(policy)
    arrive(policy, request("b waits", "b"), request("c waits", "c"))
    assert counters(policy) == {"a": 102, "b": 502, "c": 502}
    policy.decoding([small])
    arrive(policy, request("a waits", "a"))
    decode(policy, small, 1)
    policy.forwarded([small], finished=False)
    assert counters(policy) == {"a": 502, "b": 502, "c": 502}
    assert admit(policy) == ["a waits", "b waits", "c waits"]


def test_among_equals_the_artifact_takes_the_client_seen_first():
    policy = artifact()
    arrive(policy, *(request(id, id) for id in "cab"))
    assert admit(policy) == ["c", "a", "b"]


def test_the_artifact_forgets_no_client():
    policy = ArtifactVtc(sweep_above=2)
    for client in "abcde":
        one = request(client, client)
        arrive(policy, one)
        admit(policy)
        policy.leave(one, 0.0)
    assert counters(policy) == dict.fromkeys("abcde", 102)


@pytest.mark.parametrize("artifact", [False, True])
def test_the_registry_passes_its_configuration_on(artifact):
    config = ReplicaPolicyConfig(cost=LinearCost(input_weight=10))
    policy = policies(printed=False, artifact=artifact)["VTC"](config)
    assert isinstance(policy, ArtifactVtc) is artifact
    arrive(policy, request("one"))
    admit(policy)
    assert policy.clients()["a"].deficit == (-1020 if artifact else -1000)
