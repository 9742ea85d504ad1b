"""Replicas that are empty while requests wait at another, from what replicas report (design R2).

A wait counts after `SETTLED_S`: a request may wait for one iteration anywhere, and for a while where its prefix is cached. A replica is
empty if nothing waits or runs there at two reports, and it served nothing in between.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final, NamedTuple

from evenkeel_fairshare.saturation import SETTLED_S


class ReplicaLoad(NamedTuple):
    """One replica in its last report."""

    service: float
    """Service in total, weighted tokens."""
    waits: bool
    """Whether a request waits there."""
    runs: bool
    """Whether a request runs there."""

    def beside(self, other: ReplicaLoad) -> ReplicaLoad:
        """Two accounts of one replica together."""
        return ReplicaLoad(
            self.service + other.service, self.waits or other.waits, self.runs or other.runs
        )


NO_LOAD: Final = ReplicaLoad(0.0, False, False)


class IdleReplicas:
    """Deterministic; times are handed in."""

    def __init__(self) -> None:
        self._at_s = 0.0
        self._before: Mapping[str, ReplicaLoad] = {}
        self._waits_since: dict[str, float] = {}

    def observe(
        self, replicas: Mapping[str, ReplicaLoad], now_s: float, *, able: Container[str]
    ) -> float:
        """Seconds since the last call in which one of the `able` replicas was empty while requests waited at another. `able`: those
        that may get requests."""
        before, self._before = self._before, dict(replicas)
        elapsed_s, self._at_s = now_s - self._at_s, now_s
        self._waits_since = {
            name: self._waits_since.get(name, now_s)
            for name, load in replicas.items()
            if load.waits
        }
        is_empty = any(
            not (load.waits or load.runs) and before.get(name) == load
            for name, load in replicas.items()
            if name in able
        )
        waits = any(now_s - since_s >= SETTLED_S for since_s in self._waits_since.values())
        return elapsed_s if is_empty and waits else 0.0
