"""One client's connection: requests are parsed by httptools (llhttp) and answered in order.

aiohttp's server is not used: between the socket and the handler it needs as much CPU as the rest of the router.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from os import write
from typing import Final, Protocol, cast

from multidict import CIMultiDict

from evenkeel_router.transport import lingering
from evenkeel_router.transport.client_request import Answer, Body, Request
from evenkeel_router.transport.connection_shares import (
    NO_KEY,
    Closing,
    ConnectionShares,
    Yields,
    party_of,
)
from evenkeel_router.transport.known_heads import KnownHeads
from evenkeel_router.transport.request_head import (
    CrowdedOutError,
    HttpSyntaxError,
    LargeHeadError,
    check_head,
    origin_target,
)
from evenkeel_router.transport.request_parser import MAX_HEADERS, TRAILERS, RequestParser

MAX_PIPELINED: Final = 32
"""Requests that wait for the one before them; then the connection reads no more."""
MAX_MISSES: Final = 4
"""Unknown heads in a row, after which a connection's heads are not kept: its client puts an identifier into each."""
_SLICE_BYTES: Final = 16 * 1024  # bounds the requests that one read can add


class Owner(Protocol):
    """The server that a connection belongs to; `server.TrafficServer`."""

    handle: Callable[[Request], Awaitable[Answer]]
    refuse: Callable[[Request, BaseException], Answer]
    keep_alive_s: Callable[[], float]
    unread_s: Callable[[], float]
    head_timeout_s: float
    shares: ConnectionShares
    heads: KnownHeads

    def connected(self, connection: ClientConnection) -> None:
        """A client connected."""

    def disconnected(self, connection: ClientConnection) -> None:
        """A connection closed."""


class ClientConnection(RequestParser):
    """Parses requests, runs one handler at a time, and writes answers."""

    __slots__ = (
        "_closing", "_crowded_out", "_current", "_drained", "_fd", "_idle_since_s", "_idle_timer", "_loop",
        "_misses", "_owner", "_paused_for_body", "_pipelined", "_slow_head_s", "_unparsed", "_yields_since_s", "holder", "on_full", "opened_s",
        "peer", "task", "transport", "writing_paused",
    )  # fmt: skip

    def __init__(self, owner: Owner) -> None:
        super().__init__()
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.peer = ""
        """The client's address; empty if its socket has none."""
        self.opened_s = self._loop.time()
        self.holder = ""
        self._yields_since_s: float | None = None
        """Since when the connection may be closed for others although it has a request; None: it may not."""
        self._crowded_out = False
        self._current: Request | None = None
        """The request that is being answered."""
        self.task: asyncio.Task[None] | None = None
        """Task that answers the current request."""
        self._pipelined: deque[Request] = deque()
        self._unparsed = b""
        """Bytes behind `MAX_PIPELINED` requests."""
        self._misses = 0
        """Requests in a row whose heads were not known."""
        self._paused_for_body = False
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
        if self._unparsed:
            self._unparsed += data
        elif len(data) <= _SLICE_BYTES and len(self._pipelined) < MAX_PIPELINED:  # the usual case
            if self._in_head or self._arriving is not None:
                self._feed(data)
            else:
                self._begin(data)
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
        """Close once everything written has been sent, or after the time for a client to read it."""
        self._fd = None
        self._reading_ended = True
        if self.transport is not None:
            if self.transport.get_write_buffer_size():
                if self._crowded_out:
                    self.transport.abort()
                    return
                if self._idle_timer is not None:
                    self._idle_timer.cancel()
                self._idle_timer = self._loop.call_later(self._owner.unread_s(), self.abort)
            self.transport.close()

    @property
    def known(self) -> bool:
        """Whether the last request had a valid identity."""
        return party_of(self.holder) != NO_KEY

    def may_yield(self, yields: bool) -> None:
        """Whether the connection may be closed for others from now on, although it has a request: it waits for its sender, or is not admitted."""
        self._yields_since_s = self._loop.time() if yields else None

    @property
    def yields(self) -> Yields | None:
        """Since when the connection may be closed for others (`connection_shares`)."""
        if self._current is None:
            return False, self._idle_since_s
        return None if self._yields_since_s is None else (True, self._yields_since_s)

    def make_room(self) -> None:
        """Close for others: this one's holder has most. A body that arrives is refused."""
        self._crowded_out = self._closing = True
        if self._current is None:
            self.close()
        elif self._current.body.complete:  # the client does not read
            self.abort()
        else:
            self._current.body.fail(CrowdedOutError())

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
            if self._in_head:
                self._owner.shares.closing(self, Closing.SLOW_HEAD)
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

    def _begin(self, data: bytes) -> None:
        """A request begins, probably with a head that came before."""
        if self._reading_ended:
            return
        heads = self._owner.heads
        if (found := heads.find(data)) is not None:
            known, headers, body = found
            self._misses = 0
            whole = Body(self, [body], complete=True)
            self._accept(Request(self, whole, known.method, known.target, headers, keep_alive=True))
            return
        self._feed(data)
        self._misses += 1
        if self._misses > MAX_MISSES or self._reading_ended:
            return
        request = self._pipelined[-1] if self._pipelined else self._current
        if request is not None and request.chunks_allowed:
            heads.keep(data, method=request.method, target=request.target, headers=request.headers)

    def on_headers_complete(self) -> None:
        if self._resumes_body:
            return
        if (self._is_long or len(self._headers) > MAX_HEADERS) and self._has_large_head():
            raise LargeHeadError
        parser, headers = self._parser, CIMultiDict(self._headers)
        version = parser.get_http_version()
        check_head(version, headers)
        self._in_head = False
        self._headers = TRAILERS
        self._head_bytes = 0
        method = parser.get_method().decode()
        target = self._target.decode("utf-8", "surrogateescape")
        request = self._arriving = Request(
            self,
            Body(self),
            method,
            target if target.startswith("/") else origin_target(method, target),
            headers,
            parser.should_keep_alive(),
            version == "1.1",
        )
        self._accept(request)

    # Answering.

    def _accept_unreadable(self, error: HttpSyntaxError) -> None:
        self._accept(Request.unreadable(self, error))

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
                unread = request.error is not None or not await self._read_rest(request)
            if self.writing_paused:
                await self._until_read()
        finally:
            self.task = self._current = None
            if unread and not self._crowded_out:
                self._close_slowly()
            else:
                self._go_on(keep_alive)

    async def _read_rest(self, request: Request) -> bool:
        """Whether the rest of the body of an answered request arrived. It is not awaited without a valid identity."""
        if not self.known or request.body.failed:
            return False
        self.may_yield(True)
        arrived = await lingering.read_rest(request)
        self.may_yield(False)
        return arrived

    async def _until_read(self) -> None:
        """Wait until the client has read most of its answer. It is disconnected if it reads nothing for too long."""
        self.may_yield(True)
        while self.writing_paused and (transport := self.transport) is not None:
            unread_bytes = transport.get_write_buffer_size()
            try:
                async with asyncio.timeout(self._owner.unread_s()):
                    await self.drain()
            except TimeoutError:
                if transport.get_write_buffer_size() >= unread_bytes:
                    self._owner.shares.closing(self, Closing.NOT_READING)
                    self.abort()
                    return
        self.may_yield(False)

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
