"""One connection to a replica over HTTP/1.1: a small protocol over httptools (llhttp).

Place in the flow: pool → **wire** → pipeline. What comes for a request that does not stream is collected; the
bytes of a stream are handed over as they come.

The surprising thing: most chunks of a stream never see the parser. Between two chunks, `splice` lets one that
is all that was read, and in which `passes` sees an event that needs no look inside, go on to the client as it
is, framing and all. The parser, which knows nothing of it, still stands between two chunks.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol, cast

import httptools

from evenkeel_router.transport.upstream import (
    BrokenError,
    Feed,
    Passes,
    RelocatedError,
    Reply,
    SilenceError,
    Sink,
    UnansweredError,
    UpstreamError,
)

MAX_REPLY_BYTES: Final = 64 * 1024 * 1024
MAX_HEAD_BYTES: Final = 64 * 1024
LOOK_S: Final = 0.25
"""How often silent wires are looked for: a limit may pass by twice as much."""
_EVENT_STREAM: Final = b"text/event-stream"


class _Nobody:
    """A client that is not there."""

    def write(self, data: bytes) -> None:
        """Nothing."""


_NOBODY: Final = _Nobody()


def _nothing(_: bytes) -> bool:
    """Passes no chunk."""
    return False


class Owner(Protocol):
    """The pool, as a wire sees it."""

    def give_back(self, wire: ReplicaConnection) -> None:
        """A wire is free for another request."""

    def lost(self, wire: ReplicaConnection) -> None:
        """An idle wire was closed by the replica."""

    def closed(self, wire: ReplicaConnection) -> None:
        """A wire was closed, by whomever; may be said twice."""


class Patience:
    """One timer for all wires that wait: a timer for each event of each stream would be seen in its cost."""

    def __init__(self) -> None:
        self._wires: set[ReplicaConnection] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, wire: ReplicaConnection) -> None:
        """A wire has a request."""
        self._wires.add(wire)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def end(self, wire: ReplicaConnection) -> None:
        """It has none any more."""
        self._wires.discard(wire)

    def _look(self) -> None:
        self._timer = None
        if self._wires:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(LOOK_S, self._look)
            now_s = loop.time()
            for wire in self._wires:
                wire.look(now_s)


class ReplicaConnection(asyncio.Protocol):
    """One connection, and the answer that is coming in on it."""

    # Slots, here and in what a chunk goes through, keep what each event touches on few cache lines.
    __slots__ = (
        "_between", "_busy", "_client", "_closing", "_complete", "_deadline_s", "_error", "_feed",
        "_framed", "_head_bytes", "_headed", "_held", "_limit_s", "_loop", "_owner", "_parser",
        "_passes", "_patience", "_paused", "_pieces", "_size", "_stirred", "_transport", "_type",
        "_waiter", "heard", "idle_since_s", "on_body", "reused", "status", "url",
    )  # fmt: skip

    def __init__(self, owner: Owner, patience: Patience, url: str) -> None:
        self.url = url
        self.reused = False
        self.idle_since_s = 0.0
        self._owner = owner
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []  # always this list:
        self.on_body = self._pieces.append  # the parser's callback, without a call of ours between
        self._parser = httptools.HttpResponseParser(self)
        self._busy = False
        self._waiter: asyncio.Future[bool] | None = None
        self._deadline_s = 0.0
        self._limit_s = 0.0
        self._stirred = False
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
        self._held = False
        self._between = False  # two chunks, as far as the parser has come
        self._passes: Passes = _nothing
        self._client: Sink = _NOBODY

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
        self._patience.begin(self)
        waiter = self._awaited(silence_s)
        try:
            await waiter
        finally:
            self._waiter = None
        return self

    async def relay(self, feed: Feed, *, idle_s: float) -> bool:
        """Hand over what came and what comes."""
        self._held = False
        self._feed = feed
        self._resume()
        try:
            if self._pieces:
                feed(self._joined(), self._complete)
            if self._held:
                return False
            if self._complete:
                return True
            return await self._awaited(idle_s)
        finally:
            self._feed = self._waiter = None
            self._between = False

    def splice(self, passes: Passes, client: Sink) -> None:
        """From now on, whole chunks may go straight to the client."""
        self._passes = passes
        self._client = client

    def hold(self) -> None:
        """End the `relay` under way; the replica is not read until the next one."""
        self._held = True
        self._between = False
        if self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._resolve(False)

    def release(self) -> None:
        """Back to the pool if the answer is whole, closed otherwise."""
        self._patience.end(self)
        self._pieces.clear()
        self._busy = False
        self._passes, self._client = _nothing, _NOBODY  # the last client may be gone by the next
        if self._complete and not self._closing and self._transport is not None:
            self.reused = True
            self._resume()
            self.idle_since_s = self._loop.time()
            self._owner.give_back(self)
        else:
            self.abort()

    def break_off(self) -> bool:
        """Take the request back, unless something of an answer came."""
        if self._waiter is None or self._waiter.done() or self._has_answered():
            return False
        self._fail(RelocatedError("its replica drains"))
        return True

    def abort(self) -> None:
        """Close at once."""
        self._owner.closed(self)
        if self._transport is not None:
            self._transport.abort()

    def look(self, now_s: float) -> None:
        """Whether the replica has been silent for too long."""
        if self._stirred:
            self._stirred = False
            self._deadline_s = now_s + self._limit_s
        elif now_s >= self._deadline_s and self._waiter is not None:
            self._fail(SilenceError("the replica did not answer in time"))

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        # Once for each event of each stream, and cold each time: the kernel has run since the last one.
        if self._between and self._passes(data):
            self._stirred = True
            self._client.write(data)
            return
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
                    feed(self._joined(), False)  # what came before the garbage
                self._fail(BrokenError(f"the replica's answer is not HTTP: {error}"))
                return
            self._closing = True  # the answer is whole; what follows it is nobody's
        if not data.endswith(b"\n"):  # the beginning of another chunk's size
            self._between = False
        if feed is None:
            self._gather(len(data))
        else:
            self._hand_over(feed)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._owner.closed(self)
        if not self._busy:
            self._owner.lost(self)
        elif self._headed and not self._framed and exc is None:
            self._complete = True  # the end of the connection was the end of the body
            self._closing = True
            self._resolve(True)
        elif not self._complete:
            if self._has_answered():
                self._fail(
                    BrokenError("the replica closed the connection in the middle of its answer")
                )
            else:
                self._fail(UnansweredError("the replica closed the connection before its answer"))

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

    def on_chunk_header(self) -> None:
        self._between = False

    def on_chunk_complete(self) -> None:
        self._between = True

    def on_message_complete(self) -> None:
        if self.status < 200:  # 100 Continue and the like: the answer is still to come
            self._begin()
            return
        self._complete = True
        self._between = False
        if not self._parser.should_keep_alive():
            self._closing = True

    # Inside.

    def _streams(self) -> bool:
        return self.status == 200 and self._type.startswith(_EVENT_STREAM)

    def _has_answered(self) -> bool:
        """Whether more came than the head of a stream, which may come before its request is begun."""
        if self._feed is not None or self._pieces:
            return True
        return self.heard and not (self._headed and self._streams())

    def _gather(self, size_bytes: int) -> None:
        """Bytes came that nobody reads as they come: decide whether there is something to say."""
        self.heard = True
        if self._headed:
            self._size += size_bytes  # with its framing, which makes no difference to a bound
        else:
            self._head_bytes += size_bytes
        if self._complete or (self._headed and self._pieces and self._streams()):
            if self._waiter is None:
                self.hold()  # nobody reads just now
            self._resolve(True)
        elif self._size > MAX_REPLY_BYTES or self._head_bytes > MAX_HEAD_BYTES:
            self._fail(BrokenError("the replica's answer is too large"))

    def _hand_over(self, feed: Feed) -> None:
        """The body in what was just read goes to the reader."""
        self._stirred = True
        if self._pieces:
            feed(self._joined(), self._complete)
        if self._complete:
            self._resolve(True)

    def _joined(self) -> bytes:
        """The collected bytes, which are then collected no more."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data

    def _resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def _awaited(self, limit_s: float) -> asyncio.Future[bool]:
        """What `_resolve` and `_fail` answer. No coroutine: that would be two more for every request."""
        if self._waiter is not None:
            raise RuntimeError("a wire serves one request at a time")
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        self._stirred = False
        self._limit_s = limit_s
        self._deadline_s = self._loop.time() + limit_s
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
