"""One iteration of the engine: a prefill, or a run of decode steps between which nothing can happen.

A run is a number of steps, not a sum of times. Its clock advances step by step with the operations that single steps
would use. So a jump over a thousand steps ends at the same float as a thousand single ones. Adding is cheap; a jump
saves the work per request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evenkeel_simulator.engine.profiles import CostProfile
from evenkeel_simulator.engine.request import EngineRequest

MS = 1e-3
Chunks = Sequence[tuple[EngineRequest, int]]
"""Requests in prefill, and the tokens of each that one iteration computes."""


@dataclass(slots=True)
class Iteration:
    """The work of the engine from `start_s` to `end_s`."""

    start_s: float
    end_s: float
    chunks: Chunks = ()
    """Prefill: the tokens of each request that are computed."""
    steps: int = 0
    """Decode steps, all planned; `done` of them are applied."""
    done: int = 0
    admitted: Sequence[EngineRequest] = ()
    retracted: Sequence[EngineRequest] = ()

    # The decode steps that are not applied yet.
    clock_s: float = 0.0
    """End of the last applied step."""
    step_s: float = 0.0
    """Time of a step without what it reads from the KV pool."""
    kv_token_s: float = 0.0
    kv_tokens: int = 0
    batch: int = 0

    def advance(self, now_s: float) -> int:
        """Decode steps that ended by `now_s` since the last call, without the last planned one, which `finish`
        applies."""
        steps = 0
        while self.done + steps < self.steps - 1:
            end_s = self.clock_s + (self.step_s + self.kv_token_s * self.kv_tokens)
            if end_s > now_s:
                break
            self.clock_s = end_s
            self.kv_tokens += self.batch
            steps += 1
        self.done += steps
        return steps

    def times(self, first: int, count: int) -> list[float]:
        """Seconds of each of `count` decode steps of a run, from the step number `first` on."""
        step_s, kv_token_s, kv_tokens, batch = (
            self.step_s, self.kv_token_s, self.kv_tokens, self.batch,
        )  # fmt: skip
        numbers = range(first - self.done, first - self.done + count)
        return [step_s + kv_token_s * (kv_tokens + number * batch) for number in numbers]

    def truncate(self) -> None:
        """End after the current decode step."""
        if self.steps > self.done + 1:
            self.steps = self.done + 1
            self.end_s = self.clock_s + (self.step_s + self.kv_token_s * self.kv_tokens)


class Speed:
    """A cost profile in seconds."""

    def __init__(self, profile: CostProfile) -> None:
        self.profile = profile
        self.decode_s = profile.decode_ms * MS
        self.request_s = profile.decode_request_ms * MS
        self.kv_token_s = profile.decode_kv_token_ms * MS
        self.waiting_s = profile.waiting_ms * MS

    def load_tokens(self, load_ms: float) -> int:
        """The prompt tokens that would take as long as the load of an adapter."""
        return round(load_ms / self.profile.prefill_token_ms)

    def prefill(self, chunks: Chunks, *, batch: int = 0, kv_tokens: int = 0) -> float:
        """Seconds of a prefill; with `batch` requests decoding in the same iteration (mixed)."""
        profile = self.profile
        tokens = attention = swapped = 0
        for request, chunk in chunks:
            if request.retractions and profile.swap_token_ms is not None:
                swapped += chunk
                continue
            context = request.context_tokens - request.pending_tokens + chunk
            tokens += chunk
            attention += chunk * context
        fixed = max(profile.prefill_ms, profile.decode_ms) if batch else profile.prefill_ms
        decode = profile.decode_request_ms * batch + profile.decode_kv_token_ms * kv_tokens
        prefill = profile.prefill_token_ms * tokens + profile.prefill_attention_ms * attention
        return (fixed + prefill + decode + swapped * (profile.swap_token_ms or 0.0)) * MS

    def run(
        self,
        start_s: float,
        *,
        batch: int,
        kv_tokens: int,
        steps: int,
        until_s: float,
        waiting: int = 0,
    ) -> Iteration:
        """A run of at most `steps` decode steps of which none starts at or after `until_s`, except the first."""
        step_s = self.decode_s + self.request_s * batch + self.waiting_s * waiting
        clock_s, kv, count = start_s, kv_tokens, 0
        while True:
            clock_s += step_s + self.kv_token_s * kv
            kv += batch
            count += 1
            if count >= steps or clock_s >= until_s:
                break
        return Iteration(
            start_s=start_s,
            end_s=clock_s,
            steps=count,
            clock_s=start_s,
            step_s=step_s,
            kv_token_s=self.kv_token_s,
            kv_tokens=kv_tokens,
            batch=batch,
        )


def chunks_of(requests: Sequence[EngineRequest], budget: int) -> Chunks:
    """The tokens that one prefill of at most `budget` tokens computes of each request, in this order."""
    chunks: list[tuple[EngineRequest, int]] = []
    for request in requests:
        if budget > 0:
            chunks.append((request, min(budget, request.pending_tokens)))
            budget -= chunks[-1][1]
    return chunks
