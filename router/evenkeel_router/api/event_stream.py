"""Scans a replica's event stream for its end, errors and usage, without I/O. Only events that may carry usage are parsed.

`feed` takes bytes as they arrive, cut anywhere, and returns whole events. It keeps half an event until the rest arrives, so
that a stream that breaks can still end with an error event. Nearly every event is alone in its chunk and carries nothing
that the router needs: `passes` recognises those by four searches. Of the usage, in events and in bodies, only the numbers
that the router needs are decoded; the rest is checked to be JSON. Numbers that are missing or null count as 0.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

import msgspec
from evenkeel_fairshare.fleet.contract import Usage

from evenkeel_router.api.inference import Endpoint


class GarbageError(ValueError):
    """An invalid answer of a replica."""


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _OpenAIUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _OpenAIReply(msgspec.Struct):
    usage: _OpenAIUsage | None = None


class _Chunk(msgspec.Struct):
    usage: _OpenAIUsage | None = None
    choices: list[msgspec.Raw] | None = None


class _Meta(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class _Generated(msgspec.Struct):
    meta_info: _Meta | None = None


_OPENAI: Final = msgspec.json.Decoder(_OpenAIReply)
_CHUNK: Final = msgspec.json.Decoder(_Chunk)
_GENERATED: Final = msgspec.json.Decoder(_Generated | list[_Generated])


def of_reply(endpoint: Endpoint, body: bytes) -> Usage | None:
    """The usage of a whole answer; None if it has none. Raises `GarbageError`."""
    try:
        if endpoint is Endpoint.GENERATE:
            return _of_generated(_GENERATED.decode(body))
        reply = _OPENAI.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise GarbageError(f"the answer is not valid for {endpoint.value}: {error}") from error
    return None if reply.usage is None else _of_openai(reply.usage)


def of_chunk(data: bytes) -> tuple[Usage | None, bool]:
    """The usage in a stream's event, and whether the event carries nothing else. Never raises."""
    try:
        chunk = _CHUNK.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None, False  # the client may understand it
    if chunk.usage is None:
        return None, False
    return _of_openai(chunk.usage), not chunk.choices


def of_generated_event(data: bytes) -> Usage | None:
    """The usage so far, from an event of `/generate`. Never raises."""
    try:
        return _of_generated(_GENERATED.decode(data))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def _of_openai(usage: _OpenAIUsage) -> Usage:
    details = usage.prompt_tokens_details
    return _usage(
        usage.prompt_tokens, details.cached_tokens if details else None, usage.completion_tokens
    )


def _of_generated(reply: _Generated | list[_Generated]) -> Usage | None:
    metas = [one.meta_info for one in (reply if isinstance(reply, list) else [reply])]
    usages = [
        _usage(meta.prompt_tokens, meta.cached_tokens, meta.completion_tokens)
        for meta in metas
        if meta is not None
    ]
    if not usages:
        return None
    return Usage(
        sum(usage.input_tokens for usage in usages),
        sum(usage.cached_tokens for usage in usages),
        sum(usage.output_tokens for usage in usages),
    )


def _usage(given: int | None, cached: int | None, output: int | None) -> Usage:
    """Clamped to possible values, so that a replica's error cannot make a negative charge."""
    input_tokens = max(0, given or 0)
    return Usage(input_tokens, min(max(0, cached or 0), input_tokens), max(0, output or 0))


MAX_EVENT_BYTES: Final = 4 * 1024 * 1024  # /generate repeats all text in every event

_DONE: Final = b"[DONE]"
_START: Final = b'data: {"'
_USAGE: Final = b'"usage"'
_NO_USAGE: Final = b'"usage":null}'  # how SGLang ends every event but the last when asked for usage
_END: Final = re.compile(rb"\r\n\r\n|\n\n")  # \r\r is legal, too, but no server sends it
_LINE: Final = re.compile(rb"\r?\n")
_FIELDS: Final = (b"data:", b"event:", b"id:", b"retry:", b":")
_CHUNK_TAIL: Final = _NO_USAGE + b"\n\n\r\n"


def _chunk_head(size_bytes: int) -> bytes:
    """How a chunk of this size (framing included) begins if it is an event; a line end if no chunk has this size."""
    for digits in range(1, 4):
        head = b"%x\r\n" % max(0, size_bytes - digits - 4)
        if len(head) == digits + 2:
            return head + _START
    return b"\n"


_MAX_CHUNK_BYTES: Final = 4096
_CHUNK_HEADS: Final = [_chunk_head(size_bytes) for size_bytes in range(_MAX_CHUNK_BYTES)]
"""By size, so that one comparison checks both the framing and the beginning of the event."""


class EventScan:
    """One stream. After `broken` is set nothing more may be fed."""

    __slots__ = ("_cumulative", "_drops_usage", "_fresh", "_last", "_tail", "_usage", "broken",
                 "done", "events", "failed")  # fmt: skip

    def __init__(self, *, cumulative: bool, drops_usage: bool) -> None:
        """`cumulative`: `/generate`, where every event repeats all and counts up.

        `drops_usage`: the client did not ask for the usage event.
        """
        self._cumulative = cumulative
        self._drops_usage = drops_usage
        self._fresh = True  # no bytes are kept, and the stream has not ended
        self._tail = b""
        self._last = b""
        self._usage: Usage | None = None
        self.events = 0
        """Events with content so far, which is about the number of output tokens."""
        self.done = False
        """The replica sent its last event."""
        self.failed = False
        """The replica sent an error event of its own."""
        self.broken: str | None = None
        """Why the stream is invalid, once that is known."""

    @property
    def usage(self) -> Usage | None:
        """The usage that the replica has reported so far."""
        if self._cumulative and self._last:
            return of_generated_event(self._last)
        return self._usage

    def passes(self, chunk: bytes) -> bool:
        """Whether a chunk, framing included, is one usual event. Then it is counted, and may be passed on as it is.

        Runs once for each event of each stream, so it calls nothing but the searches.
        """
        size = len(chunk)
        if (
            self._fresh
            and not self._cumulative
            and size < _MAX_CHUNK_BYTES
            and chunk.startswith(_CHUNK_HEADS[size])
            and chunk.endswith(_CHUNK_TAIL)
            and chunk.find(b"\n", 8) == size - 4  # behind the framing: one line
        ):
            self.events += 1
            return True
        return False

    def feed(self, data: bytes) -> bytes:
        """Whole events that may go to the client now. Sets `done`, `failed` or `broken`."""
        # One whole event of one line. It is quick to search for single bytes, and slow to search for pairs.
        if (
            self._fresh
            and data.startswith(_START)
            and data.find(b"\n") == len(data) - 2
            and data.endswith(b"\n")
        ):
            return data if self._data(data[6:-2].strip()) else b""
        return self._slowly(data)

    def close(self) -> None:
        """The connection ended. Sets `broken` if that was too early."""
        if self.broken is None and not self.done and not self.failed:
            where = "in the middle of an event" if self._tail else "before its last event"
            self.broken = f"the replica's stream ended {where}"

    def _slowly(self, data: bytes) -> bytes:
        events, tail = _cut(self._tail + data)
        passed = []
        for event in events:
            if self._event(event):
                passed.append(event)
            if self.broken is not None:
                self._tail = b""
                return b"".join(passed)
        self._tail = tail
        self._fresh = not tail and not self.done
        if len(tail) > MAX_EVENT_BYTES:
            self._break(f"an event of the replica's stream exceeds {MAX_EVENT_BYTES} bytes")
        elif tail and not _begins_event(tail):
            self._break("the replica's stream contains no events")
        return b"".join(passed)

    def _event(self, event: bytes) -> bool:
        """Note one whole event; returns whether to pass it on."""
        if self.done:
            return False  # after the end
        # The usual case, one line: several times faster than the general one.
        if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2:
            return self._data(event[6:-2].strip())
        lines = [line for line in _LINE.split(event) if line]
        if not all(line.startswith(_FIELDS) for line in lines):
            self._break("the replica's stream contains no events")
            return False
        data = b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))
        # Without data it is a comment, passed on too: it may keep a connection alive.
        return not data or self._data(data)

    def _data(self, data: bytes) -> bool:
        """The same for the data of an event."""
        if data == _DONE:
            self.done = True
        elif not (data.startswith(b"{") and data.endswith(b"}")):
            self._break("an event of the replica's stream is not JSON")
            return False
        elif data.startswith(b'{"error"'):
            self.failed = True
        else:
            return self._content(data)
        return True

    def _content(self, data: bytes) -> bool:
        if self._cumulative:
            self._last = data
        elif not data.endswith(_NO_USAGE) and _USAGE in data:
            usage, alone = of_chunk(data)
            self._usage = usage or self._usage
            if alone:
                return not self._drops_usage
        self.events += 1
        return True

    def _break(self, why: str) -> bytes:
        self.broken = why
        return b""


def _cut(data: bytes) -> tuple[list[bytes], bytes]:
    """Whole events, each with its end, and what is left."""
    if b"\r" not in data:  # the usual case; a split is several times faster than the pattern
        *events, tail = data.split(b"\n\n")
        return [event + b"\n\n" for event in events], tail
    ends = [0, *(end.end() for end in _END.finditer(data))]
    return [data[start:end] for start, end in pairwise(ends)], data[ends[-1] :]


def _begins_event(tail: bytes) -> bool:
    """Whether these bytes can begin an event."""
    tail = tail.lstrip(b"\r\n")
    return not tail or any(tail.startswith(field) or field.startswith(tail) for field in _FIELDS)
