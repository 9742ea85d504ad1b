"""The gate of one replica, and its window."""

from __future__ import annotations

from typing import Any

import pytest
from evenkeel_fairshare.fleet.contract import NOTHING, Usage
from evenkeel_fairshare.ledger import EqualWeights
from evenkeel_fairshare.replica.contract import ReplicaPolicy
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.fcfs import Fcfs
from evenkeel_router.gate.engine_load import QUEUE, EngineLoad
from evenkeel_router.gate.gate import Gate
from evenkeel_router.gate.sharing import Sharing
from evenkeel_router.gate.window import STREAMED, GatedRequest, Window, WindowRules


def request(number: int, *, client: str = "a", **fields: Any) -> GatedRequest:
    given: dict[str, Any] = {"input_tokens": 100, "max_output_tokens": 50}
    tenant = f"ns/{client}"
    return GatedRequest(
        id=f"{client}{number}",
        client=f"{tenant}/c",
        tenant=tenant,
        arrival_s=0.0,
        **(given | fields),
    )


def gate_of(policy: ReplicaPolicy) -> Gate:
    """Of a router that is alone."""
    return Gate(policy, Sharing("r", EqualWeights()))


def dlpm_gate(quantum: float = 100.0) -> Gate:
    return gate_of(Dlpm(rules=DeficitRules(quantum=quantum)))


def deficit(gate: Gate, client: str = "a") -> float:
    return gate.policy.clients()[f"ns/{client}/c"].deficit


def arrive(gate: Gate, *requests: GatedRequest) -> None:
    for one in requests:
        gate.arrive(one, 0.0)


# The gate


def test_no_more_is_sent_than_the_window_takes() -> None:
    gate = gate_of(Fcfs())
    requests = [request(n) for n in range(5)]
    arrive(gate, *requests)
    assert gate.admit(0.0) == requests[: STREAMED.floor]
    assert gate.admit(0.0) == []
    assert (len(gate), gate.unanswered) == (3, 2)


def test_a_request_that_begins_or_ends_makes_room() -> None:
    gate = gate_of(Fcfs())
    requests = [request(n) for n in range(5)]
    arrive(gate, *requests)
    first, second = gate.admit(0.0)
    gate.begun(first, 0.1)
    gate.leave(second, 0.1, NOTHING)
    assert set(gate.admit(0.1)) >= {requests[2], requests[3]}
    assert first in gate.sent
    assert second not in gate.sent


def test_whole_answers_have_a_window_of_their_own_until_they_end() -> None:
    gate = gate_of(Fcfs())
    arrive(gate, *[request(n, streams=False) for n in range(9)])
    sent = gate.admit(0.0)
    assert len(sent) == gate.whole.rules.floor
    streamed = dlpm_gate()
    arrive(streamed, *[request(n, streams=False) for n in range(9)], request(9, client="b"))
    sent = streamed.admit(0.0)
    assert [one.streams for one in sent].count(True) == 1
    assert len(sent) == streamed.whole.rules.floor + 1


def test_clients_take_turns_by_weight_whatever_they_have_waiting() -> None:
    gate = dlpm_gate()
    arrive(gate, *[request(n) for n in range(100)])
    arrive(gate, *[request(n, client="b", tenant_weight=4.0) for n in range(100)])
    order = []
    for step in range(50):
        for one in gate.admit(float(step)):
            order.append(one.tenant)
            gate.begun(one, float(step))
            gate.leave(one, float(step), Usage(100))
    while_both_wait = order[:100]
    assert while_both_wait.count("ns/b") == pytest.approx(80, abs=5)


def test_admission_charges_the_predicted_extend_and_progress_the_output() -> None:
    gate = dlpm_gate(quantum=1000)
    one = request(0, matched_tokens=60)
    arrive(gate, one)
    assert gate.admit(0.0) == [one]
    assert deficit(gate) == 1000 - 40
    gate.progress(one, 3)
    gate.progress(one, 3)
    gate.progress(one, 2)  # never back
    assert deficit(gate) == 1000 - 40 - 2 * 3


@pytest.mark.parametrize(
    ("usage", "want"),
    [
        (Usage(100, 60, 5), 40 + 2 * 5),  # as predicted
        (Usage(100, 0, 5), 100 + 2 * 5),  # nothing was cached
        (Usage(100, 99, 5), 1 + 2 * 5),  # all was
        (Usage(100, 60, 2), 40 + 2 * 2),  # some events carried no token
        (NOTHING, 0),  # it never ran
        (None, 40 + 2 * 3),  # unknown: the charge stands
    ],
)
def test_the_charge_is_corrected_by_what_the_engine_reports(
    usage: Usage | None, want: float
) -> None:
    gate = dlpm_gate(quantum=1000)
    one, other = request(0, matched_tokens=60), request(1)
    arrive(gate, one)
    gate.admit(0.0)
    arrive(gate, other)  # so that the client stays
    gate.progress(one, 3)
    gate.leave(one, 1.0, usage)
    assert deficit(gate) == 1000 - want


def test_what_was_paid_elsewhere_is_not_charged_again() -> None:
    gate = dlpm_gate(quantum=1000)
    one = request(0, charge_input=False, paid_output_tokens=4)
    arrive(gate, one, request(1, streams=False))
    gate.admit(0.0)
    before = deficit(gate)
    gate.progress(one, 6)
    assert deficit(gate) == before - 2 * 2
    gate.leave(one, 1.0, Usage(100, 0, 7))
    assert deficit(gate) == before - 2 * 3


def test_a_request_that_leaves_while_it_waits_costs_nothing() -> None:
    gate = dlpm_gate()
    requests = [request(n) for n in range(4)]
    arrive(gate, *requests)
    gate.admit(0.0)
    gate.leave(requests[3], 0.5, NOTHING)
    assert set(gate.waiting()) == {requests[2]}
    for one in requests[:3]:
        gate.leave(one, 1.0, NOTHING)
    assert (len(gate), gate.unanswered, gate.has_work, gate.sent) == (0, 0, False, {})
    assert gate.policy.clients() == {}


# The window

RULES = WindowRules(floor=2, tolerance=2.0)


def answered(window: Window, now_s: float, delay_s: float, *, others_wait: bool = True) -> None:
    one = request(0)
    one.extend_tokens = 100
    window.sent(one, now_s)
    window.begun(one, now_s + delay_s, output_tokens=0, others_wait=others_wait)


def test_the_window_grows_quickly_until_requests_are_held_up_and_then_slowly() -> None:
    window = Window(RULES)
    for n in range(8):
        answered(window, n, 0.1)
    assert window.limit == 10
    answered(window, 10, 0.5)
    assert window.limit == 5
    answered(window, 12, 0.1)
    assert window.limit == 5.2


def test_the_window_is_cut_once_for_all_that_were_sent_before() -> None:
    window = Window(RULES)
    for n in range(14):
        answered(window, n, 0.1)
    late = [request(n) for n in range(3)]
    for one in late:
        window.sent(one, 20.0)
    for n, one in enumerate(late):
        window.begun(one, 25.0 + n, output_tokens=0, others_wait=True)
    assert window.limit == 8


def test_the_window_never_falls_below_its_floor() -> None:
    window = Window(RULES)
    for n in range(20):
        answered(window, n, 0.1 if n == 0 else 0.9)
    assert window.limit == RULES.floor


def test_the_window_does_not_grow_while_nothing_waits() -> None:
    window = Window(RULES)
    for n in range(20):
        answered(window, n, 0.1, others_wait=False)
    assert window.limit == RULES.floor


def test_a_longer_prompt_and_a_longer_answer_may_take_longer() -> None:
    window = Window(RULES)
    answered(window, 0, 0.1)
    long = request(1)
    long.extend_tokens = 3000
    window.sent(long, 1.0)
    window.begun(long, 1.9, output_tokens=0, others_wait=True)
    whole = request(2, streams=False)
    whole.extend_tokens = 100
    window.sent(whole, 2.0)
    window.begun(whole, 5.0, output_tokens=200, others_wait=True)
    assert window.limit == 5


def with_free_places(count: int) -> Window:
    """A window at its floor of 2, after so many streams have ended."""
    window = Window(WindowRules(floor=2, tolerance=2.0, fills_places=True))
    streams = [request(n) for n in range(count)]
    for one in streams:
        window.sent(one, 0.0)
        window.begun(one, 1.0, output_tokens=0, others_wait=False)
    for one in streams:
        window.left(one)
    return window


def room(window: Window) -> int:
    """How many more requests may be sent at once."""
    for n in range(99):
        if not window.has_room:
            return n
        window.sent(request(100 + n), 10.0)
    raise AssertionError("it has no limit")


def test_a_stream_that_begins_takes_the_place_of_one_that_ended() -> None:
    assert room(with_free_places(3)) == 2 + 3
    window = with_free_places(3)
    answered(window, 2.0, 1.0, others_wait=False)
    assert room(window) == 2 + 2


def test_a_cut_shows_that_no_place_is_free() -> None:
    window = with_free_places(3)
    answered(window, 2.0, 99.0)
    assert room(window) == 2


def test_a_best_pace_that_was_a_wrong_prediction_is_forgotten() -> None:
    window = Window(RULES)
    answered(window, 0, 0.001)
    for n in range(1, 600):
        answered(window, n, 0.1)
    assert window.limit > RULES.floor


def ended_together(gate: Gate) -> int:
    """Five streams begin and end while others wait; their number."""
    arrive(gate, *[request(n) for n in range(30)])
    batch = []
    while len(batch) < 5:
        for one in gate.admit(0.0):
            gate.begun(one, 0.1)
            batch.append(one)
    gate.admit(0.1)
    for one in batch:
        gate.leave(one, 1.0, None)
    return len(batch)


def test_streams_that_end_together_are_replaced_at_once() -> None:
    gate = gate_of(Fcfs())
    places = ended_together(gate)
    queue = gate.unanswered
    assert len(gate.admit(1.0)) == places
    assert gate.unanswered == queue + places
    assert gate.admit(1.0) == []


def test_a_long_queue_in_the_engine_shows_that_no_place_is_free() -> None:
    gate = gate_of(Fcfs())
    ended_together(gate)
    gate.read(EngineLoad(running=6, waiting=QUEUE + 1, usage=0.5), 0.0)
    assert gate.admit(1.0) == []


def test_an_engine_gets_no_more_until_the_overtaken_request_begins() -> None:
    gate = gate_of(Fcfs())
    overtaken, *others = [request(n) for n in range(12)]
    for one in (overtaken, *others):
        gate.arrive(one, 0.0)
    running: list[GatedRequest] = []
    queue = gate.admit(0.0)
    for step in range(1, 8):  # each step a place is free, and the engine takes the newest request
        begins = queue.pop()
        running.append(begins)
        gate.begun(begins, float(step))
        if begins is overtaken:
            break
        queue += gate.admit(float(step))
    assert running[-1] is overtaken
    assert len(running) <= STREAMED.most_overtakes + STREAMED.floor
    assert gate.admit(9.0), "then the others go on"


def test_then_a_request_waits_while_one_with_a_shorter_match_has_not_begun() -> None:
    gate = gate_of(Fcfs())
    cold, *warm = [request(n, matched_tokens=80 if n else 10) for n in range(9)]
    arrive(gate, cold, *warm)
    queue = gate.admit(0.0)
    assert queue == [cold, warm[0]], "an engine that was not seen to prefer long matches"
    while (
        queue[-1] is not cold
    ):  # each step a place is free, and the engine takes the longest match
        queue.sort(key=lambda one: one.matched_tokens)
        gate.begun(queue.pop(), 1.0)
        queue += gate.admit(1.0)
    gate.begun(queue.pop(), 1.0)
    assert len(gate.admit(2.0)) == STREAMED.floor, "equal matches"
    colder = request(9, matched_tokens=70)
    assert not gate.streamed.would_overtake(colder)
    gate.streamed.sent(colder, 2.0)
    assert not gate.streamed.would_overtake(warm[-1]), "predictions differ a little"
    gate.streamed.sent(request(10, matched_tokens=10), 2.0)
    assert gate.streamed.would_overtake(warm[-1])
    assert gate.admit(2.0) == []


def test_a_request_that_a_free_place_does_not_help_holds_up_no_others() -> None:
    window = Window(STREAMED)
    stuck, *others = [request(n) for n in range(4)]
    window.sent(stuck, 0.0)
    for one in others:
        window.sent(one, 0.0)
        window.begun(one, 0.1, output_tokens=0, others_wait=True)
    assert not window.has_room
    window.left(others[0])
    assert window.has_room
