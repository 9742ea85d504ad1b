"""Backoff for a replica that reports ready and fails requests which other replicas answer.

Such a replica attracts requests, because it fails them at once and so always looks idle. After `FAILURES` in a row it
gets no requests for a while, each time twice as long, up to `LONGEST_S`; one answer resets this.

A failure counts only once another replica has answered the same request. A request that fails on every replica is at
fault itself, so no client can drive replicas out of the fleet. Silence never counts: a silent replica keeps its
requests, and looks busy.
"""

from __future__ import annotations

from typing import Final

FAILURES: Final = 3  # one may be chance, and two a process on its way out
LONGEST_S: Final = 30.0  # bounds how late the router notices that the replica works again


class Backoff:
    """One replica."""

    __slots__ = ("_failures", "_first_s", "_until_s")

    def __init__(self, first_s: float) -> None:
        """`first_s`: the first backoff, seconds."""
        self._first_s = first_s
        self._failures = 0
        self._until_s = 0.0

    def answered(self) -> None:
        """It answered a request."""
        self._failures = 0

    def failed(self, now_s: float) -> float:
        """It failed a request that another replica answered. Returns the backoff, seconds; 0: none.

        A failure during a backoff is of a request sent before, and counts no more.
        """
        if now_s < self._until_s:
            return 0.0
        self._failures += 1
        doublings = self._failures - FAILURES
        if doublings < 0:
            return 0.0
        backoff_s = min(LONGEST_S, self._first_s * 2.0 ** min(doublings, 32))
        self._until_s = now_s + backoff_s
        return backoff_s

    def is_active(self, now_s: float) -> bool:
        """Whether it gets no requests now."""
        return now_s < self._until_s

    def end(self) -> None:
        """It is the last replica, or its process is new: it gets requests again."""
        self._until_s = 0.0
