"""What replicas serve while requests wait: the capacity of a replica, for scaling (design §6) and for the fleet policy (R2).

A short wait says nothing about capacity: at any load a request may wait for one iteration of the engine. So time counts only
after requests have waited at a replica for `SETTLED_S` without a break. By then its batch is full. A replica with a small batch
serves less than it could, so its service per second says nothing about its speed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import exp
from typing import Final, NamedTuple

SETTLED_S: Final = 5.0
"""Longer than an iteration with a long prompt; a third of the scaler's interval."""
MEMORY_S: Final = 120.0
"""Time constant of a replica's speed, in seconds that count. On questions about documents a replica computes one document a second,
so this is a mean over about 100 of them."""
PRIOR_S: Final = 20.0
"""Seconds at the mean speed of all replicas that a replica's own measurement begins with."""


class _Waited(NamedTuple):
    """A replica at which requests wait."""

    since_s: float
    at_s: float
    """Time of the last call."""
    service: float
    """Service in total at `at_s`, weighted tokens."""


@dataclass(slots=True)
class _Recent:
    """What one replica served in the seconds that counted, with weights that fall over `MEMORY_S`."""

    seconds: float = 0.0
    service: float = 0.0

    def add(self, seconds: float, service: float) -> None:
        kept = exp(-seconds / MEMORY_S)
        self.seconds = self.seconds * kept + seconds
        self.service = self.service * kept + service


class Saturation:
    """Sums over all replicas, and the speed of each. Deterministic; times are handed in."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Seconds in which requests waited, added up over replicas."""
        self.service = 0.0
        """Weighted tokens that those replicas served in those seconds."""
        self._waited: dict[str, _Waited] = {}
        self._recent: dict[str, _Recent] = {}

    def observe(self, replica: str, *, service: float, waits: bool, now_s: float) -> None:
        """A replica has served `service` weighted tokens in total; `waits`: whether requests wait there. About once a second."""
        if not waits:
            self._waited.pop(replica, None)
            return
        known = self._waited.get(replica) or _Waited(now_s, now_s, service)
        # Settled at the last call already: then all of the time since counts.
        if known.at_s - known.since_s >= SETTLED_S:
            seconds, served = now_s - known.at_s, max(0.0, service - known.service)
            self.seconds += seconds
            self.service += served
            self._recent.setdefault(replica, _Recent()).add(seconds, served)
        self._waited[replica] = known._replace(at_s=now_s, service=service)

    def retain(self, replicas: Collection[str]) -> None:
        """Forget all other replicas."""
        self._waited = {name: one for name, one in self._waited.items() if name in replicas}
        self._recent = {name: one for name, one in self._recent.items() if name in replicas}

    def speeds(self) -> Mapping[str, float]:
        """Replica → weighted tokens per second while requests waited there. A replica that was never measured is missing."""
        seconds = sum([one.seconds for one in self._recent.values()])
        service = sum([one.service for one in self._recent.values()])
        if not service:
            return {}
        prior = PRIOR_S * service / seconds
        return {
            name: (one.service + prior) / (one.seconds + PRIOR_S)
            for name, one in self._recent.items()
        }
