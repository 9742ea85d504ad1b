"""What a decode step takes, learnt from measured steps: fixed time + time per request and token of context."""

from __future__ import annotations

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

    def observe(self, requests: int, context_tokens: int, seconds: float) -> None:
        """A decode step took so long (Welford's update, with exponential weights)."""
        size = step_size(requests, context_tokens)
        self._weight = min(self._weight + 1.0, MEMORY_STEPS)
        rate = 1.0 / self._weight
        away = size - self._size
        self._size += rate * away
        self._variance = (1 - rate) * (self._variance + rate * away * away)
        late = seconds - self._seconds
        self._seconds += rate * late
        self._covariance = (1 - rate) * (self._covariance + rate * away * late)

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
