"""One clock for all ranks of an engine, so that all take the same decisions at the same steps.

The first rank adds its time to the requests that it receives. SGLang sends these to every rank, in the same order and before the
same step. So warm-up and the measured quantum work with tensor and pipeline parallelism too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

TICK_S: Final = 0.05
"""Time between two ticks while the engine works. The decisions by this clock are about seconds."""


@dataclass(frozen=True, slots=True)
class Tick:
    """The first rank's time, in seconds. It travels among SGLang's requests."""

    now_s: float


class RankClock:
    """Time as of the last tick. Called by the scheduler's thread."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """`clock` is read in the first rank only."""
        self._clock = clock
        self._sent_s = float("-inf")
        self._now_s = 0.0

    def __call__(self) -> float:
        return self._now_s

    def send(self, received: list[Any]) -> None:
        """The first rank received these: add a tick if one is due."""
        now_s = self._clock()
        if now_s >= self._sent_s + TICK_S:
            self._sent_s = now_s
            received.append(Tick(now_s))

    def read(self, received: Sequence[Any]) -> list[Any]:
        """Take the ticks out of what every rank received; returns the requests."""
        requests = []
        for one in received:
            if isinstance(one, Tick):
                self._now_s = one.now_s
            else:
                requests.append(one)
        return requests
