"""A histogram of plain numbers: a request touches several, and a metrics library's objects cost ten times as much."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts of values up to each bound; the last count is of values above all bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value in the first bucket whose bound it does not exceed."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def never(self) -> None:
        """Count an event that did not happen: above every bound, and not in the sum."""
        self.counts[-1] += 1
