"""What a decode step takes, learnt from measured steps: fixed time + time per request and token of context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

REQUEST_TOKENS: Final = 192
"""A request in the batch costs as much as reading this many tokens of context: 121 to 366 in the profiles of
COST_MODEL.md §1, §3 and §4."""
MEMORY_STEPS: Final = 2000
"""Older steps fade: about a minute of decoding."""


Line = tuple[float, float]
"""(fixed seconds, seconds per unit of size) of a decode step."""


def step_size(requests: int, context_tokens: int) -> int:
    """The size of a decode step of so many requests."""
    return context_tokens + REQUEST_TOKENS * requests


class StepTimes:
    """Least squares over recent decode steps: seconds = fixed + slope · size. Size: context tokens and `REQUEST_TOKENS` for each
    request."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._size = 0.0
        self._seconds = 0.0
        self._variance = 0.0
        self._covariance = 0.0

    def observe(self, requests: int, context_tokens: int, times: Sequence[float]) -> None:
        """Decode steps of the same requests took so long, one after the other (Welford's update, with exponential weights).

        `context_tokens`: of the first step; each adds a token per request.
        """
        size = step_size(requests, context_tokens)
        weight, mean_size, mean_s = self._weight, self._size, self._seconds
        variance, covariance = self._variance, self._covariance
        for seconds in times:
            if weight < MEMORY_STEPS:
                weight += 1.0
            rate = 1.0 / weight
            away = size - mean_size
            mean_size += rate * away
            variance = (1 - rate) * (variance + rate * away * away)
            late = seconds - mean_s
            mean_s += rate * late
            covariance = (1 - rate) * (covariance + rate * away * late)
            size += requests
        self._weight, self._size, self._seconds = weight, mean_size, mean_s
        self._variance, self._covariance = variance, covariance

    def line(self) -> Line:
        """What is known now; neither figure is negative."""
        if not self._size:
            return 0.0, 0.0
        slope = max(0.0, self._covariance / self._variance) if self._variance else 0.0
        slope = min(slope, self._seconds / self._size)
        return self._seconds - slope * self._size, slope

    def predict(self, requests: int, context_tokens: int) -> float:
        """Seconds of a decode step; at least in proportion to its size where it is smaller than those seen."""
        fixed_s, slope = self.line()
        return fixed_s + slope * step_size(requests, context_tokens)
