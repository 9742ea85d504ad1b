"""Scans a replica's event stream for its end, errors and usage, without I/O. Only events that may carry usage are parsed.

`feed` takes bytes as they arrive, cut anywhere, and returns whole events. It keeps half an event until the rest arrives, so
that a stream that breaks can still end with an error event. Nearly every event of OpenAI's streams is alone in its chunk and
carries nothing that the router needs: `passes` recognises those by four searches.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

from evenkeel_fairshare.fleet.contract import Usage

from evenkeel_router.api.errors import Refusal, error_event
from evenkeel_router.api.usage import of_chunk, of_generated_event

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
    """One stream of OpenAI's or SGLang's. After `broken` is set nothing more may be fed."""

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

    def error_event(self, refusal: Refusal) -> bytes:
        """The event that ends a stream which failed after its first byte."""
        return error_event(refusal)

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
        return not data or self._named(_name(lines), data)

    def _named(self, name: bytes, data: bytes) -> bool:
        """Note an event with its name, which OpenAI's completions and `/generate` do not use."""
        return self._data(data)

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


def _name(lines: list[bytes]) -> bytes:
    """The event's name; empty if it has none."""
    return next((line[6:].strip() for line in lines if line.startswith(b"event:")), b"")


def _begins_event(tail: bytes) -> bool:
    """Whether these bytes can begin an event."""
    tail = tail.lstrip(b"\r\n")
    return not tail or any(tail.startswith(field) or field.startswith(tail) for field in _FIELDS)
