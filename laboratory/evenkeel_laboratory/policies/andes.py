"""Andes: the requests whose users would lose most by waiting are served (ALGORITHMS §3).

At each time quantum, if memory or speed is short: for a batch size B, choose requests out of the waiting and the running ones to

    maximise Σ (Q_serve,i(B) - Q_wait,i)   with at most B requests whose context lengths fit into the KV pool,

where Q is the predicted QoE after a horizon. Solved greedily by gain over context length, for several B; the best B is taken. Running
requests that are not chosen are preempted and keep their output. Otherwise requests are admitted first come, first served.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from evenkeel_fairshare.qoe import AnswerTimeline, Expectation
from evenkeel_fairshare.replica.contract import AdmissionResult, Arrival, Request, UnchargedPolicy
from evenkeel_simulator.engine.iteration import MS
from evenkeel_simulator.engine.profiles import CostProfile

QUANTUM_S: Final = 0.5
"""Time between two choices. The sources give no value."""
PREEMPTION_CAP: Final = 1.0
"""Preemptions per request that has arrived, on average: that of the public Andes paper."""
HIGH_WATERMARK: Final = 0.9
"""Part of the KV pool above which memory is short, and which a choice fills."""
HORIZON_QUANTA: Final = 50
"""The horizon before the first request has ended; then it is the mean time from arrival to end."""
BATCH_SIZES: Final = 8
"""Most batch sizes that one choice tries, evenly spaced."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One solution of the packing problem."""

    batch: int
    gain: float
    """Σ (Q_serve - Q_wait) of the chosen requests."""
    ranked: Sequence[Request]
    """All candidates, highest gain per context token first."""
    chosen: frozenset[Request]


class Andes(UnchargedPolicy):
    """QoE-aware, with preemption; O(n log n) per quantum and batch size."""

    name: ClassVar[str] = "Andes"
    matches_prefix: ClassVar[bool] = False

    def __init__(
        self,
        *,
        profile: CostProfile,
        kv_tokens: int | None = None,
        expectation: Expectation | None = None,
        quantum_s: float = QUANTUM_S,
        preemption_cap: float = PREEMPTION_CAP,
    ) -> None:
        """`profile` predicts token rates. Raises `ValueError` unless the quantum is above 0 and the cap at least 0."""
        if not quantum_s > 0:
            raise ValueError(f"quantum_s is {quantum_s}, must be above 0")
        if not preemption_cap >= 0:
            raise ValueError(f"preemption_cap is {preemption_cap}, must be at least 0")
        super().__init__()
        self._profile = profile
        self._capacity = HIGH_WATERMARK * (kv_tokens or profile.kv_tokens)
        self._expectation = expectation or Expectation()
        self._quantum_s = quantum_s
        self._cap = preemption_cap
        self._running: dict[Request, AnswerTimeline] = {}
        self._deliveries: dict[Request, AnswerTimeline] = {}
        self._seen_tokens: dict[Request, int] = {}
        self._choice: Choice | None = None
        self._next_s = 0.0
        """When the next choice is due."""
        self._is_short = False
        """Memory has ended a pass, and requests have waited ever since."""
        self._arrived = self._preempted = self._ended = 0
        self._ended_s = 0.0

    def arrive(self, request: Request, now_s: float) -> Arrival:
        self._arrived += 1
        self._deliveries[request] = AnswerTimeline(request.arrival_s, self._expectation)
        self._seen_tokens[request] = request.output_tokens
        return super().arrive(request, now_s)

    def preempt(self, running: Sequence[Request], now_s: float) -> Sequence[Request]:
        """Notes new tokens, makes the choice if it is due, and returns what it excludes, as far as the cap allows."""
        for request in running:
            self._note_tokens(request, now_s)
        if not self._queue or not self._is_limited(running):
            self._choice = None
            return ()
        if self._choice is not None and now_s < self._next_s:
            return ()
        self._next_s = now_s + self._quantum_s
        self._choice = choice = self._choose(now_s)
        excluded = [request for request in running if request not in choice.chosen]
        place = {request: number for number, request in enumerate(choice.ranked)}
        excluded.sort(key=lambda request: -place[request])
        allowed = max(0, int(self._cap * self._arrived) - self._preempted)
        self._preempted += len(excluded[:allowed])
        return excluded[:allowed]

    def admissions(self, now_s: float) -> Generator[Request, AdmissionResult, None]:
        """Requests in the order of the last choice, and not beyond its batch size; before a choice, first come, first served."""
        choice = self._choice
        order = list(self._queue)
        if choice is not None:
            ranked = [request for request in choice.ranked if request in self._queue]
            known = set(ranked)
            order = [*ranked, *(request for request in order if request not in known)]
        for request in order:
            if choice is not None and self._running and len(self._running) >= choice.batch:
                return
            outcome = yield request
            if outcome is AdmissionResult.ADMITTED:
                del self._queue[request]
                self._running[request] = self._deliveries[request]
            elif outcome is AdmissionResult.NO_ROOM:
                self._is_short = True
                return

    def requeue(self, request: Request, now_s: float) -> None:
        self._note_tokens(request, now_s)
        del self._running[request]
        super().requeue(request, now_s)

    def leave(self, request: Request, now_s: float) -> None:
        if self._running.pop(request, None) is not None:
            self._ended += 1
            self._ended_s += now_s - request.arrival_s
        super().leave(request, now_s)
        self._is_short = self._is_short and bool(self._queue)
        del self._deliveries[request], self._seen_tokens[request]

    def _note_tokens(self, request: Request, now_s: float) -> None:
        """The engine looks here before every step, so new tokens were made now."""
        new = request.output_tokens - self._seen_tokens[request]
        if new:
            self._deliveries[request].add(new, now_s)
            self._seen_tokens[request] = request.output_tokens

    # Optimisation 1: selective triggering

    def _is_limited(self, running: Sequence[Request]) -> bool:
        tokens = sum([_context(request) for request in self._running])
        if self._is_short or tokens > self._capacity:
            return True
        return self._step_s(len(running), tokens) > self._expectation.gap_s

    # Optimisations 2 and 3: few batch sizes, greedy packing

    def _choose(self, now_s: float) -> Choice:
        candidates = [*self._running, *self._queue]
        choices = [self._pack(candidates, batch, now_s) for batch in self._batch_sizes(candidates)]
        return max(choices, key=lambda choice: choice.gain)

    def _batch_sizes(self, candidates: Sequence[Request]) -> Sequence[int]:
        """Batch sizes from the largest that is as fast as users read to the largest that fits, if that is larger."""
        lengths = sorted(map(_context, candidates))
        tokens = largest = 0
        for length in lengths:
            if tokens + length > self._capacity:
                break
            tokens, largest = tokens + length, largest + 1
        largest = max(1, largest)
        mean = sum(lengths) / len(lengths)
        least = largest
        while least > 1 and self._step_s(least, mean * least) > self._expectation.gap_s:
            least -= 1
        steps = min(BATCH_SIZES - 1, largest - least)
        return sorted({least + (largest - least) * n // max(1, steps) for n in range(steps + 1)})

    def _pack(self, candidates: Sequence[Request], batch: int, now_s: float) -> Choice:
        until_s = now_s + self._horizon_s()
        tokens = sum(map(_context, candidates)) / len(candidates) * batch
        rate = 1 / self._step_s(batch, min(tokens, self._capacity))
        gains = {
            request: self._gain(request, rate, now_s=now_s, until_s=until_s)
            for request in candidates
        }
        ranked = sorted(candidates, key=lambda request: -gains[request] / _context(request))
        chosen: list[Request] = []
        free = self._capacity
        for request in ranked:
            if len(chosen) < batch and _context(request) <= free:
                chosen.append(request)
                free -= _context(request)
        gain = sum([gains[request] for request in chosen])
        return Choice(batch, gain, ranked, frozenset(chosen or ranked[:1]))

    def _gain(self, request: Request, rate: float, *, now_s: float, until_s: float) -> float:
        """Q_serve - Q_wait. A waiting request first pays for its prefill, or for its swap."""
        delivery = self._deliveries[request]
        start_s = now_s
        if request not in self._running:
            token_ms = self._profile.prefill_token_ms
            if request.output_tokens and self._profile.swap_token_ms is not None:
                token_ms = self._profile.swap_token_ms
            start_s += (self._profile.prefill_ms + token_ms * _context(request)) * MS
        return delivery.if_served(start_s, rate, until_s) - delivery.if_waiting(until_s)

    def _horizon_s(self) -> float:
        return self._ended_s / self._ended if self._ended else HORIZON_QUANTA * self._quantum_s

    def _step_s(self, batch: int, kv_tokens: float) -> float:
        profile = self._profile
        per_request = profile.decode_request_ms * batch
        return (profile.decode_ms + per_request + profile.decode_kv_token_ms * kv_tokens) * MS


def _context(request: Request) -> int:
    return request.input_tokens + request.output_tokens
