"""Round-robin with preemption: a baseline of the Andes slides ("fair, cyclic preemption").

Every request has turns of equal length, in a cycle over all requests, whatever its client.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import ClassVar, Final

from evenkeel_fairshare.replica.contract import AdmissionResult, Request, UnchargedPolicy

from evenkeel_laboratory.policies.vtc_preempt import most_tokens

TURN_TOKENS: Final = 50
"""Output tokens of a turn: the interval of 50 decode steps of the public Andes paper."""


class PreemptiveRoundRobin(UnchargedPolicy):
    """FCFS, and before a pass: requests that have had their turn make room for those that wait; O(batch) per step.

    Only after a pass that memory ended. They leave in the order in which they were admitted, as many as hold the tokens of all
    waiting requests, and wait behind these. They keep their output.
    """

    name: ClassVar[str] = "PreemptiveRoundRobin"
    matches_prefix: ClassVar[bool] = False

    def __init__(self, *, turn_tokens: int = TURN_TOKENS) -> None:
        """Raises `ValueError` if `turn_tokens` is below 1."""
        if turn_tokens < 1:
            raise ValueError(f"turn_tokens is {turn_tokens}, must be at least 1")
        super().__init__()
        self._turn_tokens = turn_tokens
        self._running: dict[Request, int] = {}
        """Output tokens of each running request when its turn began, in order of admission."""
        self._ended: set[Request] = set()
        """Preempted requests until they are queued again."""
        self._blocked = False
        """The last pass ended for lack of memory, and no running request has left since."""

    def admissions(self, now_s: float) -> Generator[Request, AdmissionResult, None]:
        self._blocked = False
        while self._queue:
            request = next(iter(self._queue))
            outcome = yield request
            if outcome is not AdmissionResult.ADMITTED:
                self._blocked = outcome is AdmissionResult.NO_ROOM
                return
            del self._queue[request]
            self._running[request] = request.output_tokens

    def preempt(self, running: Sequence[Request], now_s: float) -> Sequence[Request]:
        if not self._blocked:
            return ()
        decoding = set(running)
        needed = sum([most_tokens(request) for request in self._queue])
        chosen: list[Request] = []
        for request, before in self._running.items():
            if needed <= 0:
                break
            if request in decoding and request.output_tokens - before >= self._turn_tokens:
                chosen.append(request)
                needed -= most_tokens(request)
        self._ended.update(chosen)
        return chosen

    def requeue(self, request: Request, now_s: float) -> None:
        self._blocked = False
        del self._running[request]
        if request in self._ended:
            self._ended.remove(request)
            self._queue[request] = None
        else:  # its turn has not ended: the engine was out of memory
            super().requeue(request, now_s)

    def leave(self, request: Request, now_s: float) -> None:
        if self._running.pop(request, None) is None:
            self._queue.pop(request, None)
        else:
            self._blocked = False
