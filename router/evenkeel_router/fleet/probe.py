"""Asks a replica if it takes requests, when its process started, and how low its deficits can fall.

Engines report readiness at different paths. SGLang's `/ready` is cheap and changes when a drain begins; its `/health` generates a
token. vLLM has `/health` alone. Other servers have only OpenAI's `/v1/models`.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import AbstractAsyncContextManager, suppress
from enum import Enum
from typing import Annotated, Final, Protocol

import aiohttp
import msgspec
from evenkeel_contract.routerconfig import ReplicaConfig

PROBE_TIMEOUT_S: Final = 2.0
READINESS_PATHS: Final = ("/ready", "/health", "/v1/models")
"""Paths to probe in this order: the first one that the engine has counts."""
NO_SUCH_PATH: Final = frozenset({404, 405, 501})
MOST_PATHS: Final = 4096
"""Replicas whose path is remembered: more than run at a time."""
STARTED: Final = re.compile(
    rb"^process_start_time_seconds(?:\{[^}\n]*\})? ([0-9.e+]+)", re.MULTILINE
)
"""Metric of `/metrics` with the start of the process, seconds since the epoch; Prometheus clients export it."""


USUAL: Final = (200, 503)
"""Status of an engine that is ready, and of one that starts or drains."""


class ProbeVerdict(Enum):
    """What a probe found."""

    READY = "ready"
    NOT_READY = "not ready"  # by its own answer: starting, or draining
    BROKEN = "broken"  # the answer broke off
    SILENT = "silent"  # no answer in time: busy, perhaps
    GONE = "gone"  # it refuses connections


Tokens = Annotated[int, msgspec.Meta(gt=0, le=2**31)]
"""Tokens of a pool or a context. More than any engine has is a claim that would make every client's debt larger (R18)."""


class EngineSize(msgspec.Struct, frozen=True, kw_only=True):
    """What `GET /server_info` says of an engine's size, out of SGLang's hundreds of fields."""

    max_total_num_tokens: Tokens
    """Tokens of the KV pool."""
    context_length: Tokens | None = None
    max_req_input_len: Tokens | None = None

    @property
    def max_input_tokens(self) -> int:
        """Tokens of the longest prompt that the engine takes."""
        given = (self.max_req_input_len, self.context_length, self.max_total_num_tokens)
        return min(length for length in given if length)


class Prober(Protocol):
    """Asks one replica. Never raises for anything a replica does."""

    async def probe(self, replica: ReplicaConfig) -> ProbeVerdict:
        """Whether the replica takes requests."""

    def refusal(self, replica: ReplicaConfig) -> str:
        """What the last probe was answered, for people; empty: that the replica is ready, or is not ready yet."""

    async def size(self, replica: ReplicaConfig) -> EngineSize | None:
        """The size of the replica's engine; None where it does not answer."""

    async def started_s(self, replica: ReplicaConfig) -> float | None:
        """Start of the replica's process, seconds since the epoch; None if it does not report that."""


class HttpProber:
    """Asks over HTTP: `READINESS_PATHS`, `/server_info`, `/metrics`."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._paths: dict[str, int] = {}
        """URL of a replica without `/ready` → the index of the path that it has."""
        self._refusals: dict[str, int] = {}
        """URL of a replica whose last probe was answered with neither of `USUAL` → the status."""

    async def probe(self, replica: ReplicaConfig) -> ProbeVerdict:
        self._refusals.pop(replica.url, None)
        try:
            status = await self._readiness(replica)
            if status not in USUAL and len(self._refusals) < MOST_PATHS:
                self._refusals[replica.url] = status
            return ProbeVerdict.READY if status == 200 else ProbeVerdict.NOT_READY
        except TimeoutError:
            return ProbeVerdict.SILENT
        except aiohttp.ClientConnectorError:
            self._paths.pop(replica.url, None)  # another engine may come in its place
            return ProbeVerdict.GONE
        except (aiohttp.ClientError, OSError):
            return ProbeVerdict.BROKEN

    def refusal(self, replica: ReplicaConfig) -> str:
        status = self._refusals.get(replica.url)
        return "" if status is None else f"its health check answers {status}"

    async def size(self, replica: ReplicaConfig) -> EngineSize | None:
        try:
            async with ask(self._session, replica, "/server_info") as response:
                return _SIZE.decode(await response.read()) if response.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError, ValueError):
            return None

    async def started_s(self, replica: ReplicaConfig) -> float | None:
        try:
            async with ask(self._session, replica, "/metrics") as response:
                found = STARTED.search(await response.read()) if response.status == 200 else None
                return None if found is None else float(found[1])
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return None

    async def _readiness(self, replica: ReplicaConfig) -> int:
        """The status at the first readiness path that the engine has."""
        index = self._paths.get(replica.url, 0)
        while True:
            async with ask(self._session, replica, READINESS_PATHS[index]) as response:
                status = response.status
            if status not in NO_SUCH_PATH or index + 1 == len(READINESS_PATHS):
                return status
            index += 1
            if len(self._paths) >= MOST_PATHS:
                self._paths.clear()
            self._paths[replica.url] = index


def ask(
    session: aiohttp.ClientSession, replica: ReplicaConfig, path: str
) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
    """`GET` of a replica's path, with its key; for at most `PROBE_TIMEOUT_S`."""
    headers = {}
    if replica.api_key is not None:
        headers["Authorization"] = f"Bearer {replica.api_key}"
    timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
    return session.get(replica.url.rstrip("/") + path, headers=headers, timeout=timeout)


_SIZE: Final = msgspec.json.Decoder(EngineSize)


def prober_session() -> aiohttp.ClientSession:
    """A session for probes: connections kept, nothing else."""
    connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=10)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


async def wait_for(event: asyncio.Event, timeout_s: float) -> None:
    """Wait for an event or a time, whichever is first; clears the event."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
        event.clear()
