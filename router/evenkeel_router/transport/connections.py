"""The pool of connections to replicas over HTTP/1.1. docs/design/http.md explains why it is not `aiohttp.ClientSession`.

The pool opens at most as many connections, idle ones included, as requests may be in flight. To make room it closes the
one that was idle for longest. A process without free files raises `ConnectionLimitError`, and no replica counts as lost.

A replica may have closed a pooled connection a moment ago (SGLang closes idle ones after 5 s). If such a connection breaks
before the first byte of an answer, the request is sent once more to the same replica, on a fresh connection.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from evenkeel_contract.routerconfig import ReplicaConfig
from msgspec import Struct

from evenkeel_router.transport.kernel_buffers import bound_unread
from evenkeel_router.transport.peer_watch import watch_peer
from evenkeel_router.transport.replica_connection import ReplicaConnection
from evenkeel_router.transport.silence import SilenceTimer
from evenkeel_router.transport.upstream import (
    APART_BYTES,
    BrokenError,
    ConnectError,
    ConnectionLimitError,
    Exchange,
    IsOverdue,
    Outgoing,
    Reply,
    UnansweredError,
    never_overdue,
)

CONNECT_TIMEOUT_S: Final = 5.0
IDLE_LIMIT_S: Final = 4.0  # uvicorn closes idle connections after 5 s
MAX_AGE_S: Final = 60.0
"""Time after which a connection to a name, not to an address, takes no more requests: the name may stand for another address."""
MAX_OPEN: Final = 4096
_LOCAL_ERRORS: Final = (
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOBUFS,
    errno.ENOMEM,
    errno.EADDRNOTAVAIL,
)
"""Errors of this process, not of the replica: no files, no memory, no ports."""


class Connections:
    """All connections to all replicas."""

    def __init__(
        self,
        max_open: Callable[[], int] = lambda: MAX_OPEN,
        content_s: dict[str, float] | None = None,
    ) -> None:
        """`max_open`: the bound, which may change. `content_s`: where the last content of each replica is noted (`SilenceTimer.active_s`)."""
        self._loop = asyncio.get_running_loop()
        self._max_open = max_open
        self._open: set[ReplicaConnection] = set()
        self._opening = 0
        self._idle: dict[str, deque[ReplicaConnection]] = {}
        """URL of a replica → its idle connections; the last one used is on the right."""
        self._timer = SilenceTimer(content_s)
        self._sweep_timer: asyncio.TimerHandle | None = None

    def pooled(self, replica: ReplicaConfig) -> Exchange | None:
        """A pooled connection; None if there is none."""
        idle = self._idle.get(replica.url)
        if not idle:
            return None
        connection = idle.pop()  # the last one used: the replica closes it last
        if connection.idle_since_s >= self._loop.time() - IDLE_LIMIT_S:
            return _HttpExchange(self, replica, connection)
        connection.abort()  # all others are idle for longer
        while idle:
            idle.pop().abort()
        return None

    async def connect(self, replica: ReplicaConfig) -> Exchange:
        """A pooled connection, or a fresh one; raises `ConnectError`, `ConnectionLimitError`."""
        return self.pooled(replica) or _HttpExchange(self, replica, await self.open(replica))

    async def open(self, replica: ReplicaConfig) -> ReplicaConnection:
        """A fresh connection; raises `ConnectError`, `ConnectionLimitError`."""
        self._make_room()
        url = urlsplit(replica.url)
        port = url.port or (443 if url.scheme == "https" else 80)
        self._opening += 1  # counts towards the bound meanwhile
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                transport, connection = await self._loop.create_connection(
                    lambda: ReplicaConnection(self, self._timer, replica.url),
                    url.hostname or "",
                    port,
                    ssl=True if url.scheme == "https" else None,
                )
        except TimeoutError as error:
            message = f"no connection to {replica.name} within {CONNECT_TIMEOUT_S:g} s"
            raise ConnectError(message) from error
        except OSError as error:
            kind = ConnectionLimitError if error.errno in _LOCAL_ERRORS else ConnectError
            raise kind(f"no connection to {replica.name}: {error}") from error
        finally:
            self._opening -= 1
        self._open.add(connection)
        watch_peer(transport.get_extra_info("socket").fileno())
        bound_unread(transport)
        if _is_name(url.hostname or ""):
            self._loop.call_later(MAX_AGE_S, connection.retire)
        return connection

    def close(self) -> None:
        """Close all idle connections."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for idle in self._idle.values():
            while idle:
                idle.pop().abort()

    def give_back(self, connection: ReplicaConnection) -> None:
        """A connection is free for another request."""
        idle = self._idle.get(connection.url)
        if idle is None:
            idle = self._idle[connection.url] = deque()
        idle.append(connection)
        if self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(IDLE_LIMIT_S, self._sweep)

    def _sweep(self) -> None:
        """Close what was idle for too long, and forget addresses of replicas that are gone."""
        self._sweep_timer = None
        until_s = self._loop.time() - IDLE_LIMIT_S
        for url, idle in list(self._idle.items()):
            while idle and idle[0].idle_since_s <= until_s:
                idle.popleft().abort()
            if not idle:
                del self._idle[url]
        if self._idle:
            self._sweep_timer = self._loop.call_later(IDLE_LIMIT_S, self._sweep)

    def lost(self, connection: ReplicaConnection) -> None:
        """The replica closed an idle connection."""
        idle = self._idle.get(connection.url)
        if idle is not None and connection in idle:
            idle.remove(connection)
            if not idle:
                del self._idle[connection.url]  # the replica may be gone for good

    def closed(self, connection: ReplicaConnection) -> None:
        """Either side closed the connection. May be called twice."""
        self._open.discard(connection)

    def _make_room(self) -> None:
        """Make room for one more connection; raises `ConnectionLimitError`."""
        if len(self._open) + self._opening < self._max_open():
            return
        oldest = (idle[0] for idle in self._idle.values() if idle)
        longest = min(oldest, key=lambda one: one.idle_since_s, default=None)
        if longest is None:
            raise ConnectionLimitError(
                f"{len(self._open)} connections to replicas are open, which is the limit"
            )
        self.lost(longest)
        longest.abort()


async def _send_rest(connection: ReplicaConnection, rest: bytes | memoryview) -> None:
    """Send the rest of a large body. The kernel would take megabytes in one call, and copy them to a replica on the same machine."""
    for at in range(0, len(rest), APART_BYTES):
        connection.send_more(rest[at : at + APART_BYTES])
        await asyncio.sleep(0)


def _is_name(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return True
    return False


@lru_cache(maxsize=4096)
def _head(url: str, api_key: str | None, path: str) -> bytes:
    """The part of a request's head that is always the same."""
    lines = [f"POST {path} HTTP/1.1", f"host: {urlsplit(url).netloc}"]
    if api_key is not None:
        lines.append(f"authorization: Bearer {api_key}")
    return "".join(f"{line}\r\n" for line in lines).encode()


class _HttpExchange(Struct, eq=False):
    """One request on a connection."""

    _connections: Connections
    _replica: ReplicaConfig
    _connection: ReplicaConnection

    async def ask(
        self, request: Outgoing, *, silence_s: float, is_overdue: IsOverdue = never_overdue
    ) -> Reply:
        connection = self._connection
        while True:
            may_be_closed = connection.reused
            try:
                answered = connection.send(self._wire(request), silence_s, is_overdue)
                if request.rest:
                    await _send_rest(connection, request.rest)
                await answered
                return connection
            except BrokenError:
                if not may_be_closed or connection.answered:
                    raise
            finally:
                connection.no_longer_awaited()
            connection.abort()
            connection = self._connection = await self._reopened()

    def _wire(self, request: Outgoing) -> bytes:
        """Head and body. They are not kept: while a request waits for its answer, its body is in memory once."""
        replica, body = self._replica, request.body
        return b"%b%bcontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (
            _head(replica.url, replica.api_key, request.path),
            request.headers.encode(),
            request.content_type,
            len(body) + len(request.rest),
            body,
        )

    async def _reopened(self) -> ReplicaConnection:
        try:
            return await self._connections.open(self._replica)
        except (ConnectError, ConnectionLimitError) as error:
            # The replica may have received the request.
            raise UnansweredError(str(error)) from error

    def break_off(self) -> bool:
        return self._connection.break_off()

    def close(self) -> None:
        self._connection.release()
