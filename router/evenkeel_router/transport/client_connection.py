"""One client's connection: requests are parsed by httptools (llhttp) and answered in order.

aiohttp's server is not used: between the socket and the handler it needs as much CPU as the rest of the router.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from os import write
from typing import Final, Protocol, cast

import httptools
from multidict import CIMultiDict, istr

from evenkeel_router.transport import lingering
from evenkeel_router.transport.client_request import (
    Answer,
    Body,
    HttpSyntaxError,
    Request,
    check_head,
)

MAX_LINE_BYTES: Final = 8190  # as in Apache (`LimitRequestLine`) and aiohttp
MAX_HEADERS: Final = 128
MAX_HEAD_BYTES: Final = 128 * 1024
MAX_PIPELINED: Final = 32
"""Requests that wait for the one before them; then the connection reads no more."""
_MAX_NAMES: Final = 1024
_SLICE_BYTES: Final = 16 * 1024  # bounds the requests that one read can add


class Owner(Protocol):
    """The server that a connection belongs to; `server.TrafficServer`."""

    handle: Callable[[Request], Awaitable[Answer]]
    refuse: Callable[[Request, BaseException], Answer]
    keep_alive_s: Callable[[], float]
    head_timeout_s: float
    connections: OrderedDict[ClientConnection, None]

    def connected(self, connection: ClientConnection) -> None:
        """A client connected."""

    def disconnected(self, connection: ClientConnection) -> None:
        """A connection closed."""


class ClientConnection(asyncio.Protocol):
    """Parses requests, runs one handler at a time, and writes answers."""

    __slots__ = (
        "_arriving", "_closing", "_current", "_drained", "_fd", "_head_bytes", "_headers",
        "_idle_since_s", "_idle_timer", "_in_head", "_is_long", "_loop", "_owner", "_parser", "_paused_for_body",
        "_pipelined", "_reading_ended", "_resumes_body", "_slow_head_s", "_target", "_unparsed", "on_full", "opened_s",
        "peer", "task", "transport", "writing_paused",
    )  # fmt: skip

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.peer = ""
        """The client's address; empty if its socket has none."""
        self.opened_s = self._loop.time()
        self._parser = httptools.HttpRequestParser(self)
        self._in_head = False
        self._resumes_body = False
        self._head_bytes = 0
        self._is_long = False
        """Whether the head is so long that one of its lines may be too long. Headers of a shorter head are only
        counted, at its end."""
        self._target = b""
        self._headers: list[tuple[istr, str]] = []
        self._arriving: Request | None = None
        """The request whose body is being received."""
        self._current: Request | None = None
        """The request that is being answered."""
        self.task: asyncio.Task[None] | None = None
        """Task that answers the current request."""
        self._pipelined: deque[Request] = deque()
        self._unparsed = b""
        """Bytes behind `MAX_PIPELINED` requests."""
        self._paused_for_body = False
        self._reading_ended = False
        """Whether the last request has come: garbage, or one that closes the connection."""
        self._closing = False
        """Whether the connection closes after the current answer."""
        self._idle_since_s = 0.0
        self._slow_head_s = -1.0
        """`_idle_since_s` at the last check, if a head had begun then."""
        self._idle_timer: asyncio.TimerHandle | None = None
        self._fd: int | None = None
        """The socket, as long as it has taken everything at once."""
        self.on_full: Callable[[], None] | None = None
        """Callback for a client that reads more slowly than the router writes; None: no stream waits for it."""
        self.writing_paused = False
        self._drained: asyncio.Future[None] | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.peer = str(peer[0])
        own = transport.get_extra_info("socket")
        if own is not None and transport.get_extra_info("sslcontext") is None:
            self._fd = own.fileno()
        self._idle_since_s = self.opened_s
        self._idle_timer = self._loop.call_later(self._owner.head_timeout_s, self._check_idle)
        self._owner.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fd = None  # the number may soon belong to another socket
        self.transport = None
        self._reading_ended = True
        self._pipelined.clear()
        self._arriving = None
        del self._parser  # it refers to this object: no cycle is left behind
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self.task is not None:
            self.task.cancel()
        self._owner.disconnected(self)

    def data_received(self, data: bytes) -> None:
        if self in self._owner.connections:  # it is missing once it had to make room
            self._owner.connections.move_to_end(self)
        if self._unparsed:
            self._unparsed += data
        elif len(data) <= _SLICE_BYTES and len(self._pipelined) < MAX_PIPELINED:  # the usual case
            self._feed(data)
        else:
            self._parse(data)

    def pause_writing(self) -> None:
        self.writing_paused = True
        if self.on_full is not None:
            self.on_full()

    def resume_writing(self) -> None:
        self.writing_paused = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # Writing.

    def write(self, data: bytes | memoryview) -> None:
        """Send to the client; nothing if it has disconnected. Every write must come through here, to keep the order.

        It writes to the socket at once, as long as the kernel takes everything: uvloop's transport collects writes
        until the end of the loop's turn, which costs 0.6 µs for each event of each stream. After the first remainder
        the transport does all writing, because it reports when the client reads too slowly.
        """
        if (fd := self._fd) is not None:
            try:
                if (sent := write(fd, data)) == len(data):
                    return
            except OSError:  # full or disconnected; the transport finds out, too
                sent = 0
            # Without a copy: there may be megabytes of it.
            self._fd, data = None, memoryview(data)[sent:]
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    async def drain(self) -> None:
        """Wait until the client has read enough."""
        while self.writing_paused and self.transport is not None:
            self._drained = self._loop.create_future()
            try:
                await self._drained
            finally:
                self._drained = None

    @property
    def gone(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.transport is None or self.transport.is_closing()

    def abort(self) -> None:
        """Close at once and drop what the client has not read."""
        self._fd = None
        if self.transport is not None:
            self.transport.abort()

    def close(self) -> None:
        """Close once everything written has been sent."""
        self._fd = None
        self._reading_ended = True
        if self.transport is not None:
            self.transport.close()

    @property
    def idle(self) -> bool:
        """Whether no request is being answered. Half a request head counts as none."""
        return self._current is None

    def close_when_idle(self) -> None:
        """Take no more requests."""
        self._closing = True
        if self.idle:
            self.close()

    async def end(self, timeout_s: float) -> None:
        """Give the current request some time, then cancel it, and close."""
        if self.task is not None:
            await asyncio.wait([self.task], timeout=timeout_s)
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task], timeout=timeout_s)
        self.close()

    def _check_idle(self) -> None:
        """Close if the client has sent no whole head for too long. Looks once in each time for a head."""
        now_s, head_s = self._loop.time(), self._owner.head_timeout_s
        is_new = self._idle_since_s == self.opened_s
        limit_s = head_s if is_new else self._owner.keep_alive_s()
        due_s = self._idle_since_s + limit_s if self.idle else now_s + head_s
        is_slow = self.idle and self._in_head and self._slow_head_s == self._idle_since_s
        if due_s <= now_s or is_slow:
            self.close()
            return
        self._slow_head_s = self._idle_since_s if self.idle and self._in_head else -1.0
        self._idle_timer = self._loop.call_at(min(due_s, now_s + head_s), self._check_idle)

    # Reading.

    def pause_body(self) -> None:
        """Stop reading until the handler has read the body."""
        self._paused_for_body = True
        self._update_reading()

    def resume_body(self) -> None:
        """The handler has read the body."""
        self._paused_for_body = False
        self._update_reading()

    def _update_reading(self) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        if self._paused_for_body or self._unparsed:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _parse(self, data: bytes) -> None:
        for start in range(0, len(data), _SLICE_BYTES):
            if len(self._pipelined) >= MAX_PIPELINED:
                self._unparsed = data[start:]
                self._update_reading()
                return
            self._feed(data[start : start + _SLICE_BYTES])

    def _feed(self, data: bytes) -> None:
        if self._reading_ended:
            return
        self._is_long = self._head_bytes + len(data) > MAX_LINE_BYTES
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            own = error.__context__
            self._fail(own if isinstance(own, HttpSyntaxError) else HttpSyntaxError(str(error)))
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._fail(HttpSyntaxError("the head is too large"))

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Go on with HTTP/1.1: clients that offer HTTP/2 send their body all the same.

        llhttp stops behind the head of such a request, so another parser reads the body, behind a head of ours.
        """
        request = self._arriving
        if request is not None:
            self._parser = httptools.HttpRequestParser(self)
            self._resumes_body = True
            length = request.content_length
            framing = (
                "transfer-encoding: chunked" if length is None else f"content-length: {length}"
            )
            self._parser.feed_data(f"POST / HTTP/1.1\r\n{framing}\r\n\r\n".encode())
            self._resumes_body = False
        if rest:
            self._feed(rest)

    def _fail(self, error: HttpSyntaxError) -> None:
        """What follows cannot be read: it is the body of a request, or not a request at all."""
        if self._reading_ended:
            return
        self._reading_ended = True
        if self._arriving is not None:
            self._arriving.body.fail(error)
        else:
            self._accept(Request.unreadable(self, error))

    # httptools callbacks

    def on_message_begin(self) -> None:
        if not self._resumes_body:
            self._in_head = True
            self._target = b""
            self._headers = []

    def on_url(self, part: bytes) -> None:
        self._target += part
        if len(self._target) > MAX_LINE_BYTES:
            raise HttpSyntaxError("the request line is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:  # a trailer
            return
        if self._is_long and (
            len(name) + len(value) > MAX_LINE_BYTES or len(self._headers) >= MAX_HEADERS
        ):
            raise HttpSyntaxError("a header is too long, or there are too many")
        self._headers.append(
            (
                _NAMES.get(name) or _name(name),
                value.rstrip(b" \t").decode("utf-8", "surrogateescape"),
            )
        )

    def on_headers_complete(self) -> None:
        if self._resumes_body:
            return
        if len(self._headers) > MAX_HEADERS:
            raise HttpSyntaxError("a header is too long, or there are too many")
        parser, headers = self._parser, CIMultiDict(self._headers)
        version = parser.get_http_version()
        check_head(version, headers)
        self._in_head = False
        self._head_bytes = 0
        request = self._arriving = Request(
            self,
            Body(self),
            parser.get_method().decode(),
            self._target.decode("utf-8", "surrogateescape"),
            headers,
            parser.should_keep_alive(),
            version == "1.1",
        )
        self._accept(request)

    def on_body(self, data: bytes) -> None:
        if self._arriving is not None:
            self._arriving.body.add(data)

    def on_message_complete(self) -> None:
        request = self._arriving
        if request is None or (self._parser.should_upgrade() and request.has_body):
            return
        self._arriving = None
        request.body.end()
        if not request.keep_alive:
            self._reading_ended = True

    # Answering.

    def _accept(self, request: Request) -> None:
        if self._closing:
            return
        if self._current is None:
            self._start(request)
        else:
            self._pipelined.append(request)

    def _start(self, request: Request) -> None:
        self._current = request
        # With a name, because `create_task` formats one for each task.
        self.task = asyncio.Task(self._serve(request), loop=self._loop, name="request")

    async def _serve(self, request: Request) -> None:
        keep_alive = unread = False
        try:
            if request.error is not None:
                answer = self._owner.refuse(request, request.error)
            else:
                try:
                    answer = await self._owner.handle(request)
                except Exception as fault:  # noqa: BLE001 - `refuse` logs it
                    answer = self._owner.refuse(request, fault)
            answer.finish()
            keep_alive = answer.keep_alive
            if not request.body.complete:
                unread = request.error is not None or not await lingering.read_rest(request)
        finally:
            self.task = self._current = None
            if unread:
                self._close_slowly()
            else:
                self._go_on(keep_alive)

    def _close_slowly(self) -> None:
        """End the answers, and read and drop for `LINGER_IDLE_S` what the client still sends; then close."""
        transport = self.transport
        if transport is None or not transport.can_write_eof():
            self.close()
            return
        self._fd = None
        self._reading_ended = True
        self._pipelined.clear()
        self._unparsed = b""
        self.resume_body()
        transport.write_eof()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = self._loop.call_later(lingering.LINGER_IDLE_S, self.close)

    def _go_on(self, keep_alive: bool) -> None:
        if not keep_alive or self._closing:
            self.close()
            return
        self._idle_since_s = self._loop.time()
        if self._pipelined:
            self._start(self._pipelined.popleft())
        # Half: otherwise reading would stop and go on with each request.
        if self._unparsed and len(self._pipelined) <= MAX_PIPELINED // 2:
            data, self._unparsed = self._unparsed, b""
            self._parse(data)
            self._update_reading()


_NAMES: Final[dict[bytes, istr]] = {}
"""Names of headers. Clients send the same few names again and again."""


def _name(name: bytes) -> istr:
    """A name that is not in `_NAMES`, or was not."""
    if len(_NAMES) >= _MAX_NAMES:
        _NAMES.clear()  # clients choose the names: the table must not grow without end
    known = _NAMES[name] = istr(name.decode("latin-1"))
    return known
