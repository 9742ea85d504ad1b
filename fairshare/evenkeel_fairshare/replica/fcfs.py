"""First come, first served: the order of vLLM and TGI, and the baseline without any fairness.

A request that does not fit blocks all behind it, even those that would fit. Otherwise long requests would starve.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar

from evenkeel_fairshare.replica.contract import AdmissionResult, Request, UnchargedPolicy


class Fcfs(UnchargedPolicy):
    """One queue in order of arrival; O(1) per request."""

    name: ClassVar[str] = "FCFS"
    matches_prefix: ClassVar[bool] = False

    def admissions(self, now_s: float) -> Generator[Request, AdmissionResult, None]:
        while self._queue:
            request = next(iter(self._queue))
            if (yield request) is not AdmissionResult.ADMITTED:
                return
            del self._queue[request]
