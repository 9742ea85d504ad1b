"""Other code of the engine that walks the queue, and requests that enter the batch unproposed."""

from __future__ import annotations

import pytest
from evenkeel_plugin.queue_walk import WaitingQueue
from evenkeel_plugin.request import EngineRequest

from tests.unit.evenkeel_plugin.test_scheduling import Loop, Req, req


def rids(queue: list[EngineRequest]) -> list[str]:
    """A walk by other code, such as the one that counts waiting requests by adapter."""
    return [request.rid for request in queue]


def test_a_walk_by_other_code_sees_the_list_and_leaves_the_pass() -> None:
    loop = Loop("VTC", slots=9)
    loop.send(*(req(f"a{i}", "a", base=1000 * i) for i in range(2)), req("b0", "b", base=9000))

    def engine() -> list[str]:
        queue = loop.scheduling.begin_pass(loop.waiting_queue, [], walker=engine.__code__)
        assert rids(queue) == ["a0", "a1", "b0"]
        proposed = []
        for request in queue:
            proposed.append(request.rid)
            loop.scheduling.tried(request, admitted=True)
        assert rids(queue) == ["a0", "a1", "b0"]
        loop.scheduling.end_pass()
        return proposed

    assert engine() == ["a0", "b0", "a1"]


def test_without_a_known_loop_the_first_walk_is_the_pass() -> None:
    one, other = req("one"), req("other")
    queue = WaitingQueue([one, other], iter([other]))
    assert rids(queue) == ["other"]
    assert rids(queue) == ["one", "other"]


@pytest.mark.parametrize("policy", ["DLPM", "VTC", "DRR", "FCFS"])
def test_a_request_that_enters_unproposed_is_counted_and_the_policy_goes_on(policy: str) -> None:
    loop = Loop(policy, slots=9)
    counted: list[None] = []
    loop.scheduling.bypassed = lambda: counted.append(None)
    sent = [req(f"a{i}", "a", base=1000 * i) for i in range(3)]
    loop.send(*sent)
    queue = loop.scheduling.begin_pass(loop.waiting_queue, [])
    walk = iter(queue)
    proposed = next(walk)
    assert isinstance(proposed, Req)
    loop.scheduling.tried(proposed, admitted=True)
    next(walk)
    intruder = sent[2]
    loop.scheduling.tried(intruder, admitted=True)  # SGLang took one that waits behind
    assert len(counted) == 1
    assert list(walk) == []  # the pass is over
    loop.scheduling.end_pass()
    loop.running = [proposed, intruder]
    loop.waiting_queue = [sent[1]]
    loop.forward(is_prefill=True)
    deficit = loop.scheduling.snapshot()[1].get("ns/a/a")
    loop.forward(finish=[intruder.rid])
    after = loop.scheduling.snapshot()[1].get("ns/a/a")
    if policy == "DLPM":
        assert deficit is not None
        assert after is not None
        assert deficit.deficit - after.deficit == 2  # one token of the proposed request
    assert loop.step() == ["a1"]
    loop.forward(is_prefill=True)
    loop.forward(finish=["a0", "a1"])
    totals = loop.scheduling.snapshot()[0]["ns/a/a"]
    assert (totals.requests, totals.running, totals.aborted) == (3, 0, 0)
    assert totals.output_tokens == 2 + 4 + 2


def test_an_unproposed_request_that_is_retracted_waits_for_the_policy() -> None:
    loop = Loop(slots=9)
    one = req("a0")
    loop.send(one)
    loop.scheduling.begin_pass(loop.waiting_queue, [])
    loop.scheduling.tried(one, admitted=True)
    loop.scheduling.end_pass()
    loop.waiting_queue, loop.running = [], [one]
    loop.forward(is_prefill=True)
    loop.running, loop.waiting_queue = [], [one]
    assert loop.step() == ["a0"]
    before = loop.scheduling.snapshot()[1]["ns/a/a"].deficit
    assert before < 100
    loop.forward(is_prefill=True)
    assert loop.scheduling.snapshot()[1]["ns/a/a"].deficit == before - 2
    loop.forward(finish=["a0"])
    assert not list(loop.scheduling.policy.clients())
