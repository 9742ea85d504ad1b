"""Routers as the operator sees them, at its one seam to them: what they say is set by the test."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence

from evenkeel_contract.adminstate import STATE_VERSION, ReplicasState, ReplicaState
from evenkeel_operator.core.objects import Object


class FakeRouters:
    """No router is ready, until somebody says what they answer."""

    def __init__(self, *answers: ReplicasState | None) -> None:
        self.answers: list[ReplicasState | None] = list(answers)
        self.asked = 0
        self.tokens: set[str] = set()
        self.services: set[str] = set()
        """Services that were asked about; empty text: the only one."""
        self.wanted: dict[str, bool | None] = {}
        """By address: whether requests wait there for a first replica. None: it does not answer."""
        self.open: Counter[str] = Counter()
        """Questions after it that are open, by address."""
        self.asked_activation = 0
        self._news = asyncio.Event()

    def say(self, address: str, wanted: bool | None) -> None:
        """From now on."""
        self.wanted[address] = wanted
        self._news.set()
        self._news.clear()

    async def activation(
        self, address: str, *, token: str, known: bool, service: str = ""
    ) -> bool | None:
        self.tokens.add(token)
        self.services.add(service)
        self.asked_activation += 1
        self.open[address] += 1
        try:
            await asyncio.sleep(0)
            while self.wanted.get(address, False) is known:
                await self._news.wait()
        finally:
            self.open[address] -= 1
        return self.wanted.get(address, False)

    async def ask(
        self, pods: Iterable[Object], *, token: str, service: str = ""
    ) -> Sequence[ReplicasState | None]:
        self.asked += 1
        self.tokens.add(token)
        self.services.add(service)
        return list(self.answers)


def answer(*replicas: ReplicaState) -> ReplicasState:
    """Of one router."""
    return ReplicasState(version=STATE_VERSION, replicas=replicas)


def replica(
    name: str,
    *,
    unschedulable_reason: str = "",
    in_flight: int = 0,
    running: int = 0,
    blocks: int = 0,
    inactive_reason: str = "",
    unnamed_share: float = 0.0,
) -> ReplicaState:
    """What a router says of one replica."""
    return ReplicaState(
        name=name,
        url=f"http://{name}:30000",
        joined=True,
        routable=not unschedulable_reason,
        unschedulable_reason=unschedulable_reason,
        in_flight=in_flight,
        running=running,
        prefix_blocks=blocks,
        inactive_reason=inactive_reason,
        unnamed_share=unnamed_share,
    )
