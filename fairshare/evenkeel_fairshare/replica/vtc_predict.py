"""VTC with length prediction: output is charged at its prediction, not at its production (VTC §4.4, Algorithm 3).

An admission prepays the predicted output, progress charges output beyond it, and the end refunds the rest. So the counter
contains the expected cost of running requests when the client's next request is admitted.

Counters may fall here. A refund may lower the target of the next lift, by at most the prepaid amount. A removed client
returns no lower than that target.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from evenkeel_fairshare.cost import Cost
from evenkeel_fairshare.replica.contract import ReplicaPolicy, Request
from evenkeel_fairshare.replica.output_lengths import OutputLengths
from evenkeel_fairshare.replica.vtc import Counter, Vtc


class PredictedVtc(Vtc):
    """Algorithm 3. A finished request pays the same as under VTC, whatever the prediction.

    The prediction is the mean length of the client's last five, or 0 before the first has ended.
    """

    name: ClassVar[str] = "VTCPredict"

    def __init__(self, *, cost: Cost | None = None, sweep_above: int = 1024) -> None:
        super().__init__(cost=cost, sweep_above=sweep_above)
        self._prepaid: dict[Request, int] = {}
        """Prepaid output tokens of each running request, produced or not."""
        self._lengths = OutputLengths()

    def progress(self, request: Request, tokens: int) -> None:
        """Line 30 for output beyond the prediction."""
        after = request.output_tokens
        prepaid = self._prepaid[request]
        if after > prepaid:
            cost = self._cost.output_cost(request.input_tokens, prepaid, after)
            self._charge(self._running[request], cost)
            self._prepaid[request] = after

    def progress_all(self, requests: Collection[Request], tokens: int) -> None:
        ReplicaPolicy.progress_all(self, requests, tokens)  # each request has its own prediction

    def requeue(self, request: Request, now_s: float) -> None:
        self._refund(request)
        super().requeue(request, now_s)

    def leave(self, request: Request, now_s: float) -> None:
        if request in self._running:
            self._refund(request)
            self._lengths.learn(request.client, request.output_tokens)
        super().leave(request, now_s)

    def _admit(self, request: Request, counter: Counter) -> None:
        """Lines 24 and 25."""
        super()._admit(request, counter)
        made = max(request.output_tokens, request.paid_output_tokens)  # already paid
        predicted = max(made, self._predict(request))
        self._prepaid[request] = predicted
        self._charge(counter, self._cost.output_cost(request.input_tokens, made, predicted))

    def _refund(self, request: Request) -> None:
        """Refund predicted output that was not produced."""
        counter = self._running[request]
        made = max(request.output_tokens, request.paid_output_tokens)
        predicted = self._prepaid.pop(request)
        self._charge(counter, -self._cost.output_cost(request.input_tokens, made, predicted))
        if counter.waiting:
            self._queued.add(counter)

    def _predict(self, request: Request) -> int:
        """Predicted output tokens, at most `max_output_tokens`."""
        return min(self._lengths.mean(request.client), request.max_output_tokens)
