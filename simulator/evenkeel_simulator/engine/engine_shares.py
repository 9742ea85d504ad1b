"""What each client has of one engine in the model, accounted by iterations."""

from __future__ import annotations

from evenkeel_fairshare.replica.contract import Request
from evenkeel_fairshare.replica.engine_time import EngineTime
from evenkeel_fairshare.replica.memory_shares import MemoryShares
from evenkeel_fairshare.replica.shares import Shares

from evenkeel_simulator.engine.iteration import Iteration
from evenkeel_simulator.engine.request import State


class EngineShares(Shares):
    """The shares of one engine."""

    def __init__(self, *, isolation: float | None, pool_tokens: int | None) -> None:
        """`isolation`: None: prefill always goes first. `pool_tokens`: None: memory is not shared."""
        super().__init__(
            time=None if isolation is None else EngineTime(isolation=isolation),
            memory=None if pool_tokens is None else MemoryShares(pool_tokens),
        )

    def account(self, iteration: Iteration, *, first: int, steps: int, decoded: bool) -> None:
        """Attribute an iteration with a prefill, or `steps` decode steps of a run from the step number `first` on."""
        if self.memory is not None and decoded:
            self.memory.stepped(steps)
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
