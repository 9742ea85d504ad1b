"""Which of a client's requests wait at a draining replica, and which of those taken back had begun (R3, R11).

A replica reports how many of a client's requests wait and run, and how many it has ever admitted; never which. That is
enough. A request that was taken back and had begun after all is either one that was admitted before the replica
noticed, or one that counted as waiting in place of another, which is then admitted: both raise the number of admitted
requests by one. In doubt a request had begun: then it is booked here, its input is free on the next replica, and so is
as much of its output as the replica charged for what was taken back.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import NamedTuple

from evenkeel_router.api.identity import WHOLE, Paid


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


class TakenBack(NamedTuple):
    """What was broken off of one client at one replica."""

    before: HeldWork
    share: float
    """This router's part of what the replica had of the client."""
    numbers: tuple[int, ...]
    """Of the bookings, oldest first."""

    def is_noticed(self, now: HeldWork) -> bool:
        """Whether the replica has surely let go of what was broken off.

        Other routers break off theirs at about the same time: where they have some, fewer that wait may be
        fewer of theirs, and only an empty queue is certain.
        """
        others = self.before.waiting > len(self.numbers) and self.share < 1
        left = 0.0 if others else self.before.waiting - len(self.numbers)
        return now.waiting <= max(0.0, left)

    def is_settled(self, now: HeldWork) -> bool:
        """Whether it has said so of those that had begun, too: each that was admitted since is one, or stands for one.

        A replica from before such reports says it only by having nothing of the client any more.
        """
        over = now.waiting + now.running == 0
        return self.is_noticed(now) and (over or self._aborted(now) >= self._admitted(now))

    def verdict(self, now: HeldWork) -> RelocationVerdict:
        """What never ran: all but as many as were admitted since, the oldest. Nothing before it was let go of.

        Those that ran were broken off there, or finished before the replica noticed, and then no client received them.
        """
        taken, noticed = len(self.numbers), self.is_noticed(now)
        aborted = min(ceil(self.share * self._aborted(now)), taken)
        admitted = min(ceil(self.share * self._admitted(now)), taken) if noticed else taken
        began = max(aborted, admitted)
        # What other routers have there may have been admitted since, and finish for its client.
        finished = began - aborted if self.share == 1 and noticed else 0
        tokens = ceil(self.share * max(0, now.aborted_tokens - self.before.aborted_tokens))
        paid = dict.fromkeys(self.numbers[:finished], Paid(True, WHOLE))
        for place, number in enumerate(self.numbers[finished:began]):
            # Evenly, to the token.
            paid[number] = Paid(True, (tokens + place) // (began - finished))
        return RelocationVerdict(paid, frozenset(self.numbers[began:]))

    def _admitted(self, now: HeldWork) -> float:
        return max(0.0, now.admitted - self.before.admitted)

    def _aborted(self, now: HeldWork) -> int:
        return max(0, now.aborted - self.before.aborted)


class RelocationVerdict(NamedTuple):
    """What reports say of what was broken off. Not which, but how many: a client's requests are alike here."""

    paid: Mapping[int, Paid]
    """Bookings that began, or may have: rather a doubt than a second charge. Their output is that of all, spread evenly."""
    never: frozenset[int] = frozenset()
    """Bookings that did not run, and cannot any more."""
