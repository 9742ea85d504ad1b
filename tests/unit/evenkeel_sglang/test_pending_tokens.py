"""The tokens of the waiting queue, which SGLang writes to its log: the plug-in answers with the number that SGLang's own sum would have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from evenkeel_plugin.request import EngineRequest, context_tokens
from evenkeel_sglang import hooks

from tests.unit.evenkeel_plugin.test_scheduling import Loop, Req, req


@dataclass
class Inquirer:
    """What SGLang's `SchedulerLoadInquirer` reads of the scheduler."""

    queue: Sequence[EngineRequest]
    chunked: Any = None

    def get_waiting_queue(self) -> Sequence[EngineRequest]:
        return self.queue

    def get_chunked_req(self) -> Any:
        return self.chunked


def own(inquirer: Inquirer, chunk_deduct: int = 0) -> int:
    """SGLang's function."""
    tokens = sum(context_tokens(one) for one in inquirer.get_waiting_queue())
    chunked = inquirer.get_chunked_req()
    if chunked is not None:
        tokens += context_tokens(chunked) - chunked.prefix_len - chunk_deduct
    return tokens


def never(*_: object) -> int:
    raise AssertionError("the queue is walked")


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    """In charge of the hook."""
    made = Loop(slots=8)
    monkeypatch.setattr(hooks, "_scheduling", made.scheduling)
    return made


def admit(loop: Loop, number: int) -> list[EngineRequest]:
    """The loop of a pass, which breaks off; the queue that is left."""
    queue = loop.scheduling.begin_pass(loop.waiting_queue, loop.running)
    admitted: list[EngineRequest] = []
    for request in queue:
        if len(admitted) == number:
            break
        admitted.append(request)
        loop.scheduling.tried(request, admitted=True)
    loop.running += [one for one in admitted if isinstance(one, Req)]
    loop.waiting_queue = [one for one in queue if one not in admitted]
    return loop.waiting_queue


@pytest.mark.parametrize("seed", range(5))
def test_the_sum_is_sglangs_own_whatever_came_and_left(loop: Loop, seed: int) -> None:
    rng = Random(seed)
    for step in range(60):
        loop.send(
            *(
                req(f"{step}-{i}", rng.choice("ab"), tokens=rng.randrange(1, 50))
                for i in range(rng.randrange(4))
            )
        )
        left = Inquirer(admit(loop, rng.randrange(3)))
        assert hooks.pending_tokens(never, left) == own(left)
        loop.scheduling.end_pass()
        loop.forward(finish=[one.rid for one in loop.running if rng.random() < 0.3])
        if loop.running and rng.random() < 0.3:
            loop.waiting_queue.append(loop.running.pop())  # retracted, with its output
        if loop.waiting_queue and rng.random() < 0.3:
            loop.waiting_queue.pop(rng.randrange(len(loop.waiting_queue)))  # aborted


def test_the_rest_of_a_prompt_in_chunks_is_added(loop: Loop) -> None:
    loop.send(req("waits", tokens=30))
    chunked = SimpleNamespace(origin_input_ids=[1] * 100, output_ids=[], prefix_len=40)
    left = Inquirer(admit(loop, 0), chunked)
    assert hooks.pending_tokens(never, left, 25) == own(left, 25) == 30 + 35


def test_sglang_adds_up_what_the_policy_does_not_know(loop: Loop) -> None:
    loop.send(req("HEALTH_CHECK_1", tokens=1), req("a", tokens=30))
    left = Inquirer(admit(loop, 0))
    assert hooks.pending_tokens(own, left) == 31
    loop.scheduling.end_pass()
    left.queue = [req("new", tokens=5)]  # between two passes the queue may have changed
    assert hooks.pending_tokens(own, left) == 5


def test_without_a_policy_of_evenkeel_sglang_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "_scheduling", None)
    assert hooks.pending_tokens(own, Inquirer([req("a", tokens=7)])) == 7
