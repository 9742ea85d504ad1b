"""What a replica has of a client by its reports, and what they say of requests that a router took back from it (R7, R11)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from evenkeel_router.api.identity import Paid


class HeldWork(NamedTuple):
    """One client at one replica, by its last report."""

    admitted: float
    """Requests, ever."""
    running: float
    waiting: float
    aborted: int = 0
    """Requests broken off, ever, after they had been admitted."""
    aborted_tokens: int = 0
    """Output tokens charged for those."""

    def share(self, open_here: int) -> float:
        """This router's part of what the replica has of the client, from 0 to 1."""
        everything = self.running + self.waiting
        return min(1.0, open_here / everything) if everything else 0.0

    def running_here(self, open_here: int) -> int:
        """How many of this router's open requests run."""
        return round(self.share(open_here) * self.running)

    def waiting_here(self, open_here: int, unanswered: int) -> int:
        """How many of this router's `unanswered` requests only wait; 0 where the report knows of none.

        What was answered runs; what else runs is among the unanswered.
        """
        if not self.waiting:
            return 0
        begun = max(0, self.running_here(open_here) - (open_here - unanswered))
        return max(0, unanswered - begun)


class RelocationVerdict(NamedTuple):
    """How many of the requests taken back had begun, by reports. Reports do not name requests, so the oldest count as begun."""

    paid: Mapping[int, Paid]
    """Bookings that began or may have begun, so that none is charged twice. The output of all of them is divided evenly."""
    never: frozenset[int] = frozenset()
    """Bookings that did not run and will not run there."""
