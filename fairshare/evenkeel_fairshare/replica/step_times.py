"""What a decode step takes, learnt from measured steps: fixed time + time per request and token of context."""

from __future__ import annotations

from typing import Final

REQUEST_TOKENS: Final = 192
"""A request in the batch costs as much as reading this many tokens of context: 121 to 366 in the profiles of
COST_MODEL.md §1, §3 and §4."""
MEMORY_STEPS: Final = 2000
"""Older steps fade: about a minute of decoding."""


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
        size = context_tokens + REQUEST_TOKENS * requests
        self._weight = min(self._weight + 1.0, MEMORY_STEPS)
        rate = 1.0 / self._weight
        away = size - self._size
        self._size += rate * away
        self._variance = (1 - rate) * (self._variance + rate * away * away)
        late = seconds - self._seconds
        self._seconds += rate * late
        self._covariance = (1 - rate) * (self._covariance + rate * away * late)

    def predict(self, requests: int, context_tokens: int) -> float:
        """Seconds of a decode step; at least in proportion to its size where it is smaller than those seen."""
        size = context_tokens + REQUEST_TOKENS * requests
        if not self._size:
            return 0.0
        slope = max(0.0, self._covariance / self._variance) if self._variance else 0.0
        slope = min(slope, self._seconds / self._size)  # no fixed time is negative
        return self._seconds + slope * (size - self._size)
