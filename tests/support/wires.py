"""A wire without a socket: what a replica sends, read by read, and what its client gets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from evenkeel_router.api.openai import EventScan
from evenkeel_router.transport.replica_connection import ReplicaConnection
from evenkeel_router.transport.silence import SilenceTimer
from evenkeel_router.transport.upstream import Reply

_T = TypeVar("_T")
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"


def framed(data: bytes) -> bytes:
    """One chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def unframed(chunks: bytes) -> bytes:
    """The body in whole chunks."""
    body = b""
    while chunks:
        size, _, chunks = chunks.partition(b"\r\n")
        length = int(size, 16)
        assert chunks[length : length + 2] == b"\r\n"
        body, chunks = body + chunks[:length], chunks[length + 2 :]
    return body


class Line(asyncio.Transport):
    """A transport that keeps what is written, and whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.reading = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        return None


class _Pool:
    def give_back(self, connection: ReplicaConnection) -> None:
        return None

    def lost(self, connection: ReplicaConnection) -> None:
        return None

    def closed(self, connection: ReplicaConnection) -> None:
        return None


@dataclass
class Client:
    """A client, which holds the stream up after some of the chunks that are spliced."""

    reply: Reply
    scan: EventScan
    holds: list[bool]
    spliced: int = 0
    transport: Line = field(default_factory=Line)

    def feed(self, data: bytes, last: bool) -> None:
        events = self.scan.feed(data)
        if events:
            self.transport.write(framed(events))
            self.reply.splice(self._passes, self)
        if self.scan.broken is not None:
            self.reply.hold()

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def _passes(self, chunk: bytes) -> bool:
        passed = self.scan.passes(chunk)
        self.spliced += passed
        if passed and self.holds and self.holds.pop():
            self.reply.hold()
        return passed


class Wire:
    """A connection to a replica, which answers read by read."""

    def __init__(self) -> None:
        self.replica = Line()
        self.connection = ReplicaConnection(_Pool(), SilenceTimer(), "http://replica")
        self.connection.connection_made(self.replica)

    async def stream(self, reads: Iterable[bytes], holds: Iterable[bool] = ()) -> Client:
        """A client whose stream is over, after these reads from its replica."""
        coming, wire = iter(reads), self.connection

        async def reading(waiting: asyncio.Future[_T]) -> _T:
            while True:
                for _ in range(4):  # whoever is woken by a read is through before the next one
                    await asyncio.sleep(0)
                if waiting.done():
                    return await waiting
                piece = next(coming, None) if self.replica.reading else None
                if piece is not None:
                    wire.data_received(piece)

        await reading(wire.send(b"POST / HTTP/1.1\r\n\r\n", 5.0))
        wire.no_longer_awaited()
        client = Client(wire, EventScan(drops_usage=False), list(holds))
        ended = False
        while not ended and client.scan.broken is None:
            ended = await reading(asyncio.ensure_future(wire.relay(client.feed, idle_s=5.0)))
        wire.release()
        client.scan.close()
        return client


async def streamed(reads: Iterable[bytes], holds: Iterable[bool] = ()) -> Client:
    """A client whose stream is over, on a connection of its own."""
    return await Wire().stream(reads, holds)
