"""The unit of limits, gate, load, bookings and demand is the sequence: prompts times answers to each (R19)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from evenkeel_fairshare.cost import FIRST_COST
from evenkeel_fairshare.fleet.contract import NOTHING, Dispatch, Usage, replica_set
from evenkeel_fairshare.fleet.d2lpm_auto import AutoD2lpm
from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.api.errors import Outcome
from evenkeel_router.api.identity import UNPAID, Paid
from evenkeel_router.gate.engine_load import LARGEST_BATCH, EngineLimit, EngineLoad, read_load
from evenkeel_router.gate.window import WHOLE, Window
from evenkeel_router.ledger.held_work import RelocationVerdict
from evenkeel_router.ledger.totals import DemandMeter

from tests.unit.evenkeel_router.test_admission import admission, client, refused
from tests.unit.evenkeel_router.test_gate import arrive, dlpm_gate, request
from tests.unit.evenkeel_router.test_inference import LIMITS
from tests.unit.evenkeel_router.test_ledger_accounting import A, books, meet, report, tell

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("endpoint", "body", "want"),
    [
        (Endpoint.COMPLETIONS, {"model": "m", "prompt": "a"}, 1),
        (Endpoint.COMPLETIONS, {"model": "m", "prompt": ["a"] * 64}, 64),
        (Endpoint.COMPLETIONS, {"model": "m", "prompt": [1, 2, 3]}, 1),
        (Endpoint.COMPLETIONS, {"model": "m", "prompt": [[1, 2], [3]], "n": 3}, 6),
        (Endpoint.COMPLETIONS, {"model": "m", "prompt": "a", "n": 2, "best_of": 5}, 5),
        (Endpoint.CHAT, CHAT | {"n": 64}, 64),
        (Endpoint.EMBEDDINGS, {"model": "m", "input": ["a"] * 9}, 9),
        (Endpoint.GENERATE, {"text": ["a", "b"], "sampling_params": {"n": 4}}, 8),
        (Endpoint.GENERATE, {"text": ["a", "b"], "sampling_params": [{"n": 4}, {}]}, 5),
        (Endpoint.GENERATE, {"text": ["a", "b"], "sampling_params": [{}]}, 2),
        (Endpoint.GENERATE, {"text": ["a", "b"]}, 2),
        (Endpoint.RERANK, {"query": "q", "documents": ["a", "b", "c"]}, 3),
        (Endpoint.RESPONSES, {"model": "m", "input": "Hi"}, 1),
    ],
)
def test_a_request_has_its_prompts_times_their_answers(
    endpoint: Endpoint, body: dict[str, Any], want: int
) -> None:
    assert endpoint.api.parse(json.dumps(body).encode(), LIMITS, "").sequences == want


# Limits


def test_64_prompts_are_64_requests_to_every_limit() -> None:
    gate, who = admission(max_concurrent=100), client(max_concurrent=70, requests_per_minute=1000)
    gate.enter(who, 1, 0.0, 64)
    assert gate.running == 64
    refusal = refused(gate, who, 0.0, sequences=7)
    assert refusal.code == "max_concurrent"
    assert "needs 7 free places" in refusal.message
    gate.enter(who, 1, 0.0, 6)
    gate.leave(who, 0, 0.0, 64)
    assert gate.running == 6
    assert refused(gate, who, 0.0, sequences=64).code == "requests_per_minute"  # 30 of 100 are left
    gate.enter(who, 1, 60 * 40 / 1000, 64)


def test_a_request_larger_than_a_limit_waits_for_all_of_it() -> None:
    gate, who = admission(), client(max_concurrent=8)
    gate.enter(who, 1, 0.0)
    assert refused(gate, who, 0.0, sequences=64).code == "max_concurrent"
    gate.leave(who, 0, 0.0)
    gate.enter(who, 1, 0.0, 64)
    assert refused(gate, who, 0.0).code == "max_concurrent"
    gate.leave(who, 0, 0.0, 64)
    gate.enter(who, 1, 0.0)


def test_a_rate_is_in_debt_after_a_request_larger_than_its_burst() -> None:
    gate, who = admission(), client(requests_per_minute=60, burst_requests=6)
    gate.enter(who, 1, 0.0, 64)
    assert refused(gate, who, 0.0).retry_after_s == pytest.approx(59.0)
    gate.enter(who, 1, 59.0)
    assert refused(gate, who, 59.0, sequences=64).retry_after_s == pytest.approx(6.0)
    gate.enter(who, 1, 65.0, 64)


def test_a_request_larger_than_the_router_enters_alone() -> None:
    gate, big, small = admission(max_concurrent=10), client("a"), client("b", tenant="u")
    gate.enter(small, 1, 0.0)
    assert refused(gate, big, 0.0, sequences=64).outcome is Outcome.UNAVAILABLE
    gate.leave(small, 0, 0.0)
    gate.enter(big, 1, 0.0, 64)
    assert refused(gate, small, 0.0).outcome is Outcome.UNAVAILABLE
    gate.leave(big, 0, 0.0, 64)
    assert gate.running == 0


def test_one_batch_leaves_room_for_other_tenants() -> None:
    gate, flood, other = admission(max_concurrent=1000), client("a"), client("b", tenant="u")
    gate.enter(other, 1, 0.0)
    gate.enter(flood, 1, 0.0, 800)
    assert refused(gate, flood, 0.0, sequences=100).code == "max_concurrent"
    gate.enter(other, 1, 0.0, 10)


def test_a_clients_own_limit_counts_sequences() -> None:
    gate, who = admission(max_concurrent_per_client=4), client()
    gate.enter(who, 1, 0.0, 3)
    assert "needs 2 free places" in refused(gate, who, 0.0, sequences=2).message
    gate.enter(who, 1, 0.0)


# The gate


def test_many_sequences_wait_for_room_for_all_of_them() -> None:
    gate = dlpm_gate(10_000)
    first, small = request(0, streams=False), request(2, streams=False)
    big = request(1, streams=False, sequences=WHOLE.floor)
    arrive(gate, first, big, small)
    assert gate.admit(0.0) == [first, small]  # the large one does not fit beside the first
    gate.leave(first, 1.0, Usage(100))
    assert gate.admit(1.0) == []
    gate.leave(small, 2.0, Usage(100))
    assert gate.admit(2.0) == [big]
    assert (gate.unanswered, gate.at_engine) == (WHOLE.floor, WHOLE.floor)


def test_what_is_larger_than_the_window_goes_alone_and_keeps_all_others_out() -> None:
    gate = dlpm_gate(10_000)
    big, small = request(0, streams=False, sequences=64), request(1, streams=False)
    arrive(gate, big, small)
    assert gate.admit(0.0) == [big]
    assert gate.admit(1.0) == []
    gate.leave(big, 2.0, Usage(100))
    assert gate.admit(2.0) == [small]


def test_others_pass_a_large_request_until_they_had_as_many_sequences() -> None:
    gate = dlpm_gate(10_000)
    running = [request(n, streams=False) for n in range(WHOLE.floor)]
    arrive(gate, *running)
    assert gate.admit(0.0) == running
    arrive(gate, request(10, streams=False, sequences=10))
    others = [request(100 + n, streams=False) for n in range(60)]
    arrive(gate, *others)
    passed = 0
    while len(running) > 0:
        gate.leave(running.pop(0), 1.0, Usage(100))
        for one in gate.admit(1.0):
            if one.sequences > 1:
                assert not running  # it had the window for itself
                assert 10 <= passed <= 10 + WHOLE.floor
                return
            passed += 1
            running.append(one)
    pytest.fail("the large request never went")


def test_streams_pass_a_large_request_that_the_other_window_is_reserved_for() -> None:
    gate = dlpm_gate(10_000)
    running, big = request(0, streams=False), request(1, streams=False, sequences=9)
    arrive(gate, running, big)
    gate.admit(0.0)
    for n in range(20):
        stream = request(100 + n)
        arrive(gate, stream)
        assert gate.admit(1.0) == [stream]
        gate.begun(stream, 1.1)
        gate.leave(stream, 1.2, Usage(100))
    assert gate.whole.reserved is big  # streams had more sequences than it by now
    arrive(gate, request(200, streams=False))
    assert gate.admit(2.0) == []
    gate.leave(running, 3.0, Usage(100))
    assert gate.admit(3.0)[0] is big


def test_the_engines_own_limit_counts_sequences() -> None:
    gate = dlpm_gate(10_000)
    gate.read(EngineLoad(running=6.0, waiting=0.0, usage=0.1), 0.0)  # 7 may be there
    small = [request(n, streams=False) for n in range(4)]
    arrive(gate, *small, request(9, streams=False, sequences=5))
    assert gate.admit(0.0) == small
    gate.read(EngineLoad(running=6.0, waiting=0.0, usage=0.1), 0.0)
    assert gate.engine.limit == 14  # it holds up the large one
    assert [one.sequences for one in gate.admit(1.0)] == [5]
    assert gate.at_engine == 9


def test_a_large_request_that_leaves_its_place_lets_the_others_in() -> None:
    gate = dlpm_gate(10_000)
    running, big = request(0, streams=False), request(1, streams=False, sequences=9)
    arrive(gate, running, big)
    gate.admit(0.0)
    for n in range(12):
        stream = request(100 + n)
        arrive(gate, stream)
        gate.admit(1.0)
        gate.begun(stream, 1.0)
        gate.leave(stream, 1.0, Usage(1))
    gate.leave(big, 2.0, NOTHING)
    small = request(200, streams=False)
    arrive(gate, small)
    assert gate.admit(2.0) == [small]
    assert not gate.clients


def test_sequences_that_decode_together_do_not_look_fast() -> None:
    paces = []
    for sequences in (1, 8):
        window = Window(WHOLE)
        one = request(0, streams=False, sequences=sequences, extend_tokens=10)
        window.sent(one, 0.0)
        window.begun(one, 10.0, output_tokens=100 * sequences, others_wait=False)
        paces.append(window.best_pace)
    assert paces[0] == paces[1]


@pytest.mark.parametrize("claim", [b"1e999", b"1e30", b"-5", b"inf"])
def test_an_engines_figures_open_no_gate(claim: bytes) -> None:
    page = b"vllm:num_requests_running %b\nvllm:num_requests_waiting 0\n" % claim
    load = read_load(page)
    limit = EngineLimit()
    for _ in range(5000):
        if load is not None:
            limit.read(load, begun=0, held_up=True, streams_held_up=True)
    assert int(limit.limit) <= LARGEST_BATCH
    assert int(limit.unanswered) <= LARGEST_BATCH


# Load, bookings, demand


def test_a_replica_with_many_sequences_has_more_load() -> None:
    policy = AutoD2lpm()
    policy.joined(0)
    policy.joined(1)
    for _ in range(3):
        policy.dispatched(one := Dispatch("ns/t/x", 100), 1)
        policy.finished(one, 1, Usage(100, 0, 100))
    policy.dispatched(Dispatch("ns/t/a", 100, sequences=64), 0)
    policy.dispatched(Dispatch("ns/t/a", 300), 1)
    assert policy.select(Dispatch("ns/t/b", 100), replica_set([0, 1]), [64, 1]) == 1


def test_the_mean_output_is_of_a_sequence() -> None:
    one, many = AutoD2lpm(), AutoD2lpm()
    for policy, sequences in ((one, 1), (many, 10)):
        policy.joined(0)
        policy.dispatched(request := Dispatch("c", 100, sequences=sequences), 0)
        policy.finished(request, 0, Usage(100, 0, 50 * sequences))
        policy.dispatched(Dispatch("c", 100), 0)
    assert one.credit("c") == many.credit("c") == {0: -(100 + 2 * 50)}


def test_demand_counts_sequences() -> None:
    meter = DemandMeter(window_s=60.0)
    meter.arrived("c", 0.0, 64)
    assert meter.rates(0.0) == {"c": pytest.approx(64 * FIRST_COST / 60)}
    meter.finished("c", 6400.0, 64)
    assert meter.rates(0.0) == {"c": pytest.approx(64 * 100 / 60)}


def test_a_booking_holds_all_its_sequences() -> None:
    of = books()
    meet(of, "r0", "one")
    first = of.sends("r0", A, paid=UNPAID, now_s=0.0, sequences=4)
    second = of.sends("r0", A, paid=UNPAID, now_s=0.0)
    assert of.open_at("one", A.identity) == 5
    # Engines report each sequence. The oldest run.
    row = report(A.identity, 10, -10)
    row.running, row.waiting = 2, 3
    tell(of, "one", row)
    assert of.was_running(first)  # half of it
    assert not of.was_running(second)
    row = report(A.identity, 11, -11)
    row.running, row.waiting = 1, 4
    tell(of, "one", row, sequence=2)
    assert not of.was_running(first)
    of.ended(first, Usage(40, 0, 4))
    assert of.open_at("one", A.identity) == 1
    of.ended(second, NOTHING)
    assert of.open_at("one", A.identity) == 0


def test_a_relocated_batch_pays_for_the_sequences_that_began() -> None:
    of = books()
    meet(of, "r0", "one")
    batch = of.sends("r0", A, paid=UNPAID, now_s=0.0, sequences=3)
    first, *rest = batch.numbers
    verdict = RelocationVerdict({first: Paid(True, 7)}, frozenset(rest))
    assert of.moved(batch, verdict, Usage(30)) == Paid(True, 7)
    again = of.sends("r0", A, paid=UNPAID, now_s=0.0, sequences=3)
    assert of.moved(again, RelocationVerdict({}, frozenset(again.numbers)), Usage(30)) == UNPAID
