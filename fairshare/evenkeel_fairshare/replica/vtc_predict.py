"""VTC with length prediction: output is charged when it is predicted, not when it has come (VTC §4.4, Algorithm 3).

An admission prepays the predicted output, progress charges what goes beyond, and the end refunds the rest. So a client's
next request is not admitted on a counter that lacks what its last ones will cost.

Counters may fall here. A refund may lower the level that others are lifted to, by at most what the client had prepaid; a
forgotten client comes back no lower than that level.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection
from typing import ClassVar, Final

from evenkeel_fairshare.cost import Cost
from evenkeel_fairshare.replica.contract import ReplicaPolicy, Request
from evenkeel_fairshare.replica.vtc import Counter, Vtc

RECENT: Final = 5
"""The paper's predictor is the mean of as many requests of the client."""


class PredictedVtc(Vtc):
    """Algorithm 3. What a finished request pays in all is what it pays under VTC, whatever was predicted.

    The prediction is `Request.expected_output_tokens` where the engine knows it (an oracle), else the mean length of
    the client's last five; nothing before the first is over. `remembered`: clients whose lengths are kept.
    """

    name: ClassVar[str] = "VTCPredict"

    def __init__(
        self, *, cost: Cost | None = None, sweep_above: int = 1024, remembered: int = 65_536
    ) -> None:
        super().__init__(cost=cost, sweep_above=sweep_above)
        self._prepaid: dict[Request, int] = {}
        """Of those that run: how many output tokens are paid for, made or not."""
        self._lengths: OrderedDict[str, deque[int]] = OrderedDict()
        self._remembered = remembered

    def progress(self, request: Request, tokens: int) -> None:
        """Line 30 for what was not predicted."""
        after = request.output_tokens
        prepaid = self._prepaid[request]
        if after > prepaid:
            cost = self._cost.output_cost(request.input_tokens, prepaid, after)
            self._charge(self._running[request], cost)
            self._prepaid[request] = after

    def progress_all(self, requests: Collection[Request], tokens: int) -> None:
        ReplicaPolicy.progress_all(self, requests, tokens)  # each has a prediction of its own

    def requeue(self, request: Request, now_s: float) -> None:
        self._refund(request)
        super().requeue(request, now_s)

    def leave(self, request: Request, now_s: float) -> None:
        if request in self._running:
            self._refund(request)
            self._learn(request)
        super().leave(request, now_s)

    def _admit(self, request: Request, counter: Counter) -> None:
        """Lines 24 and 25."""
        super()._admit(request, counter)
        made = max(
            request.output_tokens, request.paid_output_tokens
        )  # paid, so not to be predicted
        predicted = max(made, self._predict(request))
        self._prepaid[request] = predicted
        self._charge(counter, self._cost.output_cost(request.input_tokens, made, predicted))

    def _refund(self, request: Request) -> None:
        """Give back what was predicted and does not come."""
        counter = self._running[request]
        made = max(request.output_tokens, request.paid_output_tokens)
        predicted = self._prepaid.pop(request)
        self._charge(counter, -self._cost.output_cost(request.input_tokens, made, predicted))
        if counter.waiting:
            self._queued.add(counter)

    def _predict(self, request: Request) -> int:
        """Output tokens, never more than there may be."""
        if request.expected_output_tokens is not None:
            return request.expected_output_tokens
        lengths = self._lengths.get(request.client)
        mean = round(sum(lengths) / len(lengths)) if lengths else 0
        return min(mean, request.max_output_tokens)

    def _learn(self, request: Request) -> None:
        lengths = self._lengths.setdefault(request.client, deque(maxlen=RECENT))
        lengths.append(request.output_tokens)
        self._lengths.move_to_end(request.client)
        if len(self._lengths) > self._remembered:
            self._lengths.popitem(last=False)
