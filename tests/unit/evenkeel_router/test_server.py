"""A client's connection: what is sent goes to the socket at once, in order, and nowhere once it is lost."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from evenkeel_router.transport.server import ClientConnection, TrafficServer

from tests.support.routers import until

_SOON_S = 30.0


async def _handle(request: web.BaseRequest) -> web.StreamResponse:
    raise AssertionError("nobody asks anything")


def _refuse(request: web.BaseRequest, error: BaseException | None) -> web.StreamResponse:
    raise AssertionError("nobody asks anything")


@asynccontextmanager
async def connected() -> AsyncIterator[
    tuple[ClientConnection, asyncio.StreamReader, asyncio.StreamWriter]
]:
    """A router's end of a connection, and a client's."""
    server = TrafficServer(_handle, _refuse, keep_alive_s=75, max_connections=lambda: 16)
    loop = asyncio.get_running_loop()
    sockets = await loop.create_server(server, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*sockets.sockets[0].getsockname())
    try:
        await until(lambda: bool(server.connections), "a connection")
        connection = server.connections[0]
        assert isinstance(connection, ClientConnection)
        yield connection, reader, writer
    finally:
        writer.close()
        sockets.close()
        await server.shutdown(0)


async def test_what_the_socket_does_not_take_at_once_follows_in_order() -> None:
    pieces = [bytes([number]) * 100_000 for number in range(100)]
    async with connected() as (connection, reader, _):
        for piece in pieces:
            connection.write(piece)
        assert connection.writing_paused  # the kernel took only some of it
        async with asyncio.timeout(_SOON_S):
            assert await reader.readexactly(10_000_000) == b"".join(pieces)
            await until(lambda: not connection.writing_paused, "room to write")
            connection.write(b"and on")
            assert await reader.readexactly(6) == b"and on"


async def test_a_connection_that_is_lost_writes_to_nobody_else() -> None:
    async with connected() as (connection, _, writer):
        writer.close()
        await until(lambda: connection.transport is None, "the end of the connection")
        others = [one for _ in range(4) for one in socket.socketpair()]  # one gets its number
        connection.write(b"for a client that is gone")
        for one in others:
            one.setblocking(False)
            with pytest.raises(BlockingIOError):
                one.recv(1)
        for one in others:
            one.close()
