"""The admin ports of a service's routers: `GET /v1/replicas` and `GET /v1/activation`.

Each router is queried at its pod's address; a Service would select one of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol, TypeVar
from urllib.parse import urlencode

import aiohttp
from evenkeel_contract.adminstate import (
    ACTIVATION_PATH,
    ACTIVATION_POLL_S,
    REPLICAS_PATH,
    SERVICE_QUERY,
    ReplicasState,
    StateError,
    decode_activation,
    decode_replicas,
)
from evenkeel_contract.names import ADMIN_PORT

from evenkeel_operator.core.objects import Object, conditions_of

_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")

TIMEOUT_S: Final = 2.0
"""Routers answer within milliseconds."""
POLL_S: Final = ACTIVATION_POLL_S + 10


class Routers(Protocol):
    """The only access to routers; tests replace it."""

    async def ask(
        self, pods: Iterable[Object], *, token: str, service: str = ""
    ) -> Sequence[ReplicasState | None]:
        """The replicas of every ready router among these pods; None for a router that does not answer. `service`: the one that is
        asked about, at routers of several."""

    async def activation(
        self, address: str, *, token: str, known: bool, service: str = ""
    ) -> bool | None:
        """Whether requests wait for a first replica. Returns when that differs from `known` or after a timeout; None:
        no answer."""


class HttpRouters:
    """Routers over HTTP, at the addresses of their pods."""

    def __init__(
        self, session: aiohttp.ClientSession, polls: aiohttp.ClientSession, *, port: int
    ) -> None:
        """`polls` is the session for long polls."""
        self._session = session
        self._polls = polls
        self._port = port

    async def ask(
        self, pods: Iterable[Object], *, token: str, service: str = ""
    ) -> Sequence[ReplicasState | None]:
        asked = [self._replicas(address, token, service) for address in addresses_of_ready(pods)]
        return await asyncio.gather(*asked)

    async def activation(
        self, address: str, *, token: str, known: bool, service: str = ""
    ) -> bool | None:
        query = {"wanted": str(known).lower()} | ({SERVICE_QUERY: service} if service else {})
        url = f"{self._base(address)}{ACTIVATION_PATH}?{urlencode(query)}"
        found = await _get(self._polls, url, token, decode_activation)
        return None if found is None else found.wanted

    async def _replicas(self, address: str, token: str, service: str) -> ReplicasState | None:
        query = f"?{urlencode({SERVICE_QUERY: service})}" if service else ""
        url = f"{self._base(address)}{REPLICAS_PATH}{query}"
        return await _get(self._session, url, token, decode_replicas)

    def _base(self, address: str) -> str:
        host = f"[{address}]" if ":" in address else address
        return f"http://{host}:{self._port}"


async def _get(
    session: aiohttp.ClientSession, url: str, token: str, decode: Callable[[bytes], _Answer]
) -> _Answer | None:
    try:
        async with session.get(
            url, headers={"Authorization": f"Bearer {token}"}, allow_redirects=False
        ) as response:
            if response.status != 200:
                _log.info("router %s answers %d", url, response.status)
                return None
            return decode(await response.read())
    except (aiohttp.ClientError, TimeoutError) as error:
        _log.info("router %s does not answer: %s", url, error or type(error).__name__)
        return None
    except StateError as error:
        _log.info("router %s: %s", url, error)
        return None


@asynccontextmanager
async def reached(*, port: int = ADMIN_PORT) -> AsyncIterator[HttpRouters]:
    """Routers, for the time of the context."""
    # Pods change, so connections are not kept.
    connector = aiohttp.TCPConnector(limit=32, force_close=True)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    # One long poll per router of each service at zero.
    many = aiohttp.TCPConnector(limit=0)
    patience = aiohttp.ClientTimeout(total=POLL_S, sock_connect=TIMEOUT_S)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        aiohttp.ClientSession(connector=many, timeout=patience) as polls,
    ):
        yield HttpRouters(session, polls, port=port)


def addresses_of_ready(pods: Iterable[Object]) -> list[str]:
    """The addresses of the ready pods that are not being deleted."""
    ready = (
        pod["status"].get("podIP")
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
        and conditions_of(pod).get("Ready", {}).get("status") == "True"
    )
    return [str(address) for address in ready if address]
