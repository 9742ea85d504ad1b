"""The batching steps of replicas under a central scheduler (D2LPM paper, §5.1): hold, synchronise, wait, pull."""

from __future__ import annotations

from typing import Generic, TypeVar

from evenkeel_fairshare.fleet.contract import Dispatch
from evenkeel_simulator.engine.model import Engine

from evenkeel_laboratory.policies.central_dlpm import CentralDlpm

Held = TypeVar("Held")


class CentralQueue(Generic[Held]):
    """What waits at the scheduler, and which replicas wait for its answer. It serves one replica at a time."""

    def __init__(self, policy: CentralDlpm) -> None:
        self.policy = policy
        self.blocked_s = 0.0
        """Replica seconds spent waiting for the scheduler."""
        self.steps = 0
        """Batching steps served."""
        self._held: dict[int, tuple[Dispatch, Held]] = {}
        self._answers_s: dict[int, float] = {}
        self._free_s = 0.0

    def hold(self, dispatch: Dispatch, held: Held) -> None:
        self._held[id(dispatch)] = dispatch, held

    def blocks(self, slot: int, engine: Engine, now_s: float) -> float | None:
        """Time until which a replica between two iterations has to wait. None: it may go on, having pulled if an answer is
        there."""
        if slot not in self._answers_s:
            if not self._held or len(engine.policy):
                return None
            self._free_s = max(now_s, self._free_s) + self.policy.overhead.of(len(self._held))
            self._answers_s[slot] = self._free_s
            self.blocked_s += self._free_s - now_s
            self.steps += 1
        return self._answers_s[slot] if now_s < self._answers_s[slot] else None

    def pull(self, slot: int, engine: Engine, now_s: float) -> list[tuple[Dispatch, Held]]:
        """The requests that an answer has for a replica; none without an answer."""
        if self._answers_s.pop(slot, None) is None:
            return []
        chosen = self.policy.pull(slot, engine.memory.available, now_s)
        return [self._held.pop(id(dispatch)) for dispatch in chosen]
