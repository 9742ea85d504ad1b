"""Fakes at the router's one seam to the network: no sockets to replicas, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from evenkeel_contract.routerconfig import ReplicaConfig
from evenkeel_router.fleet.probe import EngineSize, Verdict


@dataclass
class FakeProber:
    """Says of each replica what it is told to; ready otherwise."""

    verdicts: dict[str, Verdict] = field(default_factory=dict)
    sizes: dict[str, EngineSize] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    asked_start: int = 0

    async def probe(self, replica: ReplicaConfig) -> Verdict:
        return self.verdicts.get(replica.name, Verdict.READY)

    async def size(self, replica: ReplicaConfig) -> EngineSize | None:
        return self.sizes.get(replica.name)

    async def started_s(self, replica: ReplicaConfig) -> float | None:
        self.asked_start += 1
        return self.started.get(replica.name)


def replicas(count: int) -> tuple[ReplicaConfig, ...]:
    """Replicas that nobody can connect to."""
    return tuple(ReplicaConfig(name=f"r{n}", url="http://127.0.0.1:1") for n in range(count))
