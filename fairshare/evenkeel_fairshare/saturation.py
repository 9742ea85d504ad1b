"""What replicas serve while requests wait: the capacity of a replica, for scaling (design §6).

A short wait says nothing about capacity: at any load a request may wait for one iteration of the engine. So time counts only
after requests have waited at a replica for `SETTLED_S` without a break. By then its batch is full.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

SETTLED_S: Final = 5.0
"""Longer than an iteration with a long prompt; a third of the scaler's interval."""


class _Waited(NamedTuple):
    """A replica at which requests wait."""

    since_s: float
    at_s: float
    """Time of the last call."""
    service: float
    """Service in total at `at_s`, weighted tokens."""


class Saturation:
    """Sums over all replicas. Deterministic; times are handed in."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Seconds in which requests waited, added up over replicas."""
        self.service = 0.0
        """Weighted tokens that those replicas served in those seconds."""
        self._waited: dict[str, _Waited] = {}

    def observe(self, replica: str, *, service: float, waits: bool, now_s: float) -> None:
        """A replica has served `service` weighted tokens in total; `waits`: whether requests wait there. About once a second."""
        if not waits:
            self._waited.pop(replica, None)
            return
        known = self._waited.get(replica) or _Waited(now_s, now_s, service)
        # Settled at the last call already: then all of the time since counts.
        if known.at_s - known.since_s >= SETTLED_S:
            self.seconds += now_s - known.at_s
            self.service += max(0.0, service - known.service)
        self._waited[replica] = known._replace(at_s=now_s, service=service)

    def retain(self, replicas: Collection[str]) -> None:
        """Forget all other replicas."""
        self._waited = {name: one for name, one in self._waited.items() if name in replicas}
