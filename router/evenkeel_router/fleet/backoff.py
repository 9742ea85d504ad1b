"""How long a replica rests that says it is ready and fails what others answer.

Place in the flow: forward → health → **rest** → fleet. Such a replica draws requests: what it fails is over at
once, so that it always looks idle. After `FAILURES` in a row it gets nothing for a while, each time twice as
long, up to `LONGEST_S`; one answer, and all is forgotten.

The surprising thing: a failure counts only once another replica has answered the same request. One that fails
everywhere is the request's own fault, or everybody's, and no client can talk replicas out of the fleet by it.
Silence never counts: a replica that is silent keeps what it was given, and looks busy.
"""

from __future__ import annotations

from typing import Final

FAILURES: Final = 3  # one may be chance, and two a process on its way out
LONGEST_S: Final = 30.0  # as long as it takes to notice that one is well again


class Backoff:
    """One replica."""

    __slots__ = ("_failures", "_first_s", "_until_s")

    def __init__(self, first_s: float) -> None:
        """`first_s`: the first rest."""
        self._first_s = first_s
        self._failures = 0
        self._until_s = 0.0

    def answered(self) -> None:
        """It answered a request."""
        self._failures = 0

    def failed(self, now_s: float) -> float:
        """It failed a request that another one answered. How long it is to rest, seconds; 0: not at all.

        What fails while it rests was sent before, and says nothing new.
        """
        if now_s < self._until_s:
            return 0.0
        self._failures += 1
        doublings = self._failures - FAILURES
        if doublings < 0:
            return 0.0
        rest_s = min(LONGEST_S, self._first_s * 2.0 ** min(doublings, 32))
        self._until_s = now_s + rest_s
        return rest_s

    def rests(self, now_s: float) -> bool:
        """Whether it is to get nothing."""
        return now_s < self._until_s

    def end(self) -> None:
        """It is needed, or another process: whatever was, it gets requests."""
        self._until_s = 0.0
