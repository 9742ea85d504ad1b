"""Which replicas exist: from the configuration, or from the cluster's API.

Discovery says which replicas exist and which must get no new requests; `health` finds out whether the others take requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from evenkeel_contract.routerconfig import RouterConfig

from evenkeel_router.fleet.selection import DiscoveredReplica


class Discovery(Protocol):
    """Where replicas come from."""

    async def run(self) -> None:
        """Keep in touch with where they come from, until cancelled."""

    def update(self, config: RouterConfig) -> None:
        """The configuration changed."""

    def watch(self) -> AsyncIterator[Sequence[DiscoveredReplica]]:
        """All replicas: as soon as they are known, and again after every change."""


class StaticDiscovery:
    """The list of the configuration, for `evenkeel up` and tests."""

    def __init__(self, config: RouterConfig) -> None:
        self._replicas = config.replicas
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Nothing to keep in touch with."""

    def update(self, config: RouterConfig) -> None:
        self._replicas = config.replicas
        self._changed.set()

    async def watch(self) -> AsyncIterator[Sequence[DiscoveredReplica]]:
        while True:
            self._changed.clear()
            yield [DiscoveredReplica(replica) for replica in self._replicas]
            await self._changed.wait()
