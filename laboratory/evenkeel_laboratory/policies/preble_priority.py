"""Preble's local queue: priority groups by hit rate, first come, first served in each (`fcfs-mpq` of its public code).

Cached requests go first as in LPM, but a group with fewer hits has its turn too, so no request waits without end.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar, Final

from evenkeel_fairshare.replica.contract import AdmissionResult, Request, UnchargedPolicy

GROUPS: Final = 10
REQUESTS_PER_LEVEL: Final = 10
"""A turn of group g admits at most this many times g + 1."""


class PreblePriority(UnchargedPolicy):
    """One group per pass, from the highest hit rate to the lowest and again; O(n) per pass.

    Groups without waiting requests have no turn. A turn that memory ends continues with what is left of it, so that an empty batch always
    takes a request.
    """

    name: ClassVar[str] = "PreblePriority"
    matches_prefix: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self._group = GROUPS - 1
        """The group that has the next turn, if it has requests; else the next lower one that has."""
        self._left = 0
        """What its turn may still admit, if memory ended it before; else 0."""

    def admissions(self, now_s: float) -> Generator[Request, AdmissionResult, None]:
        groups: dict[int, list[Request]] = {}
        for request in self._queue:
            groups.setdefault(group_of(request), []).append(request)
        if not groups:
            return
        turn = max(groups, key=lambda group: (group - self._group - 1) % GROUPS)
        continues = self._left > 0 and turn == self._group
        left = self._left if continues else REQUESTS_PER_LEVEL * (turn + 1)
        for request in groups[turn]:
            outcome = yield request
            if outcome is AdmissionResult.ADMITTED:
                del self._queue[request]
                left -= 1
            elif outcome is AdmissionResult.NO_ROOM:
                self._group, self._left = turn, left
                return
            if not left:
                break
        self._group, self._left = (turn - 1) % GROUPS, 0


def group_of(request: Request) -> int:
    """ceil(10 · hit rate) - 1, from 0 to 9; 0 without a hit."""
    tenths = -(-GROUPS * request.matched_tokens // max(1, request.input_tokens))
    return min(GROUPS, max(1, tenths)) - 1
