"""What a replica has of a client by its reports, and what they say of requests that a router took back from it (R7, R11)."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import NamedTuple

from evenkeel_router.api.identity import WHOLE, Paid


class HeldWork(NamedTuple):
    """One client at one replica, by its last report."""

    admitted: float
    """Requests that the replica ever admitted."""
    running: float
    waiting: float
    aborted: int = 0
    """Requests broken off, ever, after they had been admitted."""
    aborted_tokens: int = 0
    """Output tokens charged for the requests that were broken off."""

    def share(self, open_here: int) -> float:
        """This router's part of what the replica has of the client, from 0 to 1."""
        everything = self.running + self.waiting
        return min(1.0, open_here / everything) if everything else 0.0

    def running_here(self, open_here: int) -> int:
        """Number of this router's open requests that run."""
        return round(self.share(open_here) * self.running)

    def waiting_here(self, open_here: int, unanswered: int) -> int:
        """Number of this router's `unanswered` requests that only wait; 0 where the report knows of none.

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


class TakenBack(NamedTuple):
    """The requests of one client that this router took back from one replica."""

    before: HeldWork
    share: float
    """This router's part of what the replica had of the client."""
    numbers: tuple[int, ...]
    """Numbers of the bookings, oldest first."""

    def is_noticed(self, now: HeldWork) -> bool:
        """Whether the replica has certainly dropped the requests.

        Other routers take back theirs at about the same time. Where they have some, fewer that wait may be fewer of
        theirs, and only an empty queue is certain.
        """
        others = self.before.waiting > len(self.numbers) and self.share < 1
        left = 0.0 if others else self.before.waiting - len(self.numbers)
        return now.waiting <= max(0.0, left)

    def is_settled(self, now: HeldWork) -> bool:
        """Whether the reports also show those that had begun: each one admitted since counts as one that was broken off.

        An older replica does not report what it broke off; then the verdict is settled once it has nothing of the client.
        """
        over = now.waiting + now.running == 0
        return self.is_noticed(now) and (over or self._aborted(now) >= self._admitted(now))

    def verdict(self, now: HeldWork) -> RelocationVerdict:
        """The oldest ran, as many as were admitted since; the others did not. Before the replica dropped them, all may have run.

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
        """How many were admitted since, at most: without those that still waited there, of which no other router drops any."""
        admitted = now.admitted - self.before.admitted
        if self.share == 1:
            admitted -= max(0.0, self.before.waiting - len(self.numbers) - now.waiting)
        return max(0.0, admitted)

    def _aborted(self, now: HeldWork) -> int:
        return max(0, now.aborted - self.before.aborted)
