"""The framing of a stream of events: in lines, and in chunks of HTTP. Pure."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

import msgspec
from evenkeel_contract.messages import UNREADABLE

START: Final = b'data: {"'
NO_USAGE: Final = b'"usage":null}'  # how SGLang ends every event but the last when asked for usage
_END: Final = re.compile(rb"\r\n\r\n|\n\n")  # \r\r is legal, too, but no server sends it
LINE: Final = re.compile(rb"\r?\n")
FIELDS: Final = (b"data:", b"event:", b"id:", b"retry:", b":", b"error:")
"""Beginnings of lines. `error:` is llama.cpp's, with the error as its data."""
FIELD_BYTES: Final = max(map(len, FIELDS))
CHUNK_TAIL: Final = NO_USAGE + b"\n\n\r\n"


def _chunk_head(size_bytes: int) -> bytes:
    """How a chunk of this size (framing included) begins if it is an event. A line end: no chunk of an event has this size."""
    for digits in range(1, 4):
        head = b"%x\r\n" % max(0, size_bytes - digits - 4)
        if len(head) == digits + 2:
            return head + START
    return b"\n"


MAX_CHUNK_BYTES: Final = 4096  # an event of one token has about 250
CHUNK_HEADS: Final = [_chunk_head(size_bytes) for size_bytes in range(MAX_CHUNK_BYTES)]
"""Beginnings of chunks, by size: one comparison checks both the framing and the beginning of the event."""


def cut(data: bytes) -> tuple[list[bytes], bytes]:
    """Whole events, each with its end, and what is left."""
    # The usual case: a split is several times faster than the pattern, and `find` than `in`, which tries an integer first.
    if data.find(b"\r") < 0:
        *events, tail = data.split(b"\n\n")
        return [event + b"\n\n" for event in events], tail
    ends = [0, *(end.end() for end in _END.finditer(data))]
    return [data[start:end] for start, end in pairwise(ends)], data[ends[-1] :]


def usual_events(data: bytes, longest: int) -> int:
    """The number of events in these bytes, if each is whole, of one line, usual, and has no more than `longest` bytes of data; else 0.

    Events come together when the router or the engine is late.
    """
    *events, rest = data.split(b"\n\n")
    longest += len(b"data: ")
    for event in events:
        if not (
            event.startswith(START)
            and event.endswith(NO_USAGE)
            and len(event) <= longest
            and event.find(b"\n") < 0
        ):
            return 0
    return 0 if rest else len(events)


def name_of(lines: list[bytes]) -> bytes:
    """The event's name; empty if it has none."""
    return next((line[6:].strip() for line in lines if line.startswith(b"event:")), b"")


def begins_event(tail: bytes) -> bool:
    """Whether these bytes can begin an event."""
    tail = tail.lstrip(b"\r\n")
    return not tail or any(tail.startswith(field) or field.startswith(tail) for field in FIELDS)


def end_of_cut(data: bytes) -> bytes:
    """The event that ends a completion or a chat which is cut, made of the data of an event beyond its bound; empty if that cannot be read."""
    try:
        event = msgspec.json.decode(data, type=dict[str, object])
    except UNREADABLE:
        return b""
    choice: dict[str, object] = {"index": 0, "finish_reason": "length"}
    if b'"delta"' in data:
        choice["delta"] = {}
    else:
        choice["text"] = ""
    event |= {"choices": [choice], "usage": None}
    return b"data: " + msgspec.json.encode(event) + b"\n\n"
