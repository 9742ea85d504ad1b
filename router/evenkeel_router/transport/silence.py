"""Replicas that send nothing for too long: one timer looks at all connections that wait.

Where this process itself stood still, as on a busy machine, what came meanwhile is not read yet. So the time in which the timer was late
is no silence of a replica (R20). After such a time a replica has at least as long again before its limit; so many short ones do not add up
to a longer limit.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

CHECK_INTERVAL_S: Final = 0.25
"""Longest time between two checks for silent replicas."""
LEAST_INTERVAL_S: Final = 0.05
"""A check comes no sooner after the one before, for a limit that ends. So a limit is exceeded by this, or by the last time in which the router
stood still."""
KEPT_S: Final = 60.0
"""Time for which it is known when a replica sent content last: what a verdict looks at."""


class Watched(Protocol):
    """A connection that waits for its replica."""

    def note_activity(self, now_s: float) -> None:
        """Note that the replica has sent content since the last check."""

    def check_silence(self, now_s: float) -> float:
        """Fail the request if the replica has sent nothing for too long. Returns when its limit ends."""

    def excuse(self, late_s: float, now_s: float) -> None:
        """The router stood still for so long: that was no silence."""


class SilenceTimer:
    """One timer for all connections that wait. A timer for each event of each stream would cost too much."""

    def __init__(self, active_s: dict[str, float] | None = None) -> None:
        """`active_s`: see the attribute."""
        self.connections: set[Watched] = set()
        """Connections that have a request."""
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self.active_s = {} if active_s is None else active_s
        """URL of a replica → when it last sent content to a client, as of the last check."""

    def watch(self, connection: Watched) -> None:
        """A connection has a request, until it is taken out of `connections`."""
        self.connections.add(connection)
        if self._timer is None:
            self._look_at(asyncio.get_running_loop().time() + CHECK_INTERVAL_S)

    def _look_at(self, due_s: float) -> None:
        self._due_s = due_s
        self._timer = asyncio.get_running_loop().call_at(due_s, self._check)

    def _check(self) -> None:
        self._timer = None
        if self.connections:
            now_s = asyncio.get_running_loop().time()
            late_s, next_s = now_s - self._due_s, now_s + CHECK_INTERVAL_S
            for connection in self.connections:
                connection.note_activity(now_s)
            if late_s > CHECK_INTERVAL_S:
                self._excuse(late_s, now_s)
            else:
                for connection in self.connections:
                    next_s = min(next_s, connection.check_silence(now_s))
            self._look_at(min(now_s + CHECK_INTERVAL_S, max(next_s, now_s + LEAST_INTERVAL_S)))
        else:  # addresses of replicas that are gone do not stay
            oldest_s = asyncio.get_running_loop().time() - KEPT_S
            for url in [url for url, at_s in self.active_s.items() if at_s < oldest_s]:
                del self.active_s[url]

    def _excuse(self, late_s: float, now_s: float) -> None:
        for connection in self.connections:
            connection.excuse(late_s, now_s)
        for url, at_s in self.active_s.items():
            self.active_s[url] = min(now_s, at_s + late_s)
