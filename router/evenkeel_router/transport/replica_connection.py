"""One connection to a replica over HTTP/1.1, parsed by httptools (llhttp).

The answer to a request that does not stream is collected; the bytes of a stream are handed over as they arrive.

Most chunks of a stream bypass the parser. Between two chunks, `splice` passes a read on to the client as it is, if it is
exactly one chunk in which `passes` recognises an event that the router need not read. The parser does not notice: before
and after that read it is between two chunks.
"""

from __future__ import annotations

import asyncio
from io import BytesIO
from math import inf
from typing import Final, Protocol, cast

import httptools

from evenkeel_router.api.openai import MAX_ANSWER_BYTES
from evenkeel_router.transport.kernel_buffers import LARGE_BYTES, let_grow
from evenkeel_router.transport.silence import SilenceTimer
from evenkeel_router.transport.upstream import (
    APART_BYTES,
    NO_CLIENT,
    BrokenError,
    Feed,
    IsOverdue,
    OverdueError,
    Passes,
    RelocatedError,
    SilenceError,
    Sink,
    TooLargeError,
    UnansweredError,
    UpstreamError,
    never_overdue,
    pass_nothing,
)

MAX_REPLY_BYTES: Final = MAX_ANSWER_BYTES
"""Bytes of a whole answer, and so of the largest event of a stream."""
MAX_HEAD_BYTES: Final = 64 * 1024
MOST_FED: Final = 8 * 1024
"""Bytes of a stream that are read in one turn of the event loop: as many as 2,700 events, in 4 ms."""
_EVENT_STREAM: Final = "text/event-stream"


class Pool(Protocol):
    """The pool that a connection belongs to."""

    def give_back(self, connection: ReplicaConnection) -> None:
        """A connection is free for another request."""

    def lost(self, connection: ReplicaConnection) -> None:
        """The replica closed an idle connection."""

    def closed(self, connection: ReplicaConnection) -> None:
        """Either side closed the connection. May be called twice."""


class ReplicaConnection(asyncio.Protocol):
    """One connection, and the answer that arrives on it."""

    # Slots, here and in all classes that a chunk passes, keep the data of each event on few cache lines.
    __slots__ = (
        "_active", "_begun", "_between", "_busy", "_client", "_closing", "_complete", "_deadline_s", "_error",
        "_feed", "_framed", "_head_bytes", "_headed", "_held", "_is_overdue", "_limit_s", "_loop", "_parser",
        "_passes", "_paused", "_pieces", "_pool", "_sent_s", "_size", "_streams", "_timer", "_transport", "_unfed", "_waiter",
        "_whole", "answered", "content_type", "idle_since_s", "metadata", "on_body", "retry_after", "reused", "status", "url",
    )  # fmt: skip

    def __init__(self, pool: Pool, timer: SilenceTimer, url: str) -> None:
        self.url = url
        self.reused = False
        self.idle_since_s = 0.0
        self._pool = pool
        self._timer = timer
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []  # always this list, because
        self.on_body = self._pieces.append  # it is the parser's callback, which saves a call
        self._parser = httptools.HttpResponseParser(self)
        self._busy = self._active = False
        self._waiter: asyncio.Future[bool] | None = None
        self._deadline_s = self._limit_s = self._sent_s = 0.0
        self._is_overdue: IsOverdue = never_overdue
        self._error: UpstreamError | None = None
        self._unfed = b""  # read, and not parsed yet
        self._whole: BytesIO | None = None  # what is in no piece any more of a large answer
        self._closing = False  # it takes no other request
        self._paused = self._held = False  # `_held`: the reader takes no more for now
        self._feed: Feed | None = None
        self._passes: Passes = pass_nothing
        self._client: Sink = NO_CLIENT
        self._between = False  # the parser is between two chunks
        self._begin()

    def _begin(self) -> None:
        self.answered = self._begun = False  # `_begun`: a stream's first content was found
        self.status = 0
        self.content_type = self.retry_after = self.metadata = ""
        self._framed = False  # the head states where the body ends
        self._headed = self._complete = False
        self._streams = False  # the answer is a stream of events
        self._head_bytes = self._size = 0  # `_size`: in the head, as it states it

    # For the exchange and the pipeline.

    @property
    def body(self) -> bytes | None:
        if self._streams:
            return None
        whole = self._whole
        return b"".join(self._pieces) if whole is None else self._fold(whole).getvalue()

    def send(
        self, data: bytes, silence_s: float, is_overdue: IsOverdue = never_overdue
    ) -> asyncio.Future[bool]:
        """Send a request. The future is done once the answer is complete, or a stream has a first event; then `no_longer_awaited`."""
        self._busy = True
        self._begin()
        if self._transport is None:
            raise BrokenError("the replica closed the connection")
        self._transport.write(data)
        self._timer.watch(self)
        self._is_overdue = is_overdue
        waiter = self._awaited(silence_s)
        self._sent_s = self._deadline_s - silence_s
        return waiter

    def send_more(self, data: bytes | memoryview) -> None:
        """Send the rest of the request."""
        if self._transport is not None:
            self._transport.write(data)

    def no_longer_awaited(self) -> None:
        """The future of `send` is done, or its request was cancelled."""
        self._waiter = None

    async def relay(self, feed: Feed, *, idle_s: float) -> bool:
        """Hand over the bytes that arrived, and those that arrive."""
        self._held = False
        if self._size > MOST_FED and not await self._feed_all(feed):
            return False
        self._feed = feed
        self._resume()
        try:
            if self._pieces:
                feed(self._joined(), self._over)
            if self._held:
                return False
            if self._complete:
                return True
            if self._begun:
                return await self._awaited(idle_s)
            self._limit_s = idle_s  # once the stream has begun
            return await self._awaited_as_before()
        finally:
            self._feed = self._waiter = None
            self._between = False  # without `relay` no chunk may pass to the client

    async def _feed_all(self, feed: Feed) -> bool:
        """Hand over what has arrived, in parts, and read nothing meanwhile. False: the reader holds."""
        self._paused = True
        self._update_reading()
        data = self._joined()
        for at in range(0, len(data), MOST_FED):
            feed(data[at : at + MOST_FED], self._over and at + MOST_FED >= len(data))
            if self._held:
                self._pieces.insert(0, data[at + MOST_FED :])
                return False
            await asyncio.sleep(0)
        return True

    def splice(self, passes: Passes, client: Sink) -> None:
        """Let chunks go straight to the client from now on."""
        self._passes = passes
        self._client = client

    def begun(self) -> None:
        self._begun = self._active = True

    def hold(self) -> None:
        """End the running `relay`; the replica is not read until the next one."""
        self._held = True
        self._between = False
        if not self._paused:
            self._paused = True
            self._update_reading()
        self._resolve(False)

    def release(self) -> None:
        """Go back to the pool if the answer is complete, close otherwise."""
        self._timer.connections.discard(self)
        self._pieces.clear()
        self._busy = False
        # The client may disconnect before the next request, and a pooled connection keeps nothing of its last one in memory.
        self._passes, self._client, self._is_overdue = pass_nothing, NO_CLIENT, never_overdue
        self._whole = None
        if self._complete and not self._closing and not self._unfed and self._transport is not None:
            self.reused = True
            if self._paused:  # it would not notice that the replica closes it
                self._resume()
            self.idle_since_s = self._timer.active_s[self.url] = self._loop.time()
            self._pool.give_back(self)
        else:
            self.abort()

    def break_off(self) -> bool:
        """Take the request back, unless its answer began."""
        if self._waiter is None or self._waiter.done() or self._has_begun():
            return False
        self._fail(RelocatedError("the replica drains"))
        return True

    def retire(self) -> None:
        """Take no other request."""
        self._closing = True
        if not self._busy:
            self._pool.lost(self)
            self.abort()

    def abort(self) -> None:
        """Close at once."""
        self._pool.closed(self)
        if self._transport is not None:
            self._transport.abort()

    def note_activity(self, now_s: float) -> None:
        if self._active and self._begun:
            self._active = False
            self._deadline_s = now_s + self._limit_s
            self._timer.active_s[self.url] = now_s

    def check_silence(self, now_s: float) -> float:
        if self._waiter is None:
            return inf
        if now_s >= self._deadline_s:
            self._fail(SilenceError("the replica did not answer in time"))
        elif not self._begun:
            silent_s = now_s - max(self._sent_s, self._timer.active_s.get(self.url, 0.0))
            if self._is_overdue(silent_s):
                self._fail(OverdueError(f"the replica sent nothing for {silent_s:.3g} s"))
        return self._deadline_s

    def excuse(self, late_s: float, now_s: float) -> None:
        self._sent_s = min(now_s, self._sent_s + late_s)
        self._deadline_s = max(self._deadline_s, now_s + late_s)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        # Runs once for each event of each stream, with cold caches: the kernel ran in between.
        if self._between and self._passes(data):
            self._active = True
            self._client.write(data)
            return
        if len(data) > MOST_FED or self._unfed:
            data = self._put_off(data)
            if not data:
                return
        feed = self._feed
        if feed is None and not self._busy:  # no request is open
            self._pool.lost(self)
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.answered = True
            if not self._complete:
                if feed is not None and self._pieces:
                    feed(self._joined(), True)  # the bytes before the garbage
                self._fail(BrokenError(f"the replica's answer is not HTTP: {error}"))
                return
            self._closing = True  # the answer is complete; the bytes behind it are ignored
        if not data.endswith(b"\n"):  # the size of the next chunk has begun
            self._between = False
        if feed is None:
            self._gather(len(data))
        else:
            self._hand_over(feed)

    def _put_off(self, data: bytes) -> bytes:
        """What of a long read is parsed now. The rest of a stream follows in the next turns of the loop."""
        if self._unfed:
            self._unfed += data
            return b""
        if self._feed is None:
            return data
        self._unfed = data[MOST_FED:]
        self._update_reading()
        self._loop.call_soon(self._parse_more)
        return data[:MOST_FED]

    def _parse_more(self) -> None:
        if self._transport is None or not self._unfed:
            self._unfed = b""
            return
        data, rest = self._unfed[:MOST_FED], self._unfed[MOST_FED:]
        self._unfed = b""
        self.data_received(data)
        self._unfed = rest
        self._update_reading()
        if rest:
            self._loop.call_soon(self._parse_more)

    def _update_reading(self) -> None:
        """Read from the socket unless the reader holds, or has not taken what was read."""
        if self._transport is not None:
            if self._paused or self._unfed:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        del self._parser  # it refers to this object: no cycle is left behind
        self._pool.closed(self)
        if not self._busy:
            self._pool.lost(self)
        elif self._headed and not self._framed and exc is None:
            self._complete = self._closing = True  # its end was the end of the body
            self._resolve(True)
        elif not self._complete:
            if self._has_begun():
                self._fail(
                    BrokenError("the replica closed the connection in the middle of its answer")
                )
            else:
                self._fail(UnansweredError("the replica closed the connection before its answer"))

    # httptools callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-type":
            self.content_type = value.lower().decode("latin-1")
        elif name in (b"content-length", b"transfer-encoding"):
            self._framed = True
            self._size = int(value) if name == b"content-length" else 0
        elif name == b"retry-after":
            self.retry_after = value.decode("latin-1")
        elif name == b"metadata":
            self.metadata = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = status = self._parser.get_status_code()
        self._headed = True
        self._streams = status == 200 and self.content_type.startswith(_EVENT_STREAM)
        if self._size > LARGE_BYTES and not self._streams and self._transport is not None:
            let_grow(self._transport)
            self._closing = True  # with a large buffer it takes no stream
        self._size = 0

    def on_chunk_header(self) -> None:
        self._between = False

    def on_chunk_complete(self) -> None:
        self._between = True

    def on_message_complete(self) -> None:
        if self.status < 200:  # such as 100 Continue: the answer follows
            self._begin()
            return
        self._complete, self._between = True, False
        if not self._parser.should_keep_alive():
            self._closing = True

    # Internal.

    @property
    def _over(self) -> bool:
        """Whether nothing more can come."""
        return self._complete or self._error is not None

    def _has_begun(self) -> bool:
        """Whether the answer has begun: a stream with its first content, any other answer with its first byte."""
        return self._begun or (self.answered and not self._streams)

    def _gather(self, size_bytes: int) -> None:
        """Bytes arrived while no `relay` runs: decide whether `ask` can return."""
        self.answered = True
        if self._headed:
            self._size += size_bytes  # with its framing, which does not matter for a bound
            if self._size > APART_BYTES and not self._streams:
                self._whole = self._fold(self._whole or BytesIO())
        else:
            self._head_bytes += size_bytes
        if self._complete or (self._streams and self._pieces):
            if self._waiter is None:
                self.hold()  # no `relay` runs
            self._resolve(True)
        elif self._size > MAX_REPLY_BYTES:
            self._fail(TooLargeError("the replica's answer is too large"))
        elif self._head_bytes > MAX_HEAD_BYTES:
            self._fail(BrokenError("the head of the replica's answer is too large"))

    def _fold(self, whole: BytesIO) -> BytesIO:
        """Copy what has arrived of a large answer: a join at its end would stop the event loop."""
        whole.writelines(self._pieces)
        self._pieces.clear()
        return whole

    def _hand_over(self, feed: Feed) -> None:
        """Give the body bytes of the last read to the reader."""
        self._active = True
        if self._pieces:
            feed(self._joined(), self._complete)
        if self._complete:
            self._resolve(True)

    def _joined(self) -> bytes:
        """Take the collected bytes."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data

    def _resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._update_reading()

    def _awaited(self, limit_s: float) -> asyncio.Future[bool]:
        """A future for `_resolve` and `_fail`. A coroutine here would mean two more for every request."""
        if self._waiter is not None:
            raise RuntimeError("a connection serves one request at a time")
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        self._active = False
        self._limit_s = limit_s
        self._deadline_s = self._loop.time() + limit_s
        return self._waiter

    def _awaited_as_before(self) -> asyncio.Future[bool]:
        """The same as `_awaited`, until the time that was set before."""
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        return self._waiter

    def _resolve(self, result: bool) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(result)

    def _fail(self, error: UpstreamError) -> None:
        self._error = error
        self._closing = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
        self.abort()
