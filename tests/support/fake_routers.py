"""Routers as the operator sees them, at its one seam to them: what they say is set by the test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evenkeel_contract.adminstate import STATE_VERSION, ReplicasState, ReplicaState
from evenkeel_operator.core.objects import Object


class FakeRouters:
    """No router is ready, until somebody says what they answer."""

    def __init__(self, *answers: ReplicasState | None) -> None:
        self.answers: list[ReplicasState | None] = list(answers)
        self.asked = 0
        self.tokens: set[str] = set()

    async def ask(self, pods: Iterable[Object], *, token: str) -> Sequence[ReplicasState | None]:
        self.asked += 1
        self.tokens.add(token)
        return list(self.answers)


def answer(*replicas: ReplicaState) -> ReplicasState:
    """Of one router."""
    return ReplicasState(version=STATE_VERSION, replicas=replicas)


def replica(
    name: str, *, withheld: str = "", in_flight: int = 0, running: int = 0, blocks: int = 0
) -> ReplicaState:
    """What a router says of one replica."""
    return ReplicaState(
        name=name,
        url=f"http://{name}:30000",
        joined=True,
        routable=not withheld,
        withheld=withheld,
        in_flight=in_flight,
        running=running,
        prefix_blocks=blocks,
    )
