"""Answers to clients: a head and a body written at once, or a stream written piece by piece.

Place in the flow: the last thing of the way. Subclasses of aiohttp's `StreamResponse` that write to the
transport themselves: aiohttp keeps the connection (parsing, keep-alive, lingering), while building its
headers and waiting for its writer cost a fifth of a proxied request.

The surprising thing: writing never waits. Whoever writes a stream must stop when `Stream.when_full` calls and
wait for `drain` before writing more, which bounds what a client that does not read can make the router hold.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion11

from evenkeel_router.transport.server import connection_of
from evenkeel_router.transport.upstream import Sink

JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream; charset=utf-8"
_LAST_CHUNK: Final = b"0\r\n\r\n"
_UNFRAMED: Final = f"content-type: {EVENT_STREAM}\r\ncache-control: no-cache\r\n"
_CHUNKED: Final = f"{_UNFRAMED}transfer-encoding: chunked\r\n"

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus
}


class _Date:
    """The `Date` header, formatted once a second."""

    second = 0
    line = ""


def _date() -> str:
    second = int(time.time())
    if second != _Date.second:
        _Date.second = second
        _Date.line = f"date: {formatdate(second, usegmt=True)}\r\n"
    return _Date.line


def _head(
    status: int, fixed: str, headers: Sequence[tuple[str, str]], *, keep_alive: bool
) -> bytes:
    """`fixed`: headers that are lines already."""
    line = _STATUS_LINES.get(status) or f"HTTP/1.1 {status} Unknown\r\n"
    closing = "" if keep_alive else "connection: close\r\n"
    head = f"{line}{_date()}{fixed}{closing}"
    for name, value in headers:
        head += f"{name}: {value}\r\n"
    return f"{head}\r\n".encode("latin-1")


class _Written(web.StreamResponse):
    """What aiohttp needs to know of an answer that is written past it."""

    __slots__ = ("_reusable",)

    def __init__(self, status: int, *, keep_alive: bool) -> None:
        super().__init__(status=status)
        self._reusable = keep_alive

    @property
    def keep_alive(self) -> bool | None:
        return self._reusable

    @property
    def prepared(self) -> bool:
        return True

    async def write_eof(self, data: bytes = b"") -> None:
        return None


class CompleteReply(_Written):
    """A complete answer."""

    def __init__(
        self,
        request: web.BaseRequest,
        *,
        status: int,
        body: bytes,
        content_type: str = JSON,
        headers: Sequence[tuple[str, str]] = (),
        close: bool = False,
    ) -> None:
        """`close`: end the connection after it, whatever the client wishes."""
        keep_alive = request.keep_alive and not close
        super().__init__(status, keep_alive=keep_alive)
        fixed = f"content-type: {content_type}\r\ncontent-length: {len(body)}\r\n"
        head = _head(status, fixed, headers, keep_alive=keep_alive)
        self._data = head if request.method == "HEAD" else head + body

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        connection_of(request).write(self._data)
        return None


class Stream(_Written):
    """An answer of events. HTTP/1.1 gets chunks; HTTP/1.0 gets bytes until the connection ends."""

    __slots__ = ("_chunked", "_finished", "_head", "_protocol", "_writer")

    def __init__(
        self, request: web.BaseRequest, *, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        self._chunked = request.version >= HttpVersion11
        keep_alive = request.keep_alive and self._chunked
        super().__init__(200, keep_alive=keep_alive)
        self._writer = request.writer
        self._protocol = connection_of(request)
        self._finished = False
        fixed = _CHUNKED if self._chunked else _UNFRAMED
        self._head: bytes | None = _head(200, fixed, headers, keep_alive=keep_alive)

    @property
    def started(self) -> bool:
        """Whether the client has been sent anything: from then on the status stands."""
        return self._head is None

    def send(self, events: bytes, last: bool = False) -> None:
        """Write whole events, and with the `last` the end of the stream. To a client that is gone: nothing."""
        if self._protocol.gone:
            return
        data = b"%x\r\n%b\r\n" % (len(events), events) if self._chunked else events
        if self._head is not None:
            data, self._head = self._head + data, None
        if last and self._chunked:
            data, self._finished = data + _LAST_CHUNK, True  # one write to the socket less
        self._protocol.write(data)

    @property
    def client(self) -> Sink | None:
        """Where chunks may be written as they are, once the stream has started; None: nowhere."""
        return self._protocol if self._chunked and self.started else None

    def when_full(self, hold: Callable[[], None] | None) -> None:
        """Have `hold` called when the client reads too slowly: beyond uvloop's 64 KiB, and what the kernel holds.

        Whoever does must take it back: the connection outlives the stream.
        """
        self._protocol.on_full = hold

    @property
    def full(self) -> bool:
        """Whether the client must read before more is written."""
        return self._protocol.writing_paused

    async def drain(self) -> None:
        """Wait until the client has read enough to go on."""
        await self._writer.drain()

    def finish(self) -> None:
        """The end of the stream, unless `send` wrote it."""
        if self._chunked and not self._finished:
            self._finished = True
            self._protocol.write(_LAST_CHUNK)

    def abort(self) -> None:
        """Drop the client's connection with what it has not read."""
        if self._protocol.transport is not None:
            self._protocol.transport.abort()

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return None
