"""Ports that the router listens on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from evenkeel_contract.listening import addresses

from evenkeel_router.transport.kernel_buffers import bound_unsent
from evenkeel_router.transport.peer_watch import watch_peer


async def listen(
    factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, *, backlog: int = 100
) -> tuple[asyncio.Server, int]:
    """The server and its port; `::` means both families. Raises `OSError` if the port is taken."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(factory, addresses(host), port, backlog=backlog)
    for socket in server.sockets:
        # Connections inherit both.
        watch_peer(socket.fileno())
        bound_unsent(socket.fileno())
    return server, int(server.sockets[0].getsockname()[1])
