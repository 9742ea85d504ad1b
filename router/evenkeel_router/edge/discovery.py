"""Which replicas there are.

Place in the flow: configuration (or, on a cluster, its API) → **discovery** → health → fleet. A discovery
says what exists; whether it takes requests is for `health` to find out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from evenkeel_contract.routerconfig import ReplicaConfig


class Discovery(Protocol):
    """Where replicas come from."""

    def watch(self) -> AsyncIterator[Sequence[ReplicaConfig]]:
        """All replicas: now, and again after every change."""


class StaticDiscovery:
    """The list of the configuration, for `evenkeel up` and tests."""

    def __init__(self, replicas: Sequence[ReplicaConfig]) -> None:
        self._replicas = replicas
        self._changed = asyncio.Event()

    def update(self, replicas: Sequence[ReplicaConfig]) -> None:
        """The list changed."""
        self._replicas = replicas
        self._changed.set()

    async def watch(self) -> AsyncIterator[Sequence[ReplicaConfig]]:
        while True:
            self._changed.clear()
            yield self._replicas
            await self._changed.wait()
