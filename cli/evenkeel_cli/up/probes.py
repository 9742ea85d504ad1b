"""Asks the processes of the fleet how they are. Answers are values: nothing here raises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Self

import httpx
from evenkeel_contract.adminstate import STATE_PATH, RouterState, StateError, decode_state

_TIMEOUT_S: Final = 2.0
_BETWEEN_S: Final = 0.05


class Probes:
    """One client for all probes; `open` it."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[Self]:
        """Never through a proxy of the environment: all addresses are of this machine."""
        async with httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as client:
            yield cls(client)

    async def status(self, url: str) -> int | None:
        """The status that an address answers with; None where nobody answers."""
        try:
            return (await self._client.get(url)).status_code
        except httpx.HTTPError:
            return None

    async def state(self, admin_url: str) -> RouterState | None:
        """What a router knows; None where it does not say."""
        try:
            response = await self._client.get(admin_url + STATE_PATH)
            return decode_state(response.content) if response.status_code == 200 else None
        except (httpx.HTTPError, StateError):
            return None

    async def routes(self, admin_url: str, names: frozenset[str], limit_s: float) -> bool:
        """Wait until a router knows exactly these replicas and all are in rotation; whether it did."""
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
    known = {replica.name for replica in state.replicas}
    return known == names and all(replica.routable for replica in state.replicas)
