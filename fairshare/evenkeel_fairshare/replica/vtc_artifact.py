"""VTC as the paper's artifact keeps its counters, for reproducing the paper's Tables 2 to 6.

Place in the flow: as `vtc`, but charged by `forwarded` instead of `progress`. Three differences change results:
nobody is lifted into an empty queue, ties go to who was seen first, and output is charged by passes: every
request in a decode pass pays for one token, the prefill pass's first token is free, and a pass in which
anything finishes is charged a second time. The artifact's admission test and cadence are the engine's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from evenkeel_fairshare.replica.contract import Request
from evenkeel_fairshare.replica.vtc import Counter, Vtc


class ArtifactVtc(Vtc):
    """For experiments only: it forgets no client, and Lemma 4.3 does not hold for it."""

    def progress(self, request: Request, tokens: int) -> None:
        pass  # see `forwarded`

    def progress_all(self, requests: Collection[Request], tokens: int) -> None:
        pass  # see `forwarded`

    def forwarded(self, batch: Sequence[Request], *, prefill: bool, finished: bool) -> None:
        for request in batch:
            counter = self._running[request]
            after = request.output_tokens
            # The artifact charges before the pass with the length so far, and after it with the new one.
            if not prefill:
                self._charge(counter, self._token_cost(request, after - 1))
            if finished:
                self._charge(counter, self._token_cost(request, after))

    def _token_cost(self, request: Request, number: int) -> float:
        return self._cost.output_cost(request.input_tokens, number - 1, number)

    def _tie(self, client: str) -> int:
        return len(self._counters)

    def _lift(self, counter: Counter) -> None:
        least = self._queued.find()
        if least is not None:
            counter.rank = max(counter.rank, least.rank)

    def _forget(self) -> None:
        pass
