"""Replicas over HTTP/1.1: a pool of connections (`wire.py`).

Place in the flow: behind the `Upstream` seam. Why not `aiohttp.ClientSession`: docs/router.md.

The surprising thing: a connection out of the pool may have been closed by the replica a moment ago (SGLang
closes idle ones after 5 s). If it breaks before the first byte of an answer, the request goes out once
more to the same replica on a fresh connection, and only then counts as failed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from evenkeel_contract.routerconfig import ReplicaConfig

from evenkeel_router.edge.upstream import BrokenError, ConnectError, Exchange, Outgoing, Reply
from evenkeel_router.edge.wire import Patience, Wire

CONNECT_TIMEOUT_S: Final = 5.0
IDLE_LIMIT_S: Final = 4.0  # uvicorn closes idle connections after 5 s


class Connections:
    """All connections to all replicas."""

    def __init__(self) -> None:
        self._idle: dict[str, deque[Wire]] = {}  # by URL; the last one used is on the right
        self._patience = Patience()

    async def connect(self, replica: ReplicaConfig) -> Exchange:
        """A pooled connection, or a fresh one; raises `ConnectError`."""
        idle = self._idle.get(replica.url)
        if idle:
            fresh_enough_s = asyncio.get_running_loop().time() - IDLE_LIMIT_S
            wire = idle.pop()
            if wire.idle_since_s >= fresh_enough_s:
                return _HttpExchange(self, replica, wire)
            wire.abort()  # then all the others are older still
            while idle:
                idle.pop().abort()
        return _HttpExchange(self, replica, await self.open(replica))

    async def open(self, replica: ReplicaConfig) -> Wire:
        """A fresh connection; raises `ConnectError`."""
        url = urlsplit(replica.url)
        port = url.port or (443 if url.scheme == "https" else 80)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, wire = await loop.create_connection(
                    lambda: Wire(self, self._patience, replica.url),
                    url.hostname or "",
                    port,
                    ssl=True if url.scheme == "https" else None,
                )
        except TimeoutError as error:
            message = f"no connection to {replica.name} within {CONNECT_TIMEOUT_S:g} s"
            raise ConnectError(message) from error
        except OSError as error:
            raise ConnectError(f"no connection to {replica.name}: {error}") from error
        return wire

    def close(self) -> None:
        """Close what is idle, everywhere."""
        for idle in self._idle.values():
            while idle:
                idle.pop().abort()

    def give_back(self, wire: Wire) -> None:
        """A wire is free for another request."""
        self._idle.setdefault(wire.url, deque()).append(wire)

    def lost(self, wire: Wire) -> None:
        """An idle wire was closed by the replica."""
        idle = self._idle.get(wire.url)
        if idle is not None and wire in idle:
            idle.remove(wire)


@lru_cache(maxsize=4096)
def _head(replica: ReplicaConfig, path: str) -> bytes:
    """The part of a request's head that is always the same."""
    lines = [f"POST {path} HTTP/1.1", f"host: {urlsplit(replica.url).netloc}"]
    lines.append("content-type: application/json")
    if replica.api_key is not None:
        lines.append(f"authorization: Bearer {replica.api_key}")
    return "".join(f"{line}\r\n" for line in lines).encode()


class _HttpExchange:
    """One request's hold of a wire."""

    __slots__ = ("_connections", "_replica", "_wire")

    def __init__(self, connections: Connections, replica: ReplicaConfig, wire: Wire) -> None:
        self._connections = connections
        self._replica = replica
        self._wire = wire

    async def ask(self, request: Outgoing, *, silence_s: float) -> Reply:
        head = [_head(self._replica, request.path)]
        head.extend(f"{name}: {value}\r\n".encode() for name, value in request.headers)
        head.append(b"content-length: %d\r\n\r\n" % len(request.body))
        head.append(request.body)
        data = b"".join(head)
        if self._wire.reused:
            try:
                return await self._wire.ask(data, silence_s)
            except BrokenError:
                if self._wire.heard:
                    raise
            self._wire.abort()
            try:
                self._wire = await self._connections.open(self._replica)
            except ConnectError as error:  # it may have had the request: not a mere refusal
                raise BrokenError(str(error)) from error
        return await self._wire.ask(data, silence_s)

    def close(self) -> None:
        self._wire.release()
