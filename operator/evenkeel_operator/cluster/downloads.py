"""The pods that download models: `GET /v1/progress`. What they answer goes into a condition, and decides nothing."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final, Protocol

import aiohttp
from evenkeel_contract.downloads import PROGRESS_PATH, Progress, decode_progress
from evenkeel_contract.names import PROBE_PORT

from evenkeel_operator.cluster.routers import addresses_of_ready
from evenkeel_operator.core.objects import Object

_log = logging.getLogger(__name__)
TIMEOUT_S: Final = 5.0
"""A volume on the network takes a while to list its files."""
ANSWER_BYTES: Final = 1024


class Downloads(Protocol):
    """The only access to the pods; tests replace it."""

    async def ask(self, pods: Iterable[Object]) -> Progress | None:
        """The progress of the first pod that answers; None: none does."""


class HttpDownloads:
    """Downloads over HTTP, at the addresses of their pods."""

    def __init__(self, session: aiohttp.ClientSession, *, port: int) -> None:
        self._session = session
        self._port = port

    async def ask(self, pods: Iterable[Object]) -> Progress | None:
        for address in addresses_of_ready(pods):
            host = f"[{address}]" if ":" in address else address
            url = f"http://{host}:{self._port}{PROGRESS_PATH}"
            try:
                async with self._session.get(url, allow_redirects=False) as response:
                    body = await response.content.read(ANSWER_BYTES)
                    found = decode_progress(body) if response.status == 200 else None
            except (aiohttp.ClientError, TimeoutError) as error:
                _log.info("%s does not answer: %s", url, error or type(error).__name__)
                continue
            if found is not None:
                return found
        return None


@asynccontextmanager
async def asked(*, port: int = PROBE_PORT) -> AsyncIterator[HttpDownloads]:
    """Downloads, for the time of the context."""
    connector = aiohttp.TCPConnector(limit=32, force_close=True)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield HttpDownloads(session, port=port)
