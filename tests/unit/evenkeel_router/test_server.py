"""A client's connection: what is sent goes to the socket at once, in order, and nowhere once it is lost."""

from __future__ import annotations

import ast
import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import evenkeel_router
import pytest
from evenkeel_router.transport import lingering
from evenkeel_router.transport.client_connection import ClientConnection
from evenkeel_router.transport.client_request import Answer, CompleteReply, Request
from evenkeel_router.transport.connection_shares import ConnectionShares
from evenkeel_router.transport.server import TrafficServer

from tests.support.routers import until

_SOON_S = 30.0

Handle = Callable[[Request], Awaitable[Answer]]


async def _handle(request: Request) -> Answer:
    raise AssertionError("no request is sent")


def _refuse(request: Request, error: BaseException) -> Answer:
    raise AssertionError("no request is sent")


@asynccontextmanager
async def connected() -> AsyncIterator[
    tuple[ClientConnection, asyncio.StreamReader, asyncio.StreamWriter]
]:
    """A router's end of a connection, and a client's."""
    server = TrafficServer(
        _handle,
        _refuse,
        keep_alive_s=lambda: 620,
        unread_s=lambda: 300,
        head_timeout_s=60,
        shares=ConnectionShares(lambda: 16),
    )
    loop = asyncio.get_running_loop()
    sockets = await loop.create_server(server, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*sockets.sockets[0].getsockname())
    try:
        await until(lambda: bool(server.connections), "a connection")
        connection = next(iter(server.connections))
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


async def test_a_lost_connection_does_not_write_to_another_socket() -> None:
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


@asynccontextmanager
async def served(
    handle: Handle | None = None, **limits: Any
) -> AsyncIterator[tuple[TrafficServer, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A server that answers with what it received, and a client's connection to it."""

    async def echo(request: Request) -> Answer:
        body = b""
        while piece := await request.body.read():
            body += piece
        return CompleteReply(request, status=200, body=request.target.encode() + b" " + body)

    def refuse(request: Request, error: BaseException) -> Answer:
        return CompleteReply(request, status=400, body=str(error).encode(), close=True)

    given: dict[str, Any] = {
        "keep_alive_s": lambda: 620,
        "unread_s": lambda: 300,
        "head_timeout_s": 60,
        "shares": ConnectionShares(lambda: 16),
    }

    async def identified(request: Request) -> Answer:
        request.connection.holder = "ns/tenant/client"
        return await (handle or echo)(request)

    server = TrafficServer(identified, refuse, **(given | limits))
    sockets = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*sockets.sockets[0].getsockname())
    try:
        yield server, reader, writer
    finally:
        writer.close()
        sockets.close()
        await server.shutdown(0)


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    async with asyncio.timeout(_SOON_S):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        return int(head.split(b" ")[1]), await reader.readexactly(length)


def request_of(target: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"POST {target} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n" + body


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_requests_are_the_same_however_their_bytes_are_cut(size: int) -> None:
    chunked = b"POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunked += b"3;a=b\r\nabc\r\n2\r\nde\r\n0\r\nX-Trailer: t\r\n\r\n"
    data = request_of("/a") + chunked + request_of("/b?q=1", b"body", "X-Empty:", "X: y \t ")
    async with served() as (_, reader, writer):
        for start in range(0, len(data), size):
            writer.write(data[start : start + size])
            await writer.drain()
            await asyncio.sleep(0)
        assert [await answer_of(reader) for _ in range(3)] == [
            (200, b"/a "),
            (200, b"/c abcde"),
            (200, b"/b?q=1 body"),
        ]


@pytest.mark.parametrize("framing", ["Content-Length: 4", "Transfer-Encoding: chunked"])
async def test_an_offer_to_upgrade_is_ignored_and_its_body_is_read(framing: str) -> None:
    """As Java's client and `curl --http2` send their first request."""
    body = b"body" if "Length" in framing else b"4\r\nbody\r\n0\r\n\r\n"
    head = (
        f"POST /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n{framing}\r\n\r\n"
    )
    offer = b"GET /b HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    async with served() as (_, reader, writer):
        for cut in (0, 3):
            writer.write(head.encode() + body[:cut])
            await asyncio.sleep(0.01)
            writer.write(body[cut:] + offer + request_of("/c"))
            assert [(await answer_of(reader))[1] for _ in range(3)] == [b"/a body", b"/b ", b"/c "]


async def test_few_requests_wait_however_many_are_sent() -> None:
    gate, waiting = asyncio.Event(), 0

    async def handle(request: Request) -> Answer:
        nonlocal waiting
        assert isinstance(request.connection, ClientConnection)
        waiting = max(waiting, len(request.connection._pipelined))
        await gate.wait()
        return CompleteReply(request, status=200, body=request.target.encode())

    count = 20_000
    async with served(handle) as (_, reader, writer):
        for number in range(count):
            writer.write(request_of(f"/{number}"))
        await asyncio.sleep(0.05)
        gate.set()
        for number in range(count):
            assert (await answer_of(reader))[1] == f"/{number}".encode()
    assert 0 < waiting < 1000


async def test_a_body_that_is_not_read_stays_with_the_client() -> None:
    read = asyncio.Event()

    async def handle(request: Request) -> Answer:
        await read.wait()
        size = 0
        while piece := await request.body.read():
            assert len(piece) < 1_000_000
            size += len(piece)
        return CompleteReply(request, status=200, body=b"%d" % size)

    size = 50_000_000
    async with served(handle) as (_, reader, writer):
        writer.write(request_of("/", bytes(size)))
        await asyncio.sleep(0.05)
        assert writer.transport.get_write_buffer_size() > size // 2
        read.set()
        assert await answer_of(reader) == (200, b"%d" % size)


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n\r\n",  # no Host
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/2.0\r\nHost: x\r\n\r\n",
        b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 200 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 10_000_000,
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -2\r\n\r\n{}",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",  # folded
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
    ],
)
async def test_what_is_not_a_request_is_refused_and_the_connection_closes(head: bytes) -> None:
    async def handle(request: Request) -> Answer:
        raise AssertionError("it must not be served")

    async with served(handle) as (_, reader, writer):
        writer.write(head)
        async with asyncio.timeout(_SOON_S):
            await writer.drain()  # it sends everything before it reads
        assert (await answer_of(reader))[0] == 400
        async with asyncio.timeout(_SOON_S):
            assert await reader.read() == b""


async def test_a_connection_is_idle_since_its_last_answer() -> None:
    async with served() as (server, reader, writer):
        (connection,) = server.connections
        opened_s = connection._idle_since_s
        writer.write(request_of("/"))
        await answer_of(reader)
        await until(lambda: connection.idle, "the end of the request")
        assert connection._idle_since_s > opened_s


async def test_a_fault_of_a_handler_is_refused() -> None:
    async def handle(request: Request) -> Answer:
        raise ValueError("a fault")

    async with served(handle) as (_, reader, writer):
        writer.write(request_of("/"))
        assert await answer_of(reader) == (400, b"a fault")


async def test_the_rest_of_a_body_is_read_after_an_early_answer() -> None:
    async def handle(request: Request) -> Answer:
        return CompleteReply(request, status=413, body=request.target.encode())

    async with served(handle) as (_, reader, writer):
        writer.write(request_of("/large", bytes(3_000_000)) + request_of("/next"))
        assert await answer_of(reader) == (413, b"/large")
        assert await answer_of(reader) == (413, b"/next")


async def test_a_body_is_read_to_its_end_as_long_as_it_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lingering, "LINGER_IDLE_S", 0.5)

    async def handle(request: Request) -> Answer:
        return CompleteReply(request, status=413, body=b"too large")

    async with served(handle) as (_, reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n")
        for _ in range(30):
            writer.write(bytes(100_000))
            await asyncio.sleep(0.05)
        writer.write(request_of("/next"))
        for _ in range(2):
            assert await answer_of(reader) == (413, b"too large")


async def test_the_end_of_a_connection_is_part_of_the_time_for_the_rest_of_a_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for limit in ("LINGER_S", "LINGER_IDLE_S"):
        monkeypatch.setattr(lingering, limit, 3600.0)

    async def handle(request: Request) -> Answer:
        return CompleteReply(request, status=413, body=b"too large")

    async with served(handle) as (_, reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n{")
        async with asyncio.timeout(_SOON_S):
            assert await answer_of(reader) == (413, b"too large")
            assert await reader.read() == b"", "no time is left to read more"


async def test_a_client_that_stops_in_its_body_gets_its_answer_and_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lingering, "LINGER_IDLE_S", 0.1)

    async def handle(request: Request) -> Answer:
        return CompleteReply(request, status=413, body=b"too large")

    async with served(handle) as (server, reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n{")
        async with asyncio.timeout(_SOON_S):
            assert await answer_of(reader) == (413, b"too large")
            assert await reader.read() == b""
            assert server.connections  # the router's end still takes bytes
            writer.write(bytes(3_000_000))
            await writer.drain()
            writer.close()
            await until(lambda: not server.connections, "the end of the connection")


async def test_a_shutdown_lets_the_current_request_finish_and_no_other() -> None:
    gate = asyncio.Event()

    async def handle(request: Request) -> Answer:
        await gate.wait()
        return CompleteReply(request, status=200, body=b"")

    async with served(handle) as (server, reader, writer):
        writer.write(request_of("/") * 2)
        await until(lambda: bool(server.connections), "a connection")
        await until(lambda: not next(iter(server.connections)).idle, "a request")
        server.pre_shutdown()
        gate.set()
        assert await answer_of(reader) == (200, b"")
        async with asyncio.timeout(_SOON_S):
            assert await reader.read() == b""


def connections_in_memory() -> int:
    return sum(isinstance(one, ClientConnection) for one in gc.get_objects())


async def test_a_connection_that_closes_is_freed_without_the_collector() -> None:
    async with served() as (_, reader, writer):
        writer.write(request_of("/"))
        await answer_of(reader)
        assert connections_in_memory() >= 1
        gc.collect()
        gc.disable()
        try:
            writer.close()
            await until(lambda: not connections_in_memory(), "the connection to be freed")
        finally:
            gc.enable()


def test_the_router_uses_no_private_names_of_aiohttp() -> None:
    """And none at all on the path of a request: any minor version of aiohttp fits."""
    router = Path(evenkeel_router.__file__).parent
    for path in router.rglob("*.py"):
        room = path.relative_to(router).parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                if name.partition(".")[0] != "aiohttp":
                    continue
                assert not any(part.startswith("_") for part in name.split(".")), (path, name)
                assert room not in ("api", "transport", "request"), (path, name)
