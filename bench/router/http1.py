"""HTTP/1.1 framing for the fake worker and the load generator, without I/O.

Load generator and worker must cost far less than the routers between them, so two small readers replace a server and a client
library. They read only what the routers under test send.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_HEAD_BYTES = 64 * 1024


class FramingError(ValueError):
    """Bytes that are not the expected HTTP/1.1 message."""


@dataclass(frozen=True, slots=True)
class Head:
    """The start line and the headers of a message."""

    start: bytes
    headers: dict[bytes, bytes]
    """By lower-case name; of repeated ones the last."""

    @property
    def status(self) -> int:
        """The status code of a response's start line."""
        try:
            return int(self.start.split(b" ", 2)[1])
        except (IndexError, ValueError):
            raise FramingError(f"not a status line: {self.start[:80]!r}") from None

    @property
    def path(self) -> bytes:
        """The path of a request's start line, without its query."""
        words = self.start.split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            raise FramingError(f"not an HTTP/1 request: {self.start[:80]!r}")
        return words[1].partition(b"?")[0]


def split_head(data: bytes) -> tuple[Head, bytes] | None:
    """The head and the bytes after it, or None while the head is incomplete."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        if len(data) > MAX_HEAD_BYTES:
            raise FramingError(f"head longer than {MAX_HEAD_BYTES} bytes")
        return None
    start, *lines = data[:end].split(b"\r\n")
    headers = {}
    for line in lines:
        name, separator, value = line.partition(b":")
        if not separator:
            raise FramingError(f"not a header: {line[:80]!r}")
        headers[name.lower()] = value.strip()
    return Head(start, headers), data[end + 4 :]


class SizedBody:
    """A body of `content-length` bytes."""

    __slots__ = ("done", "left", "rest")

    def __init__(self, size_bytes: int) -> None:
        self.left = size_bytes
        self.done = size_bytes == 0
        self.rest = b""
        """What followed the body, once it is done."""

    def feed(self, data: bytes) -> bytes:
        """The part of `data` that belongs to the body."""
        if len(data) < self.left:
            self.left -= len(data)
            return data
        body, self.rest = data[: self.left], data[self.left :]
        self.left, self.done = 0, True
        return body


class ChunkedBody:
    """A body in chunks, without trailers."""

    __slots__ = ("_left", "_pending", "done", "rest")

    def __init__(self) -> None:
        self._pending = b""  # an incomplete size line, or a chunk's missing line end
        self._left = 0  # of the current chunk, its line end included
        self.done = False
        self.rest = b""
        """What followed the body, once it is done."""

    def feed(self, data: bytes) -> bytes:
        """The body's bytes in `data`, without their framing."""
        parts: list[bytes] = []
        data = self._pending + data if self._pending else data
        self._pending = b""
        position = 0
        while position < len(data) and not self.done:
            if self._left:
                position = self._take(data, position, parts)
            else:
                position = self._open(data, position)
                if position < 0:
                    break
        if self.done:
            self.rest = data[position:]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _take(self, data: bytes, position: int, parts: list[bytes]) -> int:
        end = min(position + self._left, len(data))
        payload_bytes = min(end - position, max(self._left - 2, 0))  # without the line end
        if payload_bytes:
            parts.append(data[position : position + payload_bytes])
        self._left -= end - position
        if not self._left and not data.endswith(b"\n", 0, end):
            raise FramingError("a chunk does not end its line")
        return end

    def _open(self, data: bytes, position: int) -> int:
        """Read a size line; -1 when it is not complete."""
        end = data.find(b"\r\n", position)
        if end < 0:
            if len(data) - position > 20:
                raise FramingError("a chunk's size line is too long")
            self._pending = data[position:]
            return -1
        try:
            size = int(data[position:end], 16)
        except ValueError:
            raise FramingError(f"not a chunk size: {data[position:end][:40]!r}") from None
        if size:
            self._left = size + 2
            return end + 2
        if len(data) < end + 4:
            self._pending = data[position:]
            return -1
        self.done = True
        return end + 4


Body = SizedBody | ChunkedBody


def body_of(head: Head) -> Body:
    """The reader for the body that the head announces; none announced means none."""
    if head.headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        return ChunkedBody()
    try:
        return SizedBody(int(head.headers.get(b"content-length", b"0")))
    except ValueError:
        raise FramingError("content-length is not a number") from None
