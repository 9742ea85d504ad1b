"""Engine time by client in the engine model (design R13), or nothing where prefill always goes first."""

from __future__ import annotations

from typing import Final

from evenkeel_fairshare.replica.contract import Request
from evenkeel_fairshare.replica.engine_time import EngineTime, PassTurns

from evenkeel_simulator.engine.iteration import Iteration
from evenkeel_simulator.engine.request import EngineRequest, State

MAX_BEGUN: Final = 2
"""Prompts in prefill that may wait for decode steps. With so many only a prompt that fits into one iteration is admitted: more
prompts in parts would hold the memory of the prefix cache. Measured in docs/design/0006."""


class TimeShares:
    """One engine's `EngineTime`, if it has one."""

    def __init__(self, isolation: float | None) -> None:
        self.time = None if isolation is None else EngineTime(isolation=isolation)
        self.turns = PassTurns(self.time)

    def opened(self, request: EngineRequest) -> None:
        if self.time is not None:
            self.time.open(request)

    def started(self, request: EngineRequest) -> None:
        if self.time is not None:
            self.time.starts(request)

    def decoding(self, request: EngineRequest) -> None:
        if self.time is not None:
            self.time.decodes(request)

    def stopped(self, request: EngineRequest) -> None:
        if self.time is not None:
            self.time.stops(request)

    def closed(self, request: EngineRequest) -> None:
        if self.time is not None:
            self.time.close(request)

    def in_order(
        self, begun: list[EngineRequest]
    ) -> tuple[list[EngineRequest], list[EngineRequest]]:
        """(requests in prefill that go on before others are admitted, those that come after)."""
        if self.time is None or not begun:
            return begun, []
        later = [request for request in begun if self.time.should_wait(request)]
        return [request for request in begun if request not in later], later

    def admits_whole_prompts_only(self, begun: int) -> bool:
        """Whether so many prompts in prefill leave no place for another one in parts."""
        return self.time is not None and begun >= MAX_BEGUN

    def unpaused(self, begun: list[EngineRequest]) -> list[EngineRequest]:
        """Requests in prefill whose next chunk need not wait."""
        time = self.time
        return begun if time is None else [one for one in begun if not time.must_wait(one)]

    def account(self, iteration: Iteration, *, first: int, steps: int, decoded: bool) -> None:
        """Attribute an iteration with a prefill, or `steps` decode steps of a run from the step number `first` on."""
        if self.time is None:
            return
        if not iteration.chunks:
            times = iteration.times(first, steps)
            if decoded and times:
                self.time.decoded(times)
            else:
                self.time.elapsed(sum(times), prefilled={}, decoded=False)
            return
        computed: dict[Request, int] = {
            request: tokens
            for request, tokens in iteration.chunks
            if request.state is State.PREFILLING
        }
        seconds = iteration.end_s - iteration.start_s
        self.time.elapsed(seconds, prefilled=computed, decoded=decoded and steps > 0)
