"""Replicas that misbehave, over raw sockets: a fake at the network seam, where a real one would not do it."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from evenkeel_contract.routerconfig import ReplicaConfig

OK = b'{"choices":[{"text":"ok"}],"usage":{"prompt_tokens":5,"completion_tokens":1}}'
EVENT = b'data: {"choices":[{"text":"a"}],"usage":null}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"


@dataclass
class Asked:
    """One request as the replica got it, and the way to answer it."""

    path: str
    headers: dict[str, str]
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(
        self, body: bytes = OK, *, status: str = "200 OK", kind: str = "application/json"
    ) -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        await self.send(head.encode() + body)

    async def begin_stream(self, *chunks: bytes) -> None:
        await self.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for chunk in chunks:
            await self.chunk(chunk)

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def whole_stream(self) -> None:
        await self.begin_stream(EVENT, EVENT, USAGE, DONE)
        await self.send(b"0\r\n\r\n")

    async def hang(self) -> None:
        """Say nothing until the router goes away."""
        while await self.reader.read(65536):
            pass

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """RST instead of FIN."""
        raw: socket.socket = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Behaviour = Callable[[Asked], Awaitable[None]]


@dataclass
class Nasty:
    """One replica: `/ready` is answered, every POST is left to its behaviour."""

    behave: Behaviour
    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    gone: int = 0
    """Requests whose connection the router closed before the behaviour was through."""
    ready: bool = True
    serving: dict[asyncio.Task[None], asyncio.StreamWriter] = field(default_factory=dict)

    def config(self, name: str) -> ReplicaConfig:
        return ReplicaConfig(name=name, url=f"http://127.0.0.1:{self.port}", api_key="sk-replica")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        serving = asyncio.current_task()
        assert serving is not None
        self.serving[serving] = writer
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while not writer.is_closing():
                await self._one(reader, writer)
        writer.close()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)  # what was closed or reset is gone in the next round of the loop
        del self.serving[serving]

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        request_line, *lines = head.split("\r\n")
        pairs = [line.split(": ", 1) for line in lines if line]
        headers = {name.lower(): value for name, value in pairs}
        method, path, _ = request_line.split(" ")
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        asked = Asked(path, headers, body, reader, writer)
        if method == "GET":
            await asked.answer(b"", status="200 OK" if self.ready else "503 Not Ready")
            return
        self.asked.append(asked)
        try:
            await self.behave(asked)
        except ConnectionError:
            self.gone += 1
            raise


@asynccontextmanager
async def nasty(behave: Behaviour, port: int = 0) -> AsyncIterator[Nasty]:
    """A misbehaving replica."""
    replica = Nasty(behave)
    server = await asyncio.start_server(replica.serve, "127.0.0.1", port)
    replica.port = server.sockets[0].getsockname()[1]
    try:
        yield replica
    finally:
        server.close()
        tasks = list(replica.serving)
        for task, writer in list(replica.serving.items()):
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def fine(asked: Asked) -> None:
    """What a replica should do."""
    if b'"stream":true' in asked.body.replace(b" ", b""):
        await asked.whole_stream()
    else:
        await asked.answer()
