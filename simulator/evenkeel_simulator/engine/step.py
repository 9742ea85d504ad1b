"""What an engine reports to its driver: what an iteration did, and how busy the engine is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evenkeel_simulator.engine.memory import Memory
from evenkeel_simulator.engine.request import EngineRequest


@dataclass(slots=True)
class Step:
    """What one iteration did. Not frozen: that takes 2.5 times as long to create."""

    start_s: float
    end_s: float
    prefill_tokens: int
    """Tokens computed by prefill; 0 for a run of decode steps."""
    produced: Sequence[EngineRequest]
    """Requests that produced output: `tokens_each` tokens each."""
    tokens_each: int
    finished: Sequence[EngineRequest]
    admitted: Sequence[EngineRequest]
    retracted: Sequence[EngineRequest]


@dataclass(frozen=True, slots=True)
class Loads:
    """How busy the engine is. Tokens, of `capacity_tokens`: used + evictable + free."""

    running: int
    waiting: int
    capacity_tokens: int
    used_tokens: int
    evictable_tokens: int
    free_tokens: int


def loads_of(memory: Memory, *, running: int, waiting: int) -> Loads:
    """The loads of an engine with this memory."""
    capacity_tokens, free_tokens = memory.capacity, max(0, memory.free)
    return Loads(
        running=running,
        waiting=waiting,
        capacity_tokens=capacity_tokens,
        used_tokens=capacity_tokens - memory.available,
        evictable_tokens=memory.available - free_tokens,
        free_tokens=free_tokens,
    )
