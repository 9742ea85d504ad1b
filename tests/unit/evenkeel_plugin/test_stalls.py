"""Books that do not match the engine: found by the clock, counted, and made anew from what the engine holds."""

from __future__ import annotations

import pytest
from evenkeel_fairshare.replica.engine_time import EngineTime
from evenkeel_fairshare.replica.memory_shares import MemoryShares
from evenkeel_plugin.request import is_probe, scheduled_of
from evenkeel_plugin.stalls import BUSY_S, IDLE_S, Stalls

from tests.unit.evenkeel_plugin.test_scheduling import Loop, Req, req


@pytest.mark.parametrize(
    ("idle", "limit_s"), [([True], IDLE_S), ([False], BUSY_S), ([True, False], BUSY_S)]
)
def test_a_stall_is_a_time_without_a_proposal(idle: list[bool], limit_s: float) -> None:
    stalls = Stalls()
    for now_s in range(int(limit_s)):
        assert stalls.passed(now_s, idle=idle[now_s % len(idle)]) is None
    assert stalls.passed(limit_s, idle=idle[0]) == limit_s
    assert stalls.passed(limit_s + 1, idle=True) is None, "the time starts again"


def test_a_proposal_ends_a_stall() -> None:
    stalls = Stalls()
    assert stalls.passed(0.0, idle=True) is None
    stalls.over()
    assert stalls.passed(IDLE_S, idle=True) is None


def stuck(**engine: int) -> tuple[Loop, list[None]]:
    """An engine whose books have a request of another client that computes, and never did in the engine."""
    loop, stalls = Loop(time=EngineTime(), **engine), list[None]()
    loop.scheduling.stalled = lambda: stalls.append(None)
    ghost = scheduled_of(req("v0", "v"), 0.0, refused=print)
    shares = loop.scheduling._shares
    shares.opened(ghost)
    shares.started(ghost)
    shares.decoding(ghost)
    loop.send(req("r0", "r"))
    loop.step()
    loop.forward(is_prefill=True, seconds=1.0, finish=["r0"])
    return loop, stalls


def test_books_that_let_no_request_enter_an_idle_engine_are_rebuilt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop, stalls = stuck()
    loop.send(req("r1", "r", base=500))
    for now_s in (0.0, 1.0, IDLE_S):
        loop.now_s = now_s
        assert loop.step() == []
    assert stalls == []
    loop.now_s = IDLE_S + 0.1
    assert loop.step() == ["r1"]
    assert len(stalls) == 1
    assert (
        "1 requests wait, and none was proposed for 5 s: the books are rebuilt (0 run)"
        in caplog.text
    )
    loop.forward(is_prefill=True, finish=["r1"])
    assert not loop.scheduling.busy
    loop.send(req("r2", "r", base=900))
    assert loop.step() == ["r2"], "nothing is left of the request that never was"


def test_an_engine_that_has_no_room_does_not_stall() -> None:
    loop = Loop(slots=0, time=EngineTime())
    stalls: list[None] = []
    loop.scheduling.stalled = lambda: stalls.append(None)
    loop.send(req("a0"))
    for now_s in range(0, 200, 10):
        loop.now_s = float(now_s)
        assert loop.step() == []
    assert stalls == []


def test_rebuilt_books_hold_what_the_engine_does() -> None:
    loop = Loop(slots=3, time=EngineTime(), memory=MemoryShares(1000))
    loop.cached["a0"] = 16
    loop.send(
        req("a0"), req("b0", "b", base=500), req("c0", "c", base=900), req("d0", "d", base=1300)
    )
    assert loop.step() == ["a0", "b0", "c0"]
    loop.scheduling.processed(loop.running[2:], is_prefill=True)  # in chunks: no token yet
    for is_prefill in (True, False, False):
        for request in loop.running[:2]:
            request.output_ids.append(7)
        loop.scheduling.processed(loop.running[:2], is_prefill=is_prefill)
    books = loop.scheduling

    def held() -> dict[str, int]:
        memory = books._shares.memory
        assert memory is not None
        return {one.client: memory._held(memory._clients[one]) for one in books._running.values()}

    before = held()
    assert before == {"ns/a/a": 44 + 3, "ns/b/b": 60 + 3, "ns/c/c": 60}
    books._stalled_s = 9.0
    lost, extra = books._waiting[loop.waiting_queue[0]], scheduled_of(req("x"), 0.0, refused=print)
    books.policy.leave(lost, 0.0)
    books.policy.arrive(extra, 0.0)
    assert loop.step() == []
    assert held() == before
    assert list(books.policy.waiting()) == [lost]
    assert books._matching is not None
    assert [one.rid for one in books._matching._computed_by] == ["c0"]
    loop.forward(is_prefill=True, finish=["a0", "b0", "c0"])
    assert loop.step() == ["d0"]


def test_what_is_computed_without_the_queue_is_counted_once() -> None:
    loop = Loop()
    counted: list[None] = []
    loop.scheduling.bypassed = lambda: counted.append(None)
    loop.send(req("a0"), req("a1", base=500))
    loop.step()
    retracted = loop.running.pop()
    loop.waiting_queue.append(retracted)
    over, probe = req("over"), Req("HEALTH_CHECK_1", None, [1])
    over.is_over = True
    assert is_probe(probe)
    for _ in range(2):
        loop.scheduling.processed([*loop.running, retracted, over, probe], is_prefill=True)
    assert counted == []
    for _ in range(2):
        loop.scheduling.processed([*loop.running, req_once], is_prefill=False)
    assert len(counted) == 1


req_once = req("never queued")


def test_a_retracted_request_that_vanished_leaves_and_pays_for_its_output() -> None:
    """SGLang's abort takes it out of the queue without a reason."""
    loop = Loop(time=EngineTime(), memory=MemoryShares(1000))
    loop.send(req("a0"))
    loop.step()
    loop.forward(is_prefill=True)
    loop.running.pop().output_ids.append(7)
    loop.scheduling.look(loop.waiting_queue, loop.running)
    served = loop.scheduling.snapshot()[0]["ns/a/a"]
    assert (served.output_tokens, served.running, served.aborted) == (2, 0, 1)
    assert not loop.scheduling.busy
    assert loop.scheduling._shares.memory._clients == {}  # type: ignore[union-attr]


def test_a_request_of_another_batch_of_the_engine_stays() -> None:
    loop = Loop()
    loop.send(req("a0"))
    loop.step()
    elsewhere = loop.running.pop()
    loop.scheduling.in_flight = lambda: {elsewhere}
    loop.scheduling.look(loop.waiting_queue, loop.running)
    assert loop.scheduling.busy
    loop.scheduling.look(loop.waiting_queue, [], elsewhere)
    loop.scheduling.in_flight = set
    loop.scheduling.look(loop.waiting_queue, [], elsewhere)
    assert loop.scheduling.busy
    loop.scheduling.look(loop.waiting_queue, [])
    assert not loop.scheduling.busy


def test_new_requests_are_counted_and_retracted_ones_and_probes_are_not() -> None:
    loop = Loop()
    counted: list[None] = []
    loop.scheduling.received = lambda: counted.append(None)
    loop.send(req("a0"), Req("HEALTH_CHECK_1", None, [1]), Req("x", None, [1, 2]))
    loop.step()
    assert len(counted) == 2
    loop.send(loop.running.pop())
    loop.step()
    assert len(counted) == 2
