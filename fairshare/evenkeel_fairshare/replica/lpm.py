"""Longest prefix match: SGLang's order, with locality and without fairness (DLPM §4.1).

A cold request starves while warm ones keep arriving.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from operator import attrgetter
from typing import ClassVar

from evenkeel_fairshare.replica.contract import AdmissionResult, Request, UnchargedPolicy

_matched_tokens = attrgetter("matched_tokens")


def by_prefix(requests: Iterable[Request]) -> list[Request]:
    """SortByPrefix: longest match first, stable, so that equal requests keep their order of arrival."""
    return sorted(requests, key=_matched_tokens, reverse=True)  # `reverse` keeps equals in order


class Lpm(UnchargedPolicy):
    """Sorts by matched tokens once a pass; O(n log n).

    `skip_misfit`: go on past a request that does not fit (SGLang before 0.3) instead of ending the pass.
    """

    name: ClassVar[str] = "LPM"
    matches_prefix: ClassVar[bool] = True

    def __init__(self, *, skip_misfit: bool = False) -> None:
        super().__init__()
        self._skip_misfit = skip_misfit

    def admissions(self, now_s: float) -> Generator[Request, AdmissionResult, None]:
        for request in by_prefix(self._queue):
            outcome = yield request
            if outcome is AdmissionResult.ADMITTED:
                del self._queue[request]
            elif outcome is AdmissionResult.NO_ROOM and not self._skip_misfit:
                return
