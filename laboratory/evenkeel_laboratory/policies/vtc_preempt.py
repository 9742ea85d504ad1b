"""VTC with preemption: the idea of the VTC paper's Appendix C.3, which gives no algorithm.

Without preemption no policy that conserves work can promise less than wq·M (Theorem 4.8): one client may fill the memory just before
another arrives. Here the second one waits until the first is ahead by a threshold; then running requests make room for it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import ClassVar, Final

from evenkeel_fairshare.cost import Cost
from evenkeel_fairshare.replica.contract import AdmissionResult, Request
from evenkeel_fairshare.replica.vtc import Counter, Vtc

PREEMPTION_LEAD: Final = 2000.0
"""Weighted tokens. On the arena trace 2000 gives the least difference; with 500 requests preempt each other all the time."""


class PreemptiveVtc(Vtc):
    """Algorithm 2, and before a pass: if max c_i over running clients - min c_i over waiting clients > `lead`, preempt.

    Only after a pass in which memory refused the least served client's request. The preempted requests are the latest admitted
    ones of the most served client, as many as hold the tokens of the refused request, at least one; the next refusal preempts more.
    A preempted request keeps its output, and its client pays again for tokens that are computed again (R11).
    """

    name: ClassVar[str] = "VTCPreempt"

    def __init__(self, *, cost: Cost | None = None, lead: float = PREEMPTION_LEAD) -> None:
        """`lead`: weighted tokens over the weight. Infinity: never preempts. Raises `ValueError` if it is negative."""
        super().__init__(cost=cost)
        if not lead >= 0:
            raise ValueError(f"preemption_lead is {lead}, must be at least 0")
        self._lead = lead
        self._blocked = False
        """The last pass ended for lack of memory, and no running request has left since."""

    def admissions(self, now_s: float) -> Generator[Request, AdmissionResult, None]:
        """Notes whether memory ends the pass."""
        self._blocked = False
        passed = super().admissions(now_s)
        request = next(passed, None)
        while request is not None:
            outcome = yield request
            self._blocked = outcome is AdmissionResult.NO_ROOM
            try:
                request = passed.send(outcome)
            except StopIteration:
                return

    def preempt(self, running: Sequence[Request], now_s: float) -> Sequence[Request]:
        least = self._queued.find()
        if not self._blocked or least is None or not running:
            return ()
        most = max((self._running[request] for request in running), key=_rank)
        if most.rank - least.rank <= self._lead:
            return ()
        return self._latest(most, running, tokens=most_tokens(next(iter(least.queue))))

    def requeue(self, request: Request, now_s: float) -> None:
        self._blocked = False
        super().requeue(request, now_s)

    def leave(self, request: Request, now_s: float) -> None:
        self._blocked = self._blocked and request not in self._running
        super().leave(request, now_s)

    def _latest(self, client: Counter, running: Sequence[Request], *, tokens: int) -> list[Request]:
        """The requests of `client` that were admitted last, which hold at least `tokens` together, or all of them."""
        decoding = set(running)
        chosen: list[Request] = []
        for request in reversed(self._running):  # in order of admission
            if tokens <= 0:
                break
            if request in decoding and self._running[request] is client:
                chosen.append(request)
                tokens -= most_tokens(request)
        return chosen


def _rank(counter: Counter) -> tuple[float, str]:
    return counter.rank, counter.tie


def most_tokens(request: Request) -> int:
    """What a request may hold of the KV pool."""
    return request.input_tokens + request.max_output_tokens
