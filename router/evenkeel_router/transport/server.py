"""The server of the traffic port: all connections of clients, and their bound."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
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
        keep_alive_s: Callable[[], float],
        head_timeout_s: float,
        max_connections: Callable[[], int],
    ) -> None:
        """`keep_alive_s`: how long a connection may stay open between two requests; `head_timeout_s`: the same before the first one,
        and the time for a head that has begun. `refuse` answers requests that are not HTTP, and requests whose handler raised an exception."""
        self.handle = handle
        self.refuse = refuse
        self.keep_alive_s = keep_alive_s
        self.head_timeout_s = head_timeout_s
        self._max_connections = max_connections
        self.connections: OrderedDict[ClientConnection, None] = OrderedDict()
        """All open connections, by the last bytes received, oldest first."""

    def __call__(self) -> ClientConnection:
        return ClientConnection(self)

    def connected(self, connection: ClientConnection) -> None:
        """A client connected."""
        self.connections[connection] = None
        if len(self.connections) > self._max_connections():
            self._make_room()

    def disconnected(self, connection: ClientConnection) -> None:
        """A connection closed."""
        self.connections.pop(connection, None)

    def pre_shutdown(self) -> None:
        """Close idle connections now, the others after their current answer."""
        for connection in list(self.connections):
            connection.close_when_idle()

    async def shutdown(self, timeout_s: float) -> None:
        """Give running requests some time, then cancel them."""
        await asyncio.gather(*(one.end(timeout_s) for one in list(self.connections)))

    def _make_room(self) -> None:
        closing = next((one for one in self.connections if one.idle), None)
        if closing is not None:
            del self.connections[closing]
            closing.close()
