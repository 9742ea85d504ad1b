"""First come, first served: the order of vLLM and TGI, and the baseline without any fairness.

A request that does not fit blocks all behind it, even those that would fit. Otherwise long requests would starve.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Generator
from typing import ClassVar

from evenkeel_fairshare.replica.contract import AdmissionResult, Arrival, Request, UnchargedPolicy


class Fcfs(UnchargedPolicy):
    """One queue in order of arrival; O(1) per request."""

    name: ClassVar[str] = "FCFS"
    matches_prefix: ClassVar[bool] = False

    def __init__(self) -> None:
        # An OrderedDict, because repeated removal of the first item of a long dict is quadratic.
        self._queue: OrderedDict[Request, None] = OrderedDict()

    def arrive(self, request: Request, now_s: float) -> Arrival:
        self._queue[request] = None
        return Arrival.QUEUED

    def admissions(self, now_s: float) -> Generator[Request, AdmissionResult, None]:
        while self._queue:
            request = next(iter(self._queue))
            if (yield request) is not AdmissionResult.ADMITTED:
                return
            del self._queue[request]

    def requeue(self, request: Request, now_s: float) -> None:
        self._queue[request] = None
        self._queue.move_to_end(request, last=False)  # it arrived before all that wait

    def leave(self, request: Request, now_s: float) -> None:
        self._queue.pop(request, None)

    def waiting(self) -> Collection[Request]:
        return self._queue.keys()

    def __len__(self) -> int:
        return len(self._queue)
