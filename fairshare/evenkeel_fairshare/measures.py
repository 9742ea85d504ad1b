"""Jain's fairness index and percentiles, for metrics, status and reports.

Fairness is between backlogged clients only. The caller leaves out a client that got all it asked for.
"""

from __future__ import annotations

from collections.abc import Collection
from math import floor


def jain_index(values: Collection[float]) -> float:
    """Jain's index (Σx)² / (n·Σx²) of non-negative values, in [1/n, 1]; 1 where all are equal.

    For weighted clients, pass service divided by weight. No client, or none served: 1, all got the same.
    """
    largest = max(values, default=0.0)
    if largest <= 0:
        return 1.0
    scaled = [value / largest for value in values]  # so that squares neither overflow nor vanish
    return float(sum(scaled) ** 2 / (len(scaled) * sum(value * value for value in scaled)))


def percentile(values: Collection[float], percent: float) -> float:
    """The `percent`-th percentile (0 to 100), linear between neighbours as in NumPy's default.

    Raises `ValueError` where there are no values.
    """
    if not values:
        raise ValueError("no percentile of no values")
    if not 0 <= percent <= 100:
        raise ValueError(f"percent is {percent}, must be from 0 to 100")
    ordered = sorted(values)
    place = percent / 100 * (len(ordered) - 1)
    below = floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
