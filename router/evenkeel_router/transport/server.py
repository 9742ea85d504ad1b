"""The server of the traffic port: all connections of clients, and their bound."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable
from typing import Final, cast

from evenkeel_router.transport.client_connection import ClientConnection
from evenkeel_router.transport.client_request import Answer, Request
from evenkeel_router.transport.connection_shares import NO_KEY, ConnectionShares
from evenkeel_router.transport.known_heads import KnownHeads

OTHER_FILES: Final = 100  # ports, logs, probes, reports
SIDE_CONNECTIONS: Final = 128
"""The most connections to the admin port, and to the probe port."""


def connections_for(max_concurrent: int) -> int:
    """The most connections of clients: as many idle ones as there may be requests, and a few for small routers."""
    return 2 * max_concurrent + 16


def files_for(max_concurrent: int) -> int:
    """Open files of a router that serves so many requests at once."""
    return max_concurrent + connections_for(max_concurrent) + 2 * SIDE_CONNECTIONS + OTHER_FILES


def within_files(wanted: int) -> int:
    """`wanted` connections of clients, or fewer: at most two thirds of the files that this process may open for requests."""
    _, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(16, (allowed - 2 * SIDE_CONNECTIONS - OTHER_FILES) * 2 // 3))


class TrafficServer:
    """Makes a `ClientConnection` for each connection. `shares` closes connections beyond its bound."""

    def __init__(
        self,
        handle: Callable[[Request], Awaitable[Answer]],
        refuse: Callable[[Request, BaseException], Answer],
        *,
        keep_alive_s: Callable[[], float],
        unread_s: Callable[[], float],
        head_timeout_s: float,
        shares: ConnectionShares,
        holder_of: Callable[[str], str] = f"{NO_KEY}/{{}}".format,
    ) -> None:
        """`keep_alive_s`: how long a connection may stay open between two requests; `unread_s`: how long a client may read nothing
        of its answer; `head_timeout_s`: time before the first request, and for a head that has begun. `refuse` answers requests that
        are not HTTP, and requests whose handler raised an exception. `holder_of` names the holder of a new connection, by the address of its peer."""
        self.handle = handle
        self.refuse = refuse
        self.keep_alive_s = keep_alive_s
        self.unread_s = unread_s
        self.head_timeout_s = head_timeout_s
        self.shares = shares
        self.heads = KnownHeads()
        self._holder_of = holder_of

    @property
    def connections(self) -> list[ClientConnection]:
        """All open connections; one that had to make room is not among them."""
        return [cast(ClientConnection, one) for one in self.shares.open]

    def __call__(self) -> ClientConnection:
        return ClientConnection(self)

    def connected(self, connection: ClientConnection) -> None:
        """A client connected."""
        connection.holder = self._holder_of(connection.peer)
        self.shares.add(connection)

    def disconnected(self, connection: ClientConnection) -> None:
        """A connection closed."""
        self.shares.remove(connection)

    def pre_shutdown(self) -> None:
        """Close idle connections now, the others after their current answer."""
        for connection in self.connections:
            connection.close_when_idle()

    async def shutdown(self, timeout_s: float) -> None:
        """Give running requests some time, then cancel them."""
        await asyncio.gather(*(one.end(timeout_s) for one in self.connections))
