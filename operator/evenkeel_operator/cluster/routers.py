"""Asking a service's routers what they do with its replicas: `GET /v1/replicas` on their admin ports.

Place in the pass: observe → **ask** → gates, victims. Asked only while a replica comes or goes, and each router by
itself: a Service would answer for one of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol

import aiohttp
from evenkeel_contract.adminstate import (
    REPLICAS_PATH,
    ReplicasState,
    StateError,
    decode_replicas,
)
from evenkeel_contract.names import ADMIN_PORT

from evenkeel_operator.core.objects import Object

_log = logging.getLogger(__name__)

TIMEOUT_S: Final = 2.0
"""They answer within milliseconds, or are not there."""


class Routers(Protocol):
    """The one seam to routers."""

    async def ask(self, pods: Iterable[Object], *, token: str) -> Sequence[ReplicasState | None]:
        """Every ready one of these pods; None for one that does not answer."""


class HttpRouters:
    """Over HTTP, to the pods' addresses."""

    def __init__(self, session: aiohttp.ClientSession, *, port: int) -> None:
        self._session = session
        self._port = port

    async def ask(self, pods: Iterable[Object], *, token: str) -> Sequence[ReplicasState | None]:
        asked = [self._ask(address, token) for pod in pods if (address := _address_if_ready(pod))]
        return await asyncio.gather(*asked)

    async def _ask(self, address: str, token: str) -> ReplicasState | None:
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{self._port}{REPLICAS_PATH}"
        try:
            async with self._session.get(
                url, headers={"Authorization": f"Bearer {token}"}, allow_redirects=False
            ) as response:
                if response.status != 200:
                    _log.info("router %s answers %d", url, response.status)
                    return None
                return decode_replicas(await response.read())
        except (aiohttp.ClientError, TimeoutError, StateError) as error:
            _log.info("router %s does not answer: %s", url, error or type(error).__name__)
            return None


@asynccontextmanager
async def reached(*, port: int = ADMIN_PORT) -> AsyncIterator[HttpRouters]:
    """Routers, for the time of the context."""
    # A session for short talks with ever other pods: connections are not worth keeping.
    connector = aiohttp.TCPConnector(limit=32, force_close=True)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield HttpRouters(session, port=port)


def _address_if_ready(pod: Object) -> str:
    """Empty where it is not ready, or leaves."""
    status = pod.get("status") or {}
    conditions = {item["type"]: item["status"] for item in status.get("conditions") or ()}
    if "deletionTimestamp" in pod["metadata"] or conditions.get("Ready") != "True":
        return ""
    return str(status.get("podIP", ""))
