"""What a forward pass took, from the times at which the scheduler launches batches and processes their results.

With overlap the scheduler launches a batch before it processes the result of the one before. So a pass takes the time since the
previous result, or since its own launch if the engine was idle in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic


class StepClock:
    """Times of one scheduler, in seconds."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._launches: deque[float] = deque([0.0, 0.0], maxlen=2)
        self._ended = 0.0

    def launched(self) -> None:
        """The scheduler chooses its next batch."""
        self._launches.append(self._clock())

    def ended(self, *, overlap: bool) -> float:
        """The result of the oldest batch under way was processed; the seconds that it took."""
        now = self._clock()
        seconds = now - max(self._ended, self._launches[0 if overlap else 1])
        self._ended = now
        return seconds
