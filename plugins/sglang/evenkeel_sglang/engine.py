"""SGLang's scheduler process: one clock for all ranks of an engine, what each forward pass took, and the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
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
    """Time as of the first rank's last tick. Called by the scheduler's thread.

    Ranks must take the same decisions at the same steps. So the first rank adds its time to the requests that it receives.
    SGLang sends these to every rank, in the same order and before the same step. So warm-up and the measured quantum work with
    tensor and pipeline parallelism too.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """`clock` is read in the first rank only."""
        self._clock = clock
        self._sent_s = float("-inf")
        self._now_s = 0.0

    def __call__(self) -> float:
        return self._now_s

    def send(self, received: list[Any]) -> None:
        """Add a tick to the requests that the first rank received, if one is due."""
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


@dataclass(frozen=True, slots=True)
class Launch:
    """A forward pass that the scheduler launched, in seconds of the clock."""

    began_s: float
    ended_s: float | None
    """Time at which the pass ended, if the launch computed it. None: the device computes, and the pass ends once its
    result is processed."""
    computed: Mapping[Any, int]
    """Input tokens that the pass computes of each request; empty for decode steps."""


class StepClock:
    """What each forward pass took: from its launch, or from the end of the pass before if that one still ran.

    With overlap the scheduler launches a pass before it processes the result of the one before. A GPU computes meanwhile. On a
    CPU the launch itself computes, so the pass before has ended long before its result is processed.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._ended_s = 0.0

    def launch(
        self, forward: Callable[[], Any], *, computes: bool, computed: Mapping[Any, int]
    ) -> tuple[Any, Launch]:
        """Launch a pass; returns its result too. `computes`: the launch itself does; `computed`: see `Launch`."""
        began_s = self._clock()
        result = forward()
        return result, Launch(began_s, self._clock() if computes else None, computed)

    def ended(self, launch: Launch) -> float:
        """The result of a pass was processed; the seconds that the pass took."""
        ended_s = self._clock() if launch.ended_s is None else launch.ended_s
        seconds = ended_s - max(self._ended_s, launch.began_s)
        self._ended_s = ended_s
        return seconds


WHEN_IDLE: Final = 100
"""Collections of younger objects after which an idle engine runs a full one."""
WHEN_BUSY: Final = 2000
"""Collections of younger objects after which a busy engine runs a full one (Python: 10). These are about 14 million
new objects."""


class Collector:
    """Python's garbage collector: full collections happen while the engine is idle. The settings are made at the first look.

    A full collection visits every object of the process and stops the scheduler meanwhile. Its imports alone leave
    700,000 objects, and each waiting request adds some. By default a collection starts in any pass, after a number of new objects.
    """

    def __init__(self) -> None:
        self._is_set = False

    def look(self, *, idle: bool) -> None:
        """Collect in an idle engine if enough objects are new. Call it between passes, with everything loaded."""
        if not self._is_set:
            self._is_set = True
            gc.freeze()  # objects of the start-up are never visited again
            young, middle, old = gc.get_threshold()
            gc.set_threshold(young, middle, max(old, WHEN_BUSY))
        if idle and gc.get_count()[2] >= WHEN_IDLE:
            gc.collect()
