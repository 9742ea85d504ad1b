"""A histogram as plain numbers: one request touches several, and a metrics library's objects cost ten times as much."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts of values up to each bound, the last for those above all."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """A value counts where it is at most the bound."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def never(self) -> None:
        """What was waited for did not come: above every bound, and nothing for the sum."""
        self.counts[-1] += 1
