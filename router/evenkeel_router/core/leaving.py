"""What of a client's requests waits at a replica that drains, and what began after all (design R3, R11).

Place in the flow: report of a replica that drains → **what waits there** → broken off → **what ran** → sent elsewhere.

A replica says how many of a client's requests wait and run, and how many it has ever admitted; never which. The
surprising thing: that is enough. What is broken off and had begun all the same is either one that was admitted
before the replica noticed, or one that was taken for waiting in the place of another, which is then admitted: both
raise the number of those admitted by one.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple


class Held(NamedTuple):
    """One client at one replica, by its last report."""

    admitted: float
    """Requests, ever."""
    running: float
    waiting: float

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


class Taken(NamedTuple):
    """What was broken off of one client at one replica."""

    before: Held
    share: float
    """This router's part of what the replica had of the client."""
    numbers: tuple[int, ...]
    """Of the bookings, oldest first."""

    def is_noticed(self, now: Held) -> bool:
        """Whether the replica has let go of what was broken off."""
        return now.waiting <= max(0.0, self.before.waiting - len(self.numbers))

    def told(self, now: Held) -> Told:
        """What ran all the same: as many as were admitted since, the oldest."""
        count = max(0.0, self.share * (now.admitted - self.before.admitted))
        over = self.is_noticed(now)
        return Told(
            frozenset(self.numbers[: round(count)]),
            frozenset(self.numbers[ceil(count) :] if over else ()),
        )


class Told(NamedTuple):
    """What reports say of what was broken off."""

    began: frozenset[int]
    """Bookings that ran: their input was paid."""
    never: frozenset[int]
    """Those that did not, and cannot any more. Of what is in neither nobody can tell."""
