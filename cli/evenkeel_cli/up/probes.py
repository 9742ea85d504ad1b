"""Probes the processes of the fleet over HTTP. A failed probe is a value, not an exception."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Self

import httpx
from evenkeel_contract.adminstate import (
    STATE_PATH,
    ReplicaState,
    RouterState,
    StateError,
    decode_state,
)

_TIMEOUT_S: Final = 2.0
_BETWEEN_S: Final = 0.05


class Probes:
    """One HTTP client for all probes; create it with `open`."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[Self]:
        """A client that ignores the proxy settings of the environment: all addresses are on this machine."""
        async with httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as client:
            yield cls(client)

    async def status(self, url: str) -> int | None:
        """The status that an address answers with; None without an answer."""
        try:
            return (await self._client.get(url)).status_code
        except httpx.HTTPError:
            return None

    async def state(self, admin_url: str) -> RouterState | None:
        """The state that a router reports; None without a valid answer."""
        try:
            response = await self._client.get(admin_url + STATE_PATH)
            return decode_state(response.content) if response.status_code == 200 else None
        except (httpx.HTTPError, StateError):
            return None

    async def routes(self, admin_url: str, names: frozenset[str], limit_s: float) -> bool:
        """Wait until a router has exactly these replicas and all take requests; False after `limit_s`."""
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    state = await self.state(admin_url)
                    if state is not None and _routes_exactly(state, names):
                        return True
                    await asyncio.sleep(_BETWEEN_S)
        except TimeoutError:
            return False


def _routes_exactly(state: RouterState, names: frozenset[str]) -> bool:
    replicas = replicas_of(state)
    known = {replica.name for replica in replicas}
    return known == names and all(replica.routable for replica in replicas)


def replicas_of(state: RouterState) -> tuple[ReplicaState, ...]:
    """The replicas of a router, of all its services."""
    return (*state.replicas, *(replica for one in state.services for replica in one.replicas))
