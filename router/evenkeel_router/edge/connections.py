"""Replicas over HTTP/1.1: pooled connections, one small protocol over httptools (llhttp).

Place in the flow: behind the `Upstream` seam. Why not `aiohttp.ClientSession`: it took more than half of
the CPU of a proxied request (docs/benchmarks.md), for cookies, redirects, proxies and a task wake-up per
piece of body that a router has no use for. Here `data_received` hands the bytes of a stream straight to
the pipeline's callback.

The surprising thing: a connection out of the pool may have been closed by the replica a moment ago (SGLang
closes idle ones after 5 s). If it breaks before the first byte of an answer, the request goes out once
more to the same replica on a fresh connection, and only then counts as failed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import lru_cache
from typing import Final, cast
from urllib.parse import urlsplit

import httptools
from evenkeel_contract.routerconfig import ReplicaConfig

from evenkeel_router.edge.upstream import (
    BrokenError,
    ConnectError,
    Exchange,
    Feed,
    Outgoing,
    Reply,
    SilenceError,
    UpstreamError,
)

CONNECT_TIMEOUT_S: Final = 5.0
IDLE_LIMIT_S: Final = 4.0  # uvicorn closes idle connections after 5 s
MAX_REPLY_BYTES: Final = 64 * 1024 * 1024
MAX_HEAD_BYTES: Final = 64 * 1024
_EVENT_STREAM: Final = b"text/event-stream"


class Connections:
    """All connections to all replicas."""

    def __init__(self) -> None:
        self._idle: dict[str, deque[_Wire]] = {}  # by URL; the last one used is on the right

    async def connect(self, replica: ReplicaConfig) -> Exchange:
        """A pooled connection, or a fresh one; raises `ConnectError`."""
        idle = self._idle.get(replica.url)
        if idle:
            fresh_enough_s = asyncio.get_running_loop().time() - IDLE_LIMIT_S
            wire = idle.pop()
            if wire.idle_since_s >= fresh_enough_s:
                return _HttpExchange(self, replica, wire)
            wire.abort()  # then all the others are older still
            while idle:
                idle.pop().abort()
        return _HttpExchange(self, replica, await self.open(replica))

    async def open(self, replica: ReplicaConfig) -> _Wire:
        """A fresh connection; raises `ConnectError`."""
        url = urlsplit(replica.url)
        port = url.port or (443 if url.scheme == "https" else 80)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, wire = await loop.create_connection(
                    lambda: _Wire(self, replica.url, loop),
                    url.hostname or "",
                    port,
                    ssl=True if url.scheme == "https" else None,
                )
        except TimeoutError as error:
            message = f"no connection to {replica.name} within {CONNECT_TIMEOUT_S:g} s"
            raise ConnectError(message) from error
        except OSError as error:
            raise ConnectError(f"no connection to {replica.name}: {error}") from error
        return wire

    def close(self) -> None:
        """Close what is idle, everywhere."""
        for idle in self._idle.values():
            while idle:
                idle.pop().abort()

    def give_back(self, wire: _Wire) -> None:
        """A wire is free for another request."""
        self._idle.setdefault(wire.url, deque()).append(wire)

    def lost(self, wire: _Wire) -> None:
        """An idle wire was closed by the replica."""
        idle = self._idle.get(wire.url)
        if idle is not None and wire in idle:
            idle.remove(wire)


@lru_cache(maxsize=4096)
def _head(replica: ReplicaConfig, path: str) -> bytes:
    """The part of a request's head that is always the same."""
    lines = [f"POST {path} HTTP/1.1", f"host: {urlsplit(replica.url).netloc}"]
    lines.append("content-type: application/json")
    if replica.api_key is not None:
        lines.append(f"authorization: Bearer {replica.api_key}")
    return "".join(f"{line}\r\n" for line in lines).encode()


class _HttpExchange:
    """One request's hold of a wire."""

    __slots__ = ("_connections", "_replica", "_wire")

    def __init__(self, connections: Connections, replica: ReplicaConfig, wire: _Wire) -> None:
        self._connections = connections
        self._replica = replica
        self._wire = wire

    async def ask(self, request: Outgoing, *, silence_s: float) -> Reply:
        head = [_head(self._replica, request.path)]
        head.extend(f"{name}: {value}\r\n".encode() for name, value in request.headers)
        head.append(b"content-length: %d\r\n\r\n" % len(request.body))
        head.append(request.body)
        data = b"".join(head)
        if self._wire.reused:
            try:
                return await self._wire.ask(data, silence_s)
            except BrokenError:
                if self._wire.heard:
                    raise
            self._wire.abort()
            try:
                self._wire = await self._connections.open(self._replica)
            except ConnectError as error:  # it may have had the request: not a mere refusal
                raise BrokenError(str(error)) from error
        return await self._wire.ask(data, silence_s)

    def close(self) -> None:
        self._wire.release()


class _Wire(asyncio.Protocol):
    """One connection, and the answer that is coming in on it."""

    # Slots, here and in `replies.Stream`, keep what each event touches on few cache lines.
    __slots__ = (
        "_busy", "_closing", "_complete", "_deadline_s", "_error", "_feed", "_framed", "_head_bytes",
        "_headed", "_idle_s", "_loop", "_now", "_owner", "_parser", "_paused", "_pieces", "_size",
        "_timer", "_transport", "_type", "_waiter", "heard", "idle_since_s", "on_body", "reused",
        "status", "url",
    )  # fmt: skip

    def __init__(self, owner: Connections, url: str, loop: asyncio.AbstractEventLoop) -> None:
        self.url = url
        self.reused = False
        self.idle_since_s = 0.0
        self._owner = owner
        self._loop = loop
        self._now = loop.time
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []  # always this list:
        self.on_body = self._pieces.append  # the parser's callback, without a call of ours between
        self._parser = httptools.HttpResponseParser(self)
        self._busy = False
        self._waiter: asyncio.Future[bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_s = 0.0
        self._idle_s = 0.0
        self._error: UpstreamError | None = None
        self._closing = False  # whatever comes, not to be used again
        self._paused = False
        self._feed: Feed | None = None
        self._begin()

    def _begin(self) -> None:
        self.heard = False
        self.status = 0
        self._type = b""
        self._framed = False  # the head says where the body ends
        self._head_bytes = 0
        self._headed = False
        self._complete = False
        self._pieces.clear()
        self._size = 0

    # What the exchange and the pipeline see.

    @property
    def content_type(self) -> str:
        return self._type.decode("latin-1")

    @property
    def body(self) -> bytes | None:
        return None if self._streams() else b"".join(self._pieces)

    async def ask(self, data: bytes, silence_s: float) -> Reply:
        """Send a request; returns itself once there is something to say."""
        self._busy = True
        self._begin()
        if self._transport is None:
            raise BrokenError("the replica closed the connection")
        self._transport.write(data)
        await self._wait(silence_s)
        return self

    async def relay(self, feed: Feed, *, idle_s: float) -> bool:
        """Hand over what came and what comes."""
        self._feed = feed
        self._idle_s = idle_s
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        try:
            if self._pieces and not self._hand_over(feed):
                return False
            if self._complete:
                return True
            return await self._wait(idle_s)
        finally:
            self._feed = None

    def release(self) -> None:
        """Back to the pool if the answer is whole, closed otherwise."""
        self._disarm()
        self._pieces.clear()
        self._busy = False
        if self._complete and not self._closing and self._transport is not None:
            self.reused = True
            if self._paused:
                self._paused = False
                self._transport.resume_reading()
            self.idle_since_s = self._loop.time()
            self._owner.give_back(self)
        else:
            self.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        feed = self._feed
        if feed is None and not self._busy:  # nobody asked
            self._owner.lost(self)
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.heard = True
            if not self._complete:
                if feed is not None and self._pieces:
                    self._hand_over(feed)  # what came before the garbage
                self._fail(BrokenError(f"the replica's answer is not HTTP: {error}"))
                return
            self._closing = True  # the answer is whole; what follows it is nobody's
        if feed is None:
            self._gather(len(data))
            return
        # Once for each event of each stream, and cold each time: every call that is not made here counts.
        self._deadline_s = self._now() + self._idle_s
        pieces = self._pieces
        if pieces:
            body = pieces.pop() if len(pieces) == 1 else self._joined()
            if not feed(body, self._complete):
                self._pause()
                self._resolve(False)
                return
        if self._complete:
            self._resolve(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self._busy:
            self._owner.lost(self)
        elif self._headed and not self._framed and exc is None:
            self._complete = True  # the end of the connection was the end of the body
            self._closing = True
            self._resolve(True)
        elif not self._complete:
            when = "in the middle of" if self.heard else "before"
            self._fail(BrokenError(f"the replica closed the connection {when} its answer"))

    # httptools callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-type":
            self._type = value.lower()
        elif name in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._headed = True

    def on_message_complete(self) -> None:
        if self.status < 200:  # 100 Continue and the like: the answer is still to come
            self._begin()
            return
        self._complete = True
        if not self._parser.should_keep_alive():
            self._closing = True

    # Inside.

    def _streams(self) -> bool:
        return self.status == 200 and self._type.startswith(_EVENT_STREAM)

    def _gather(self, size_bytes: int) -> None:
        """Bytes came that nobody reads as they come: decide whether there is something to say."""
        self.heard = True
        if self._headed:
            self._size += size_bytes  # with its framing, which makes no difference to a bound
        else:
            self._head_bytes += size_bytes
        if self._complete or (self._headed and self._pieces and self._streams()):
            if self._waiter is None:
                self._pause()  # nobody reads just now
            self._resolve(True)
        elif self._size > MAX_REPLY_BYTES or self._head_bytes > MAX_HEAD_BYTES:
            self._fail(BrokenError("the replica's answer is too large"))

    def _hand_over(self, feed: Feed) -> bool:
        """Give the collected bytes to the reader. False: it wants no more; the replica is not read."""
        if feed(self._joined(), self._complete):
            return True
        self._pause()
        return False

    def _joined(self) -> bytes:
        """The collected bytes, which are then collected no more."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data

    def _pause(self) -> None:
        """Stop reading the replica until the next `relay`."""
        if self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    async def _wait(self, limit_s: float) -> bool:
        if self._waiter is not None:
            raise RuntimeError("a wire serves one request at a time")
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        self._deadline_s = self._loop.time() + limit_s
        if self._timer is not None and self._timer.when() > self._deadline_s:
            self._disarm()  # left from a longer wait; an earlier one looks, and sleeps on
        if self._timer is None:
            self._timer = self._loop.call_later(limit_s, self._tick)
        try:
            return await self._waiter
        finally:
            self._waiter = None

    def _tick(self) -> None:
        """One timer for a whole stream: it looks at when something last came, and sleeps on."""
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        left_s = self._deadline_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._tick)
        else:
            self._fail(SilenceError("the replica did not answer in time"))

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _resolve(self, result: bool) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(result)

    def _fail(self, error: UpstreamError) -> None:
        self._error = error
        self._closing = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
        self.abort()
