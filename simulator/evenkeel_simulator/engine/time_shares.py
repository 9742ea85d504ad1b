"""Engine time by client in the engine model (design R13), or nothing where prefill always goes first."""

from __future__ import annotations

from collections.abc import Sequence

from evenkeel_fairshare.replica.contract import Request
from evenkeel_fairshare.replica.engine_time import EngineTime

from evenkeel_simulator.engine.iteration import Iteration
from evenkeel_simulator.engine.request import EngineRequest, State


class TimeShares:
    """One engine's `EngineTime` and the state of a pass of admissions."""

    def __init__(self, isolation: float | None) -> None:
        self.time = None if isolation is None else EngineTime(isolation=isolation)
        self.yielding = False
        """Whether clients with a lead yield in this pass to clients with a lag that wait."""
        self._yielded = False

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

    def begin_pass(self) -> None:
        """A pass for clients with a lag first; `must_repeat` says whether one for all has to follow."""
        self.yielding, self._yielded = self.time is not None, False

    def must_repeat(self, admitted: Sequence[EngineRequest]) -> bool:
        """Whether a request yielded in the pass that ends, and none of a client with a lag was admitted."""
        self.yielding = False
        if self.time is None or not self._yielded:
            return False
        return not any(map(self.time.lags, admitted))

    def must_wait(self, request: EngineRequest) -> bool:
        """Whether prefill of a request has to wait in this pass."""
        if self.time is None or self.time.must_wait(request):
            return self.time is not None
        if self.yielding and self.time.should_wait(request):
            self._yielded = True
            return True
        return False

    def in_order(
        self, begun: list[EngineRequest]
    ) -> tuple[list[EngineRequest], list[EngineRequest]]:
        """(requests in prefill that go on before others are admitted, those that come after)."""
        if self.time is None:
            return begun, []
        later = [request for request in begun if self.time.should_wait(request)]
        return [request for request in begun if request not in later], later

    def account(self, iteration: Iteration, *, first: int, steps: int, decoded: bool) -> None:
        """Attribute an iteration with a prefill, or `steps` decode steps of a run from the step number `first` on."""
        if self.time is None:
            return
        if not iteration.chunks:
            for seconds in iteration.times(first, steps):
                self.time.elapsed(seconds, prefilled={}, decoded=decoded)
            return
        computed: dict[Request, int] = {
            request: tokens
            for request, tokens in iteration.chunks
            if request.state is State.PREFILLING
        }
        seconds = iteration.end_s - iteration.start_s
        self.time.elapsed(seconds, prefilled=computed, decoded=decoded and steps > 0)
