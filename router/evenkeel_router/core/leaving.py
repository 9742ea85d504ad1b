"""What of a client's requests waits at a replica that drains, and what began after all (design R3, R11).

Place in the flow: report of a replica that drains → **what waits there** → broken off → **what ran** → sent elsewhere.

A replica says how many of a client's requests wait and run, and how many it has ever admitted; never which. The
surprising thing: that is enough. What is broken off and had begun all the same is either one that was admitted
before the replica noticed, or one that was taken for waiting in the place of another, which is then admitted: both
raise the number of those admitted by one. In doubt it began: then it is booked here and its input is free elsewhere.
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
        """Whether the replica has surely let go of what was broken off.

        Other routers break off theirs at about the same time: where they have some, fewer that wait may be
        fewer of theirs, and only an empty queue is certain.
        """
        others = self.before.waiting > len(self.numbers) and self.share < 1
        left = 0.0 if others else self.before.waiting - len(self.numbers)
        return now.waiting <= max(0.0, left)

    def told(self, now: Held) -> Told:
        """What never ran: all but as many as were admitted since, the oldest. Nothing before it was let go of."""
        count = ceil(max(0.0, self.share * (now.admitted - self.before.admitted)))
        return Told(frozenset(self.numbers[count:] if self.is_noticed(now) else ()))


class Told(NamedTuple):
    """What reports say of what was broken off."""

    never: frozenset[int]
    """Bookings that did not run, and cannot any more. The others count as begun: rather a doubt than a second charge."""
