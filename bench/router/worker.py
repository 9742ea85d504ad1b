"""A very fast fake SGLang worker: `python -m bench.router.worker --port N`.

It answers with a fixed body after `--pace-ms`, or streams `max_tokens` events, one every `--pace-ms`. By default all running
streams get an event at each step, like the decode steps of an engine; with `--unaligned` each stream has its own clock. A late
worker waits the full pace again, so that a router cannot gain by merging events. A prompt contains `family-NN`, its shared
prefix, and `request-NNNNNN`. Every event contains the latter, so that the load generator can check the answer. A known family
counts as cached.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import uvloop

from bench.router.http1 import Body, FramingError, Head, body_of, split_head

MODEL = "bench"
MAX_EVENTS = 4096
DONE = b"data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"
_TAG = re.compile(rb"request-\d{6}")
_FAMILY = re.compile(rb"family-\d\d")
_MAX_TOKENS = re.compile(rb'"max_(?:new_|completion_)?tokens"\s*:\s*(\d+)')
_STREAM = re.compile(rb'"stream"\s*:\s*true')

_INFO = {
    "model_path": MODEL,
    "served_model_name": MODEL,
    "tokenizer_path": MODEL,
    "is_generation": True,
    "max_total_num_tokens": 1_000_000,
    "max_running_requests": 4096,
    "page_size": 1,
    "tp_size": 1,
    "dp_size": 1,
    "version": "0.5.23",
}
_LOADS = {"loads": [{"dp_rank": 0, "num_running_reqs": 0, "num_waiting_reqs": 0}]}
_GET = {
    b"/ready": {"status": "ready"},
    b"/health": {},
    b"/health_generate": {},
    b"/get_server_info": _INFO,
    b"/server_info": _INFO,
    b"/get_model_info": _INFO,
    b"/model_info": _INFO,
    b"/v1/models": {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1}]},
    b"/get_load": [_LOADS["loads"][0]],
    b"/v1/loads": _LOADS,
}
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def chunk(data: bytes) -> bytes:
    """`data` as one HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    """A whole JSON response."""
    return (
        b"HTTP/1.1 %s\r\nserver: uvicorn\r\ncontent-length: %d\r\n"
        b"content-type: application/json\r\n\r\n%s" % (status, len(body), body)
    )


@dataclass(frozen=True, slots=True)
class Ask:
    """The values that the worker reads in a request's body."""

    tag: bytes
    family: bytes
    events: int
    stream: bool
    prompt_tokens: int

    @classmethod
    def read(cls, body: bytes) -> Ask:
        """Four patterns instead of a JSON parser, because the worker must cost very little."""
        tag, family = _TAG.search(body), _FAMILY.search(body)
        events = _MAX_TOKENS.search(body)
        return cls(
            tag=tag.group() if tag else b"request-none",
            family=family.group() if family else b"",
            events=min(int(events.group(1)), MAX_EVENTS) if events else 16,
            stream=_STREAM.search(body) is not None,
            prompt_tokens=len(body) // 4,
        )


def usage_of(ask: Ask, cached_tokens: int) -> bytes:
    """The usage object of the OpenAI endpoints."""
    return (
        b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,'
        b'"prompt_tokens_details":{"cached_tokens":%d}}'
        % (ask.prompt_tokens, ask.prompt_tokens + ask.events, ask.events, cached_tokens)
    )


class Dialect:
    """The format of one endpoint's answers: the fixed parts around the variable ones."""

    def __init__(self, *, kind: bytes, delta: bytes, whole: bytes) -> None:
        start = b'{"id":"%s","object":"' + kind
        rest = b'","created":1,"model":"' + MODEL.encode() + b'","choices":[{"index":0,'
        self._event = (
            b"data: " + start + b".chunk" * (b"chat" in kind) + rest + delta + b',"logprobs":null,'
            b'"finish_reason":%s,"matched_stop":null}],"usage":null}\n\n'
        )
        self._last = (
            b"data: "
            + start
            + b".chunk" * (b"chat" in kind)
            + b'","created":1,"model":"'
            + MODEL.encode()
            + b'","choices":[],"usage":%s}\n\n'
        )
        self._whole = (
            start + rest + whole + b',"logprobs":null,"finish_reason":"length",'
            b'"matched_stop":null}],"usage":%s,"metadata":{"weight_version":"default"}}'
        )

    def event(self, ask: Ask, index: int, cached_tokens: int) -> bytes:
        """Event number `index` of `ask.events`."""
        finish = b'"length"' if index == ask.events - 1 else b"null"
        return self._event % (ask.tag, ask.tag, index, finish)

    def end(self, ask: Ask, cached_tokens: int) -> bytes:
        """The usage event and the end mark, in chunks."""
        usage = self._last % (ask.tag, usage_of(ask, cached_tokens))
        return chunk(usage) + chunk(DONE) + LAST_CHUNK

    def whole(self, ask: Ask, cached_tokens: int) -> bytes:
        """A response that is not streamed."""
        text = b" ".join([ask.tag] * min(ask.events, 64))
        return self._whole % (ask.tag, text, usage_of(ask, cached_tokens))


class GenerateDialect(Dialect):
    """SGLang's native endpoint: `meta_info` in every event, no usage event of its own."""

    def __init__(self) -> None:
        self._body = (
            b'{"text":"%s","output_ids":[],"meta_info":{"id":"%s","finish_reason":%s,'
            b'"prompt_tokens":%d,"completion_tokens":%d,"cached_tokens":%d}}'
        )

    def event(self, ask: Ask, index: int, cached_tokens: int) -> bytes:
        """Event number `index`; the last one carries the final counts."""
        last = index == ask.events - 1
        finish = b'{"type":"length","length":%d}' % ask.events if last else b"null"
        body = (ask.tag, ask.tag, finish, ask.prompt_tokens, index + 1, cached_tokens)
        return b"data: " + self._body % body + b"\n\n"

    def end(self, ask: Ask, cached_tokens: int) -> bytes:
        """The end mark, in chunks."""
        return chunk(DONE) + LAST_CHUNK

    def whole(self, ask: Ask, cached_tokens: int) -> bytes:
        """A response that is not streamed."""
        return self.event(ask, ask.events - 1, cached_tokens)[len(b"data: ") : -2]


DIALECTS: dict[bytes, Dialect] = {
    b"/v1/chat/completions": Dialect(
        kind=b"chat.completion",
        delta=b'"delta":{"role":null,"content":"%s %d"}',
        whole=b'"message":{"role":"assistant","content":"%s"}',
    ),
    b"/v1/completions": Dialect(
        kind=b"text_completion", delta=b'"text":"%s %d"', whole=b'"text":"%s"'
    ),
    b"/generate": GenerateDialect(),
}


@dataclass(slots=True)
class State:
    """State that all connections of one worker share."""

    requests: int = 0
    aborted: int = 0
    families: set[bytes] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)

    def cached(self, ask: Ask) -> int:
        """Cached tokens of a prompt: nine tenths of it if its family is known."""
        known = ask.family in self.families
        self.families.add(ask.family)
        return ask.prompt_tokens * 9 // 10 if known else 0

    def stats(self) -> bytes:
        """The answer to `/bench/stats`."""
        return json.dumps(
            {
                "requests": self.requests,
                "aborted": self.aborted,
                "unknown_paths": sorted(self.unknown),
            }
        ).encode()


Tick = Callable[[], bool]
"""Sends a stream's next event; true if more follow."""


class Pace(ABC):
    """When the running streams send."""

    def __init__(self, pace_s: float) -> None:
        self._pace_s = pace_s
        self._loop = asyncio.get_running_loop()

    def once(self, send: Callable[[], None]) -> None:
        """Call `send` a pace from now."""
        self._loop.call_later(self._pace_s, send)

    @abstractmethod
    def start(self, tick: Tick) -> None:
        """Call `tick` after each pace, until it returns that it is done."""


class Unaligned(Pace):
    """Each stream has its own clock."""

    def start(self, tick: Tick) -> None:
        """See `Pace`."""
        self._loop.call_later(self._pace_s, self._fire, tick)

    def _fire(self, tick: Tick) -> None:
        if tick():
            self.start(tick)


class Steps(Pace):
    """All streams at once, like the decode steps of an engine; a new stream waits for the next step."""

    def __init__(self, pace_s: float) -> None:
        super().__init__(pace_s)
        self._running: list[Tick] = []
        self._loop.call_later(pace_s, self._step)

    def start(self, tick: Tick) -> None:
        """See `Pace`."""
        self._running.append(tick)

    def _step(self) -> None:
        self._loop.call_later(self._pace_s, self._step)
        running, self._running = self._running, []
        self._running += [tick for tick in running if tick()]


class Worker(asyncio.Protocol):
    """One connection from a router: one request at a time, as routers send them."""

    def __init__(self, state: State, pace: Pace) -> None:
        self._state = state
        self._pace = pace
        self._data = b""
        self._head: Head | None = None
        self._body: Body | None = None
        self._parts: list[bytes] = []
        self._streaming = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def connection_lost(self, exc: Exception | None) -> None:
        """The router closed the connection: abort the running stream."""
        self._transport = None
        self._state.aborted += self._streaming

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        try:
            while data:
                data = self._take(data)
        except FramingError as error:
            self._write(answer(str(error).encode(), b"400 Bad Request"))
            if self._transport is not None:
                self._transport.close()

    def _take(self, data: bytes) -> bytes:
        """Read more bytes; return those after a complete request."""
        if self._body is None or self._head is None:
            found = split_head(self._data + data)
            if found is None:
                self._data += data
                return b""
            self._data = b""
            self._head, data = found
            self._body, self._parts = body_of(self._head), []
        if not self._body.done:
            self._parts.append(self._body.feed(data))
            data = self._body.rest
        if not self._body.done:
            return b""
        head = self._head
        self._head = self._body = None
        self._respond(head, b"".join(self._parts))
        return data

    def _respond(self, head: Head, body: bytes) -> None:
        path = head.path
        dialect = DIALECTS.get(path)
        if dialect is None:
            self._write(self._answer_get(path))
            return
        self._state.requests += 1
        ask = Ask.read(body)
        cached_tokens = self._state.cached(ask)
        if ask.stream:
            self._stream(dialect, ask, cached_tokens)
        else:
            self._pace.once(lambda: self._write(answer(dialect.whole(ask, cached_tokens))))

    def _stream(self, dialect: Dialect, ask: Ask, cached_tokens: int) -> None:
        """Send the head and the first event now, the others at the pace."""
        self._write(_STREAM_HEAD + chunk(dialect.event(ask, 0, cached_tokens)))
        self._streaming = True
        following = iter(range(1, ask.events))

        def tick() -> bool:
            index = next(following, None)
            if index is None:
                self._streaming = False
                self._write(dialect.end(ask, cached_tokens))
            else:
                self._write(chunk(dialect.event(ask, index, cached_tokens)))
            return index is not None and self._transport is not None

        self._pace.start(tick)

    def _answer_get(self, path: bytes) -> bytes:
        if path == b"/bench/stats":
            return answer(self._state.stats())
        found = _GET.get(path)
        if found is None:
            self._state.unknown.add(path.decode("ascii", "replace"))
            return answer(b'{"error":{"message":"not found"}}', b"404 Not Found")
        return answer(json.dumps(found).encode())

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


async def serve(port: int, *, pace_s: float, unaligned: bool) -> None:
    """Serve on loopback until cancelled. Port 0 lets the system choose; the port is printed."""
    state, pace = State(), (Unaligned if unaligned else Steps)(pace_s)
    server = await asyncio.get_running_loop().create_server(
        lambda: Worker(state, pace), "127.0.0.1", port, backlog=4096, reuse_address=True
    )
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    async with server:
        await server.serve_forever()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--pace-ms", type=float, default=10.0)
    parser.add_argument("--unaligned", action="store_true")
    arguments = parser.parse_args()
    uvloop.run(
        serve(arguments.port, pace_s=arguments.pace_ms / 1000, unaligned=arguments.unaligned)
    )


if __name__ == "__main__":
    main()
