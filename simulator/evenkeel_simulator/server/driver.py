"""The engine on the wall clock: it sleeps through each step and then delivers the tokens.

    loop:  start a step ─▶ publish what the cache changed ─▶ sleep until its end ─▶ finish it ─▶ deliver

Handlers submit and abort at any time; the loop is one task. Engine time is wall-clock time since the start times `speed`.

While the lag is small, the next step starts at the end of the one before, not at the time the timer fired. Timers are a
little late each time, and the simulated engine would else be slower than its profile. Larger lags are not made up for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from evenkeel_fairshare.replica.contract import Arrival

from evenkeel_simulator.engine.model import Engine
from evenkeel_simulator.engine.step import Step
from evenkeel_simulator.server.metrics import EngineMetrics
from evenkeel_simulator.server.served import Finish, FinishType, ServedRequest

MAX_LAG_S: Final = 0.25
"""Wall clock. A delay up to this time is made up for; a longer delay is not."""
_EARLY_S: Final = 0.0005
"""Wall clock. uvloop's timers count whole milliseconds: half of one early is as good as half of one late."""


class Driver:
    """Runs one engine. Everything happens on one event loop."""

    def __init__(
        self,
        engine: Engine,
        *,
        speed: float,
        metrics: EngineMetrics,
        publish: Callable[[], Awaitable[None]],
    ) -> None:
        """`publish` publishes what the cache changed; it must not block."""
        self.engine = engine
        self.resumed = asyncio.Event()
        """Event that is set unless generation is paused."""
        self.resumed.set()
        self.stopped = asyncio.Event()
        """Event that is set once the loop ended, for whatever reason."""
        self._speed = speed
        self._metrics = metrics
        self._publish = publish
        self._wake = asyncio.Event()
        self._origin_s = time.monotonic()
        self._step_end_s = 0.0  # engine time

    # For handlers

    def submit(self, request: ServedRequest) -> Arrival:
        """Queue a request; raises `RequestError` if this engine could never serve it."""
        request.arrival_s = self._event_s()
        arrival = self.engine.submit(request, request.arrival_s)
        self._wake.set()
        return arrival

    def abort(self, request: ServedRequest, message: str) -> None:
        """End a request that has not ended, and wake its handler."""
        if request.finish is not None:
            return
        self.engine.abort(request.id, self._event_s())
        request.finish = Finish(FinishType.ABORT, message=message)
        request.news.set()
        self._metrics.aborted()
        self._wake.set()

    def unfinished(self) -> Iterable[ServedRequest]:
        """Every request that waits or runs."""
        requests = [*self.engine.running(), *self.engine.policy.waiting()]
        return [request for request in requests if isinstance(request, ServedRequest)]

    def pause(self) -> None:
        """Start no step until `resume`."""
        self.resumed.clear()

    def resume(self) -> None:
        """Continue after `pause`."""
        self.resumed.set()
        self._wake.set()

    def flush(self) -> bool:
        """Empty the cache if nothing waits or runs, as SGLang does. Returns whether it did."""
        if self.engine.has_work or not self.engine.memory.cache.clear():
            return False
        self._wake.set()
        return True

    # The loop

    async def run(self) -> None:
        """Drive the engine until cancelled; then end all requests that still wait for an answer."""
        try:
            await self._loop()
        finally:
            self.stopped.set()
            for request in self.unfinished():
                request.finish = Finish(FinishType.ABORT, message="The engine stopped")
                request.news.set()

    async def _loop(self) -> None:
        busy = False
        while True:
            end_s = self._start(follows_on=busy) if self.resumed.is_set() else None
            await self._publish()
            busy = end_s is not None
            if end_s is None:
                await self._wake.wait()
                self._wake.clear()
                continue
            self._step_end_s = end_s
            await self._sleep_until(end_s)
            self._deliver(self.engine.finish())

    def _start(self, *, follows_on: bool) -> float | None:
        """Start a step; its end, or None if there is nothing to do."""
        now_s = self._now_s()
        # In engine time a step begins where the last one ended: late timers must not add up.
        if follows_on and now_s - self._step_end_s <= MAX_LAG_S * self._speed:
            now_s = self._step_end_s
        return self.engine.start(now_s, now_s)

    async def _sleep_until(self, end_s: float) -> None:
        """Yield to the event loop at least once, so that an overloaded machine still answers requests."""
        while True:
            await asyncio.sleep(max(0.0, self._wall_left_s(end_s)))
            if self._wall_left_s(end_s) <= _EARLY_S:
                return

    def _deliver(self, step: Step) -> None:
        now_s = time.monotonic()
        metrics = self._metrics
        metrics.stepped(step, speed=self._speed)
        for request in step.produced:
            assert isinstance(request, ServedRequest)
            metrics.produced(request, step.tokens_each, now_s=now_s)
            request.last_token_s = now_s
            request.news.set()
        for request in step.finished:
            assert isinstance(request, ServedRequest)
            matched = request.speech.matched
            kind = FinishType.LENGTH if matched is None else FinishType.STOP
            request.finish = Finish(kind, matched)
            metrics.finished(request, now_s=now_s)

    # Time

    def _now_s(self) -> float:
        """Engine time now, seconds."""
        return (time.monotonic() - self._origin_s) * self._speed

    def _event_s(self) -> float:
        """Engine time of an event, at most the end of the current step, which may be detected late."""
        busy_until_s = self.engine.busy_until_s
        return self._now_s() if busy_until_s is None else min(self._now_s(), busy_until_s)

    def _wall_left_s(self, end_s: float) -> float:
        return (end_s - self._now_s()) / self._speed
