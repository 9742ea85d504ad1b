"""Asking a replica whether it takes requests.

Place in the flow: discovery → **probe** → health → fleet. Off the hot path, so a plain `ClientSession` does.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Final, Protocol

import aiohttp
from evenkeel_contract.routerconfig import ReplicaConfig

PROBE_TIMEOUT_S: Final = 2.0


class Verdict(Enum):
    """What a probe found."""

    READY = "ready"
    NOT_READY = "not ready"  # it says so: starting, or draining
    BROKEN = "broken"  # the answer broke off
    SILENT = "silent"  # no answer in time: busy, perhaps
    GONE = "gone"  # nobody listens


class Prober(Protocol):
    """Asks one replica."""

    async def probe(self, replica: ReplicaConfig) -> Verdict:
        """Never raises for anything a replica does."""


class HttpProber:
    """`GET /ready`."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def probe(self, replica: ReplicaConfig) -> Verdict:
        headers = {}
        if replica.api_key is not None:
            headers["Authorization"] = f"Bearer {replica.api_key}"
        timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
        url = replica.url.rstrip("/") + "/ready"
        try:
            async with self._session.get(url, headers=headers, timeout=timeout) as response:
                return Verdict.READY if response.status == 200 else Verdict.NOT_READY
        except TimeoutError:
            return Verdict.SILENT
        except aiohttp.ClientConnectorError:
            return Verdict.GONE
        except (aiohttp.ClientError, OSError):
            return Verdict.BROKEN


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
