"""The server of the traffic port: all connections of clients, and their bound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from evenkeel_router.transport.client_connection import ClientConnection
from evenkeel_router.transport.client_request import Answer, Request


def connections_for(max_concurrent: int) -> int:
    """The most connections of clients: as many idle ones as there may be requests, and a few for small routers."""
    return 2 * max_concurrent + 16


class TrafficServer:
    """Makes a `ClientConnection` for each connection.

    Beyond `max_connections`, it closes the connection that was silent for longest among those without a request.
    """

    def __init__(
        self,
        handle: Callable[[Request], Awaitable[Answer]],
        refuse: Callable[[Request, BaseException], Answer],
        *,
        keep_alive_s: float,
        max_connections: Callable[[], int],
    ) -> None:
        """`refuse` answers requests that are not HTTP, and requests whose handler raised an exception."""
        self.handle = handle
        self.refuse = refuse
        self.keep_alive_s = keep_alive_s
        self._max_connections = max_connections
        self._connections: dict[ClientConnection, None] = {}
        """Ordered by the last bytes received, oldest first."""

    def __call__(self) -> ClientConnection:
        return ClientConnection(self)

    @property
    def connections(self) -> list[ClientConnection]:
        """All open connections."""
        return list(self._connections)

    def connected(self, connection: ClientConnection) -> None:
        """A client connected."""
        self._connections[connection] = None
        if len(self._connections) > self._max_connections():
            self._make_room()

    def disconnected(self, connection: ClientConnection) -> None:
        """A connection closed."""
        self._connections.pop(connection, None)

    def received(self, connection: ClientConnection) -> None:
        """Bytes arrived on a connection."""
        if connection in self._connections:  # it is missing once it had to make room
            del self._connections[connection]
            self._connections[connection] = None

    def pre_shutdown(self) -> None:
        """Close idle connections now, the others after their current answer."""
        for connection in self.connections:
            connection.close_when_idle()

    async def shutdown(self, timeout_s: float) -> None:
        """Give running requests some time, then cancel them."""
        await asyncio.gather(*(one.end(timeout_s) for one in self.connections))

    def _make_room(self) -> None:
        closing = next((one for one in self._connections if one.idle), None)
        if closing is not None:
            del self._connections[closing]
            closing.close()
