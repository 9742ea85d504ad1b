"""Highest response ratio next: a stock order of SGLang since 0.5.20 (`--schedule-policy hrrn`), without fairness between clients.

Response ratio: (waiting + service) / service. Service is the input that is not cached. Waiting is measured in work: the input
tokens that the replica computed since the request arrived. So the order needs no clock.

SGLang changes to FCFS beyond 128 waiting requests; this version has the same order at any length.
"""

from __future__ import annotations

from collections.abc import Generator
from math import inf
from typing import ClassVar

from evenkeel_fairshare.replica.contract import AdmissionResult, Arrival, Request, UnchargedPolicy


class Hrrn(UnchargedPolicy):
    """Sorts by response ratio once a pass, equal requests in order of arrival; O(n log n).

    `skip_misfit`: go on past a request that does not fit instead of ending the pass.
    """

    name: ClassVar[str] = "HRRN"
    matches_prefix: ClassVar[bool] = True

    def __init__(self, *, skip_misfit: bool = False) -> None:
        super().__init__()
        self._skip_misfit = skip_misfit
        self._work = 0
        """Input tokens computed so far."""
        self._work_before: dict[Request, int] = {}
        """Waiting or running request → `_work` when it arrived."""

    def arrive(self, request: Request, now_s: float) -> Arrival:
        self._work_before[request] = self._work
        return super().arrive(request, now_s)

    def admissions(self, now_s: float) -> Generator[Request, AdmissionResult, None]:
        for request in sorted(self._queue, key=self._response_ratio, reverse=True):
            outcome = yield request
            if outcome is AdmissionResult.ADMITTED:
                del self._queue[request]
                self._work += request.extend_tokens
            elif outcome is AdmissionResult.NO_ROOM and not self._skip_misfit:
                return

    def leave(self, request: Request, now_s: float) -> None:
        super().leave(request, now_s)
        del self._work_before[request]

    def _response_ratio(self, request: Request) -> float:
        """Response ratio of a request, less 1; infinite for a request whose whole input is cached."""
        uncached = request.uncached_tokens
        return (self._work - self._work_before[request]) / uncached if uncached > 1 else inf
