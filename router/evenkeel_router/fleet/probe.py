"""Asking a replica whether it takes requests, and how low its deficits can fall."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Annotated, Final, Protocol

import aiohttp
import msgspec
from evenkeel_contract.routerconfig import ReplicaConfig

PROBE_TIMEOUT_S: Final = 2.0


class Verdict(Enum):
    """What a probe found."""

    READY = "ready"
    NOT_READY = "not ready"  # by its own answer: starting, or draining
    BROKEN = "broken"  # the answer broke off
    SILENT = "silent"  # no answer in time: busy, perhaps
    GONE = "gone"  # it refuses connections


class EngineSize(msgspec.Struct, frozen=True, kw_only=True):
    """What `GET /server_info` says of an engine's size, out of SGLang's hundreds of fields."""

    max_total_num_tokens: Annotated[int, msgspec.Meta(gt=0)]
    """The KV pool."""
    context_length: int | None = None
    max_req_input_len: int | None = None

    @property
    def max_input_tokens(self) -> int:
        """The longest prompt that it takes."""
        given = (self.max_req_input_len, self.context_length, self.max_total_num_tokens)
        return min(length for length in given if length)


class Prober(Protocol):
    """Asks one replica. Never raises for anything a replica does."""

    async def probe(self, replica: ReplicaConfig) -> Verdict:
        """Whether it takes requests."""

    async def size(self, replica: ReplicaConfig) -> EngineSize | None:
        """How large it is; None where it does not answer."""


class HttpProber:
    """`GET /ready`, `GET /server_info`."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def probe(self, replica: ReplicaConfig) -> Verdict:
        try:
            async with self._get(replica, "/ready") as response:
                return Verdict.READY if response.status == 200 else Verdict.NOT_READY
        except TimeoutError:
            return Verdict.SILENT
        except aiohttp.ClientConnectorError:
            return Verdict.GONE
        except (aiohttp.ClientError, OSError):
            return Verdict.BROKEN

    async def size(self, replica: ReplicaConfig) -> EngineSize | None:
        try:
            async with self._get(replica, "/server_info") as response:
                return _SIZE.decode(await response.read()) if response.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError, ValueError):
            return None

    def _get(
        self, replica: ReplicaConfig, path: str
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        headers = {}
        if replica.api_key is not None:
            headers["Authorization"] = f"Bearer {replica.api_key}"
        timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
        return self._session.get(replica.url.rstrip("/") + path, headers=headers, timeout=timeout)


_SIZE: Final = msgspec.json.Decoder(EngineSize)


def prober_session() -> aiohttp.ClientSession:
    """A session for probes: connections kept, nothing else."""
    connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=10)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


async def wait_for(event: asyncio.Event, timeout_s: float) -> None:
    """Wait for an event or a time, whichever is first; clears the event."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
    event.clear()
