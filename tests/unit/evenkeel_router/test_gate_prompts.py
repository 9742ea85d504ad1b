"""Prompts on their way to an engine: few at a time, whether or not their beginning shows (R12)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from random import Random

import pytest
from evenkeel_fairshare.fleet.contract import Usage
from evenkeel_fairshare.ledger import EqualWeights
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.fcfs import Fcfs
from evenkeel_router.gate.engine_load import EngineLoad
from evenkeel_router.gate.gate import Gate
from evenkeel_router.gate.prompts import FEW, LEAST_AGE_S, MOST_TOKENS, RECENT, Prompts
from evenkeel_router.gate.sharing import Sharing
from evenkeel_router.gate.window import FIXED_TOKENS, GatedRequest
from evenkeel_simulator.engine.config import EngineConfig
from evenkeel_simulator.engine.model import Engine
from evenkeel_simulator.engine.profiles import PROFILES
from evenkeel_simulator.engine.request import EngineRequest

from tests.unit.evenkeel_simulator.engine_support import make_request

PACE_S = 0.001
LARGE = 3000


def request(number: int, *, tokens: int = LARGE, streams: bool = True) -> GatedRequest:
    return GatedRequest(
        id=str(number), client="ns/a/c", tenant="ns/a", arrival_s=0.0, input_tokens=tokens, max_output_tokens=9,
        extend_tokens=tokens, streams=streams,
    )  # fmt: skip


def room(prompts: Prompts, tokens: int, now_s: float = 0.0) -> int:
    """How many streams with so many uncached tokens may be sent."""
    count = 0
    while prompts.has_room and count < 99:
        prompts.sent(request(count, tokens=tokens), now_s, PACE_S)
        count += 1
    return count


def test_two_long_prompts_or_many_short_ones_may_be_on_their_way() -> None:
    assert room(Prompts(), LARGE) == FEW
    assert room(Prompts(), 100) == -(-MOST_TOKENS // 100)
    prompts = Prompts()
    prompts.part = 0.25
    assert room(prompts, LARGE) == 1
    prompts = Prompts()
    prompts.part = 0.25
    assert room(prompts, 100) == -(-MOST_TOKENS // 400)


def test_a_stream_counts_until_it_begins_or_ends() -> None:
    prompts, streams = Prompts(), [request(n) for n in range(2)]
    for one in streams:
        prompts.sent(one, 0.0, PACE_S)
    prompts.expire(1e6)
    assert (prompts.has_room, prompts.next_s()) == (False, None)
    prompts.begun(streams[0], 1.0)
    assert room(prompts, LARGE) == 1
    prompts.left(streams[1])
    assert prompts.has_room


def test_a_whole_answer_counts_until_its_prompt_should_be_computed() -> None:
    prompts = Prompts()
    each_s = (FIXED_TOKENS + LARGE) * PACE_S
    for n in range(FEW):
        prompts.sent(request(n, streams=False), 10.0, PACE_S)
    assert prompts.next_s() == pytest.approx(10.0 + each_s)
    prompts.expire(10.0 + 0.99 * each_s)
    assert not prompts.has_room
    prompts.expire(10.0 + 1.01 * each_s)
    assert room(prompts, LARGE, 10.0 + 1.01 * each_s) == 1
    assert prompts.next_s() == pytest.approx(10.0 + 2 * each_s), "it is computed behind the first"


def test_prompts_are_computed_one_behind_the_other() -> None:
    prompts = Prompts()
    prompts.sent(request(0, streams=True), 0.0, PACE_S)
    prompts.sent(request(1, streams=False), 0.0, PACE_S)
    assert prompts.next_s() == pytest.approx(2 * (FIXED_TOKENS + LARGE) * PACE_S)


def test_a_stream_that_begins_shows_the_prompts_before_it() -> None:
    prompts = Prompts()
    first, stream, last = request(0, streams=False), request(1), request(2, streams=False)
    for one in (first, stream, last):
        prompts.sent(one, 0.0, PACE_S)
    prompts.begun(stream, 0.5)
    assert room(prompts, LARGE) == 1, "the one behind it is not computed"
    prompts.begun(stream, 0.6)
    prompts.left(first)
    assert not prompts.has_room, "nothing counts twice"


def test_an_engine_that_was_idle_begins_at_once() -> None:
    prompts, stream = Prompts(), request(0)
    prompts.sent(stream, 0.0, 1.0)  # at a pace that was far too slow
    prompts.begun(stream, 0.5)
    prompts.sent(request(1, streams=False), 1.0, PACE_S)
    assert prompts.next_s() == pytest.approx(1.5), "as long as the stream of the same length"


def test_the_pace_is_that_of_recent_streams_a_third_from_the_fastest() -> None:
    prompts = Prompts()
    for n, delay_s in enumerate([0.1] * RECENT + [9.0, 2.0, 1.0, 3.0, 8.0, 7.0] * 3):
        prompts.sent(stream := request(n), 0.0, PACE_S)
        prompts.begun(stream, delay_s)
    last = sorted([2.0, 1.0, 3.0, 8.0, 7.0, *[9.0, 2.0, 1.0, 3.0, 8.0, 7.0] * 2])
    assert prompts.pace_s == pytest.approx(last[RECENT // 3] / (FIXED_TOKENS + LARGE))


def test_work_on_its_way_explains_a_slow_stream() -> None:
    prompts, whole, stream = Prompts(), request(0, streams=False), request(1)
    prompts.sent(whole, 0.0, PACE_S)
    prompts.sent(stream, 0.0, PACE_S)
    prompts.begun(stream, 2.0)
    assert prompts.pace_s == pytest.approx(1.0 / (FIXED_TOKENS + LARGE))


def test_a_whole_answer_shows_no_pace() -> None:
    prompts, whole = Prompts(), request(0, streams=False)
    prompts.sent(whole, 0.0, PACE_S)
    prompts.begun(whole, 60.0)
    assert prompts.pace_s == inf


def test_prompts_that_were_believed_to_be_computed_make_the_estimate_longer() -> None:
    prompts, whole, stream = Prompts(), request(0, streams=False), request(1)
    prompts.sent(whole, 0.0, PACE_S / 100)
    prompts.expire(1.0)
    prompts.sent(stream, 1.0, PACE_S / 100)
    prompts.begun(stream, 7.0)
    prompts.sent(request(2, streams=False), 7.0, PACE_S / 100)
    assert prompts.next_s() == pytest.approx(13.0)


def test_whole_answers_do_not_count_before_the_pace_is_known() -> None:
    prompts = Prompts()
    for n in range(9):
        prompts.sent(request(n, streams=False), 0.0, inf)
    assert prompts.has_room
    assert prompts.next_s() is None


def test_an_engine_without_a_queue_has_computed_what_is_old() -> None:
    prompts = Prompts()
    for n, streams in enumerate((True, False)):
        prompts.sent(request(n, streams=streams), 0.0, 1.0)
    prompts.none_waits(0.99 * LEAST_AGE_S)
    assert not prompts.has_room
    prompts.none_waits(LEAST_AGE_S)
    assert room(prompts, LARGE) == 1, "the stream did not begin"


def test_a_gate_learns_from_the_engine_that_nothing_waits() -> None:
    gate = Gate(Fcfs(), Sharing("r", EqualWeights()))
    gate.streamed.best_pace = 1.0
    for n in range(4):
        gate.arrive(request(n, streams=False), 0.0)
    assert len(gate.admit(0.0)) == FEW
    gate.read(EngineLoad(2, 1, 0.5), LEAST_AGE_S)
    assert not gate.admit(LEAST_AGE_S)
    gate.read(EngineLoad(2, 0, 0.5), LEAST_AGE_S)
    assert len(gate.admit(LEAST_AGE_S)) == FEW


@dataclass
class Waves:
    """One client streams now and then; another keeps 24 whole answers of equal length open, which end in waves. In virtual time."""

    gated: bool
    first_s: list[float] = field(default_factory=list)
    """Times to the first token of the client that streams, after the first wave."""
    ended: int = 0
    _jobs: dict[str, tuple[GatedRequest, EngineRequest]] = field(default_factory=dict)
    _number: int = 0

    def __post_init__(self) -> None:
        self.engine = Engine(EngineConfig(max_running=32), Fcfs(), PROFILES["a10g-llama3.2-3b"])
        self.gate = Gate(Dlpm(), Sharing("r", EqualWeights()))

    def make(self, client: str, now_s: float, *, output: int, streams: bool) -> None:
        self._number += 1
        job = make_request(
            f"{client}{self._number}", prompt=(), tail=1300, output=output, max_output=output, client=client, arrival_s=now_s,
        )  # fmt: skip
        gated = GatedRequest(
            id=job.id, client=client, tenant=job.tenant, arrival_s=now_s, input_tokens=1300, max_output_tokens=output, streams=streams,
        )  # fmt: skip
        self._jobs[gated.id] = gated, job
        if not self.gated or self.gate.enter(gated, now_s):
            self.engine.submit(job, now_s)

    def run(self, until_s: float) -> None:
        rng, now_s, next_s, read_s = Random(0), 0.0, 0.0, 0.5
        for _ in range(24):
            self.make("ns/flood/c", now_s, output=200, streams=False)
        while now_s < until_s:
            while next_s <= now_s:
                self.make("ns/light/c", next_s, output=16, streams=True)
                next_s += rng.expovariate(1.0)
            if now_s >= read_s:
                read_s = now_s + 0.5
                waits = len(list(self.engine.policy.waiting()))
                self.gate.read(EngineLoad(len(self.gate.sent) - waits, waits, 0.3), now_s)
            for one in self.gate.admit(now_s):
                self.engine.submit(self._jobs[one.id][1], now_s)
            wakes = (next_s, read_s, self.gate.prompts.next_s() or inf)
            step = self.engine.step(now_s, until_s=min(wakes))
            now_s = min(wakes) if step is None else step.end_s
            for ended in list(self.observe(now_s)):
                self.ended += ended
                self.make("ns/flood/c", now_s, output=200, streams=False)

    def observe(self, now_s: float) -> Iterator[bool]:
        """What a router sees of a step; one item for each request of the flood that ended."""
        for gated, job in list(self._jobs.values()):
            if job.output_tokens and gated.streams and gated.output_tokens == 0:
                gated.output_tokens = 1
                if job.arrival_s > 20.0:
                    self.first_s.append(now_s - job.arrival_s)
                self.gate.begun(gated, now_s)
            if job.finished_s is not None:
                del self._jobs[gated.id]
                if gated in self.gate.sent:
                    if not gated.streams:
                        self.gate.begun(gated, now_s, output_tokens=job.output_tokens)
                    self.gate.leave(gated, now_s, Usage(1300, 0, job.output_tokens))
                if not gated.streams:
                    yield now_s > 10.0


def test_whole_answers_that_end_together_send_no_wave_of_prompts() -> None:
    """A quarter of the time at most, at 0.97 of the answers."""
    gated, alone = Waves(gated=True), Waves(gated=False)
    for world in (gated, alone):
        world.run(100.0)
    assert 4 * max(gated.first_s) < max(alone.first_s)
    assert gated.ended >= 0.97 * alone.ended
