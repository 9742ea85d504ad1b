"""Notices an engine that admits no request although requests wait and it refuses none (docs/design/books).

No request waits for long because of the policy alone. If one does, the plug-in's books do not match the engine.
"""

from __future__ import annotations

from typing import Final

IDLE_S: Final = 5.0
"""Time without a proposal in an engine in which nothing runs. Then nothing can be the reason."""
BUSY_S: Final = 60.0
"""The same while requests run. A client that used more than its share of engine time waits meanwhile (R13)."""


class Stalls:
    """Since when each pass of one engine ended without a proposal."""

    def __init__(self) -> None:
        self.began_s: float | None = None
        """Time of the first of these passes; None: the last pass proposed a request."""
        self._idle_s: float | None = None

    def over(self) -> None:
        """A pass proposed a request, or none waits."""
        self.began_s = self._idle_s = None

    def passed(self, now_s: float, *, idle: bool) -> float | None:
        """A pass ended without a proposal, and requests wait; `idle`: nothing runs. Returns the seconds since the first of these
        passes if that is too long. The time starts again then."""
        if self.began_s is None:
            self.began_s = now_s
        if not idle:
            self._idle_s = None
        elif self._idle_s is None:
            self._idle_s = now_s
        seconds = now_s - self.began_s
        if seconds < BUSY_S and (self._idle_s is None or now_s - self._idle_s < IDLE_S):
            return None
        self.over()
        return seconds
