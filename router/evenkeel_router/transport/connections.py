"""Replicas over HTTP/1.1: a pool of connections (`wire.py`).

Place in the flow: behind the `Upstream` seam. Why not `aiohttp.ClientSession`: docs/router.md.

Bounded: no more connections are open, idle ones included, than requests may be in flight. To make room the one
that was idle for longest is closed, whoever's it is. A process that is out of files says so (`ConnectionLimitError`); no
replica is taken for lost by that.

The surprising thing: a connection out of the pool may have been closed by the replica a moment ago (SGLang
closes idle ones after 5 s). If it breaks before the first byte of an answer, the request goes out once
more to the same replica on a fresh connection, and only then counts as failed.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from evenkeel_contract.routerconfig import ReplicaConfig

from evenkeel_router.transport.upstream import (
    BrokenError,
    ConnectError,
    ConnectionLimitError,
    Exchange,
    Outgoing,
    Reply,
    UnansweredError,
)
from evenkeel_router.transport.wire import Patience, ReplicaConnection

CONNECT_TIMEOUT_S: Final = 5.0
IDLE_LIMIT_S: Final = 4.0  # uvicorn closes idle connections after 5 s


MAX_OPEN: Final = 4096
_OUR_OWN: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)
"""What says nothing about the replica: no files, no memory, no port left here."""


class Connections:
    """All connections to all replicas."""

    def __init__(self, max_open: Callable[[], int] = lambda: MAX_OPEN) -> None:
        """`max_open`: the bound, which may change."""
        self._loop = asyncio.get_running_loop()
        self._max_open = max_open
        self._open: set[ReplicaConnection] = set()
        self._opening = 0
        self._idle: dict[
            str, deque[ReplicaConnection]
        ] = {}  # by URL; the last one used is on the right
        self._patience = Patience()

    async def connect(self, replica: ReplicaConfig) -> Exchange:
        """A pooled connection, or a fresh one; raises `ConnectError`, `ConnectionLimitError`."""
        idle = self._idle.get(replica.url)
        if idle:
            fresh_enough_s = self._loop.time() - IDLE_LIMIT_S
            wire = idle.pop()
            if wire.idle_since_s >= fresh_enough_s:
                return _HttpExchange(self, replica, wire)
            wire.abort()  # then all the others are older still
            while idle:
                idle.pop().abort()
        return _HttpExchange(self, replica, await self.open(replica))

    async def open(self, replica: ReplicaConfig) -> ReplicaConnection:
        """A fresh connection; raises `ConnectError`, `ConnectionLimitError`."""
        self._make_room()
        url = urlsplit(replica.url)
        port = url.port or (443 if url.scheme == "https" else 80)
        self._opening += 1
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, wire = await self._loop.create_connection(
                    lambda: ReplicaConnection(self, self._patience, replica.url),
                    url.hostname or "",
                    port,
                    ssl=True if url.scheme == "https" else None,
                )
        except TimeoutError as error:
            message = f"no connection to {replica.name} within {CONNECT_TIMEOUT_S:g} s"
            raise ConnectError(message) from error
        except OSError as error:
            kind = ConnectionLimitError if error.errno in _OUR_OWN else ConnectError
            raise kind(f"no connection to {replica.name}: {error}") from error
        finally:
            self._opening -= 1
        self._open.add(wire)
        return wire

    def close(self) -> None:
        """Close what is idle, everywhere."""
        for idle in self._idle.values():
            while idle:
                idle.pop().abort()

    def give_back(self, wire: ReplicaConnection) -> None:
        """A wire is free for another request."""
        self._idle.setdefault(wire.url, deque()).append(wire)

    def lost(self, wire: ReplicaConnection) -> None:
        """An idle wire was closed by the replica."""
        idle = self._idle.get(wire.url)
        if idle is not None and wire in idle:
            idle.remove(wire)
            if not idle:
                del self._idle[wire.url]  # perhaps nobody goes there any more

    def closed(self, wire: ReplicaConnection) -> None:
        """A wire was closed, by whomever."""
        self._open.discard(wire)

    def _make_room(self) -> None:
        """For one more connection; raises `ConnectionLimitError`."""
        if len(self._open) + self._opening < self._max_open():
            return
        longest = min(
            (idle[0] for idle in self._idle.values() if idle), key=_idle_since, default=None
        )
        if longest is None:
            raise ConnectionLimitError(
                f"{len(self._open)} connections to replicas are open, as many as may be"
            )
        self.lost(longest)
        longest.abort()


def _idle_since(wire: ReplicaConnection) -> float:
    return wire.idle_since_s


@lru_cache(maxsize=4096)
def _head(url: str, api_key: str | None, path: str) -> bytes:
    """The part of a request's head that is always the same."""
    lines = [f"POST {path} HTTP/1.1", f"host: {urlsplit(url).netloc}"]
    lines.append("content-type: application/json")
    if api_key is not None:
        lines.append(f"authorization: Bearer {api_key}")
    return "".join(f"{line}\r\n" for line in lines).encode()


class _HttpExchange:
    """One request's hold of a wire."""

    __slots__ = ("_connections", "_replica", "_wire")

    def __init__(
        self, connections: Connections, replica: ReplicaConfig, wire: ReplicaConnection
    ) -> None:
        self._connections = connections
        self._replica = replica
        self._wire = wire

    async def ask(self, request: Outgoing, *, silence_s: float) -> Reply:
        head = [_head(self._replica.url, self._replica.api_key, request.path)]
        for name, value in request.headers:
            head.append(f"{name}: {value}\r\n".encode())
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
            except (
                ConnectError,
                ConnectionLimitError,
            ) as error:  # it may have had the request: not a mere refusal
                raise UnansweredError(str(error)) from error
        return await self._wire.ask(data, silence_s)

    def break_off(self) -> bool:
        return self._wire.break_off()

    def close(self) -> None:
        self._wire.release()
