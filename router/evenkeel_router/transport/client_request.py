"""A client's request: its head, its body as it arrives; and the answers: written at once, or a stream piece by piece.

Reading a body is bounded in size, in time, and in what all bodies together hold in memory (`compression`: compressed ones).

Writing never waits. The writer of a stream stops when the hook of `Stream.when_full` is called, and waits for `drain`
before it writes more. This bounds what the router holds for a client that does not read.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from io import BytesIO
from typing import Final, Protocol

from msgspec import Struct
from multidict import CIMultiDict, istr

from evenkeel_router.api.errors import Outcome, Refusal, invalid
from evenkeel_router.transport.body_rate import STEP_BYTES, InSteps
from evenkeel_router.transport.compression import codings, unpacked
from evenkeel_router.transport.downstream import Downstream, yielding
from evenkeel_router.transport.request_head import CrowdedOutError, HttpSyntaxError
from evenkeel_router.transport.upstream import APART_BYTES, Sink

MAX_UNREAD_BYTES: Final = 128 * 1024
"""Bytes of a body in a connection's memory, from which on the connection stops reading from its socket."""

INVALID_BODY: Final = "invalid_body"
"""The code of a body after which nothing else can be read from the connection."""

_CONTENT_LENGTH: Final = istr("Content-Length")
_CONTENT_ENCODING: Final = istr("Content-Encoding")
_EXPECT: Final = istr("Expect")
_TRANSFER_ENCODING: Final = istr("Transfer-Encoding")


class Body(Struct, eq=False):
    """The body of one request. The connection adds bytes, the handler reads them."""

    _connection: Downstream
    _pieces: list[bytes] = []
    _unread_bytes: int = 0
    _waiter: asyncio.Future[None] | None = None
    _error: HttpSyntaxError | None = None
    complete: bool = False
    """Whether all of it has arrived."""

    @property
    def failed(self) -> bool:
        """Whether the rest cannot be read, or takes too long."""
        return self._error is not None

    def read_nowait(self) -> bytes:
        """Everything that has arrived since the last read; raises `HttpSyntaxError`."""
        if self._error is not None:
            raise self._error
        data = b"".join(self._pieces)
        self._pieces.clear()
        if self._unread_bytes > MAX_UNREAD_BYTES:
            self._connection.resume_body()
        self._unread_bytes = 0
        return data

    async def read(self) -> bytes:
        """The next bytes, empty at the end; raises `HttpSyntaxError`."""
        while not (self._pieces or self.complete or self._error):
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.read_nowait()

    def __aiter__(self) -> Body:
        return self

    async def __anext__(self) -> bytes:
        if piece := await self.read():
            return piece
        raise StopAsyncIteration

    # Called by the connection.

    def add(self, data: bytes) -> None:
        """More of it arrived."""
        self._pieces.append(data)
        self._unread_bytes += len(data)
        if self._unread_bytes > MAX_UNREAD_BYTES:
            self._connection.pause_body()
        if self._waiter is not None:
            self._wake()

    def end(self) -> None:
        """All of it has arrived."""
        self.complete = True
        if self._waiter is not None:
            self._wake()

    def fail(self, error: HttpSyntaxError) -> None:
        """The rest cannot be read."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Request(Struct, eq=False):
    """The head of a request, with its body and its connection."""

    connection: Downstream
    body: Body
    method: str
    target: str
    """Path and query, as the client sent them; `*` only with OPTIONS."""
    headers: CIMultiDict[str]
    keep_alive: bool = False
    """Whether the client expects the connection to stay open."""
    chunks_allowed: bool = True
    """Whether the answer may use chunks (HTTP/1.1)."""
    error: HttpSyntaxError | None = None
    """Why the bytes are not an HTTP request; all else is empty then. None: they are."""

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    @classmethod
    def unreadable(cls, connection: Downstream, error: HttpSyntaxError) -> Request:
        """Bytes that are no request."""
        return cls(connection, Body(connection), "", "", CIMultiDict(), error=error)

    @property
    def content_length(self) -> int | None:
        """The length of the body, if the head states it."""
        length = self.headers.get(_CONTENT_LENGTH)
        return None if length is None else int(length)

    @property
    def has_body(self) -> bool:
        """Whether the head announces one."""
        return _TRANSFER_ENCODING in self.headers or bool(self.content_length)


def with_body(request: Request, body: bytes) -> None:
    """The body of a request was read, unpacked, and perhaps changed: who reads it next gets it so."""
    request.body = Body(request.connection, [body], complete=True)
    for name in (_CONTENT_ENCODING, _EXPECT):
        request.headers.popall(name, None)


class Memory(Protocol):
    """What bodies hold in memory, for one tenant."""

    def reserve(self, size_bytes: int) -> None:
        """Use some of it; raises `Refusal`."""

    def release(self, size_bytes: int) -> None:
        """Free what was reserved."""


def whole_body(request: Request, memory: Memory, limit_bytes: int) -> bytes | None:
    """The body, if it arrived with its head and is not packed, as usual. Otherwise None: `read_body` reads it.

    Its length stays reserved: release it. Raises `Refusal`.
    """
    headers = request.headers
    if not request.body.complete or _CONTENT_ENCODING in headers or _EXPECT in headers:
        return None
    body = request.body.read_nowait()
    if len(body) > limit_bytes:
        raise _too_large(limit_bytes)
    memory.reserve(len(body))
    return body


async def read_body(
    request: Request, memory: Memory, *, limit_bytes: int, timeout_s: float
) -> bytes:
    """The whole body, unpacked. Its length stays reserved: release it. Raises `Refusal`.

    `timeout_s`: time for the next `STEP_BYTES` of a body, or for its end.
    """
    headers = request.headers
    packed = codings(headers.getall(_CONTENT_ENCODING)) if _CONTENT_ENCODING in headers else ()
    if _EXPECT in headers:
        _check_expectation(request)
    body = await _read(request, memory, limit_bytes=limit_bytes, timeout_s=timeout_s)
    for _ in packed:
        whole = body
        try:
            body = await _unpack(whole, memory, limit_bytes)
        finally:
            memory.release(len(whole))
    return body


def _check_expectation(request: Request) -> None:
    """Raise `Refusal` for an expectation that no server meets (RFC 9110, section 10.1.1). HTTP/1.0 has none."""
    given = ", ".join(request.headers.getall(_EXPECT))
    if request.chunks_allowed and given.strip().lower() not in ("", "100-continue"):
        raise Refusal(
            Outcome.INVALID_REQUEST,
            f"The expectation {given[:40]!r} is not supported; leave the header Expect out.",
            code="unsupported_expectation",
            param="expect",
            status=HTTPStatus.EXPECTATION_FAILED,
        )


async def _read(request: Request, memory: Memory, *, limit_bytes: int, timeout_s: float) -> bytes:
    length = request.content_length
    if length is not None and length > limit_bytes:
        raise _too_large(limit_bytes)
    if _EXPECT in request.headers and request.chunks_allowed and not request.body.complete:
        # The client waits with its body for this, as curl does above 1 MiB.
        request.connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        with yielding(request.connection):
            async with asyncio.timeout(timeout_s) as clock:
                return await _collect(InSteps(request.body, clock, timeout_s), memory, limit_bytes)
    except TimeoutError as error:
        message = f"Fewer than {STEP_BYTES} bytes of the body arrived within {timeout_s:g} s."
        request.body.fail(HttpSyntaxError("too slow"))  # the rest is not awaited
        raise Refusal(
            Outcome.INVALID_REQUEST,
            message,
            code="body_timeout",
            status=HTTPStatus.REQUEST_TIMEOUT,
        ) from error
    except CrowdedOutError as error:
        message = (
            "The router is full, and of all tenants this one has most open connections. "
            "This one closed while its body arrived: use fewer connections."
        )
        raise Refusal(
            Outcome.RATE_LIMITED, message, code="max_connections", retry_after_s=1
        ) from error
    except HttpSyntaxError as error:
        raise invalid(
            "The body does not match the request's headers; check Content-Length or the chunks.",
            code=INVALID_BODY,
        ) from error


async def _unpack(packed: bytes, memory: Memory, limit_bytes: int) -> bytes:
    try:
        async with aclosing(unpacked(packed)) as pieces:
            return await _collect(pieces, memory, limit_bytes)
    except zlib.error as error:
        message = f"The body cannot be unpacked: {error}."
        raise invalid(message, code=INVALID_BODY) from error


async def _collect(pieces: AsyncIterator[bytes], memory: Memory, limit_bytes: int) -> bytes:
    # Its value is what was written, uncopied: a join of many megabytes would stop the loop.
    taken = BytesIO()
    taken_bytes = 0
    try:
        async for piece in pieces:
            if taken_bytes + len(piece) > limit_bytes:
                raise _too_large(limit_bytes)
            memory.reserve(len(piece))
            taken_bytes += len(piece)
            taken.write(piece)
    except BaseException:  # cancellation included: the client disconnected
        memory.release(taken_bytes)
        raise
    return taken.getvalue()


def _too_large(limit_bytes: int) -> Refusal:
    message = f"The body is larger than the limit of {limit_bytes} bytes."
    return Refusal(Outcome.TOO_LARGE, message, code="body_too_large")


class Answer(Protocol):
    """What a handler returns for a request."""

    @property
    def keep_alive(self) -> bool:
        """Whether the connection may take another request."""

    def finish(self) -> None:
        """Write what has not been written yet."""


class Aside(Protocol):
    """Answers requests of some paths, which no replica gets, and which are neither counted nor logged."""

    def serves(self, request: Request, path: str) -> bool:
        """Whether the request is one of these."""

    async def handle(self, request: Request, path: str) -> Answer:
        """The answer."""


JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream; charset=utf-8"
_LAST_CHUNK: Final = b"0\r\n\r\n"
_UNFRAMED: Final = (
    f"content-type: {EVENT_STREAM}\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n"
)
"""nginx collects answers in buffers of 8 pages unless the last header says no."""
_CHUNKED: Final = f"{_UNFRAMED}transfer-encoding: chunked\r\n"

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus
}


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    """The `Date` header, formatted once a second."""
    return f"date: {formatdate(second, usegmt=True)}\r\n"


def _head(
    status: int, fixed: str, headers: Sequence[tuple[str, str]], *, keep_alive: bool
) -> bytes:
    """`fixed`: headers that are lines already."""
    line = _STATUS_LINES.get(status) or f"HTTP/1.1 {status} Unknown\r\n"
    closing = "" if keep_alive else "connection: close\r\n"
    head = f"{line}{_date(int(time.time()))}{fixed}{closing}"
    for name, value in headers:
        head += f"{name}: {value}\r\n"
    return f"{head}\r\n".encode("latin-1")


class CompleteReply(Struct, eq=False):
    """A complete answer."""

    _request: Request
    status: int
    body: bytes
    content_type: str = JSON
    headers: Sequence[tuple[str, str]] = ()
    close: bool = False
    """Whether the connection takes no other request."""
    keep_alive: bool = False
    """Whether the connection takes another request; known once the answer is written."""

    def finish(self) -> None:
        """Write it."""
        request, body = self._request, self.body
        awaited = request.body.complete or (request.connection.known and not request.body.failed)
        self.keep_alive = keep_alive = request.keep_alive and awaited and not self.close
        fixed = f"content-type: {self.content_type}\r\ncontent-length: {len(body)}\r\n"
        head = _head(self.status, fixed, self.headers, keep_alive=keep_alive)
        if request.method == "HEAD":
            body = b""
        if len(body) < APART_BYTES:
            request.connection.write(head + body)
        else:
            request.connection.write(head)
            request.connection.write(body)


class Stream:
    """An answer of events. HTTP/1.1 gets chunks; HTTP/1.0 gets bytes until the connection ends."""

    __slots__ = ("_chunked", "_connection", "_finished", "_head", "keep_alive")

    def __init__(self, request: Request, *, headers: Sequence[tuple[str, str]] = ()) -> None:
        self._chunked = request.chunks_allowed
        self._connection = request.connection
        self.keep_alive = keep_alive = request.keep_alive and self._chunked
        self._finished = False
        fixed = _CHUNKED if self._chunked else _UNFRAMED
        self._head: bytes | None = _head(200, fixed, headers, keep_alive=keep_alive)

    @property
    def started(self) -> bool:
        """Whether anything was sent; the status is fixed from then on."""
        return self._head is None

    @property
    def gone(self) -> bool:
        """Whether the client disconnected."""
        return self._connection.gone

    def send(self, events: bytes, last: bool = False) -> None:
        """Write whole events, and with the `last` the end of the stream; nothing if the client disconnected."""
        data = b"%x\r\n%b\r\n" % (len(events), events) if self._chunked else events
        if self._head is not None:
            data, self._head = self._head + data, None
        if last and self._chunked:
            data, self._finished = data + _LAST_CHUNK, True  # one write to the socket less
        self._connection.write(data)

    @property
    def client(self) -> Sink | None:
        """Takes chunks as they are, once the stream has started; None if it has not, or cannot use chunks."""
        return self._connection if self._chunked and self.started else None

    def when_full(self, hold: Callable[[], None] | None) -> None:
        """Call `hold` when the client reads too slowly: when uvloop's 64 KiB and the kernel's buffers are full.

        Set it to None at the end of the stream, because the connection serves other requests after it.
        """
        self._connection.on_full = hold

    @property
    def full(self) -> bool:
        """Whether the client must read before more is written."""
        return self._connection.writing_paused

    async def drain(self) -> None:
        """Wait until the client has read enough."""
        await self._connection.drain()

    def finish(self) -> None:
        """The end of the stream, unless `send` wrote it."""
        if self._chunked and not self._finished:
            self._finished = True
            self._connection.write(_LAST_CHUNK)

    def abort(self) -> None:
        """Drop the client's connection with what it has not read."""
        self._connection.abort()
