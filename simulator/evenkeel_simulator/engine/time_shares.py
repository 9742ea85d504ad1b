"""Engine time by client in the engine model (design R13), or nothing where prefill always goes first."""

from __future__ import annotations

from evenkeel_fairshare.replica.contract import Request
from evenkeel_fairshare.replica.engine_time import EngineTime, PassTurns

from evenkeel_simulator.engine.iteration import Iteration
from evenkeel_simulator.engine.request import EngineRequest, State


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

    def should_wait(self, request: EngineRequest) -> bool:
        """Whether others go before the next chunk of a prompt."""
        return self.time is not None and self.time.should_wait(request)

    def must_wait(self, request: EngineRequest) -> bool:
        """Whether the next chunk of a prompt has to wait for decode steps."""
        return self.time is not None and self.time.must_wait(request)

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
