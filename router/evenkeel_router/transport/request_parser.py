"""Reads HTTP/1 requests from bytes as they arrive, with httptools (llhttp)."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from typing import Final

import httptools
from multidict import istr

from evenkeel_router.transport.client_request import Request
from evenkeel_router.transport.request_head import (
    HttpSyntaxError,
    LargeHeadError,
    LongTargetError,
    unparsed,
)

MAX_LINE_BYTES: Final = 8190  # as in Apache (`LimitRequestLine`) and aiohttp
MAX_HEADERS: Final = 128
MAX_HEAD_BYTES: Final = 128 * 1024
_MAX_NAMES: Final = 1024


class RequestParser(asyncio.Protocol):
    """The part of a connection that reads. The other part makes a `Request` of each head (`on_headers_complete`), and answers."""

    __slots__ = (
        "_arriving", "_head_bytes", "_headers", "_in_head", "_is_long", "_parser", "_reading_ended", "_resumes_body", "_target",
    )  # fmt: skip

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._in_head = False
        self._resumes_body = False
        self._head_bytes = 0
        self._is_long = False
        """Whether the head is so long that one of its lines may be too long."""
        self._target = b""
        self._headers: list[tuple[istr, str]] | deque[tuple[istr, str]] = []
        """Headers of the head that arrives; `TRAILERS` behind it."""
        self._arriving: Request | None = None
        """The request whose body is being received."""
        self._reading_ended = False
        """Whether the last request has come: garbage, or one that closes the connection."""

    @abstractmethod
    def _accept_unreadable(self, error: HttpSyntaxError) -> None:
        """What arrived is not a request, nor the body of one."""

    @abstractmethod
    def on_headers_complete(self) -> None:
        """A head has arrived (called by httptools)."""

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
            self._fail(own if isinstance(own, HttpSyntaxError) else unparsed(error, data))
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES or self._has_large_head():
                self._fail(LargeHeadError("the head is too large"))

    def _has_large_head(self) -> bool:
        """Whether the headers so far are too many, or one of them is too long."""
        if len(self._headers) > MAX_HEADERS:
            return True
        return self._is_long and any(
            len(name) + len(value.encode("utf-8", "surrogateescape")) > MAX_LINE_BYTES
            for name, value in self._headers
        )

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
            self._accept_unreadable(error)

    # Called by httptools.

    def on_message_begin(self) -> None:
        if not self._resumes_body:
            self._in_head = True
            self._target = b""
            self._headers = []

    def on_url(self, part: bytes) -> None:
        self._target += part
        if len(self._target) > MAX_LINE_BYTES:
            raise LongTargetError

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append(
            (
                _NAMES.get(name) or _name(name),
                value.rstrip(b" \t").decode("utf-8", "surrogateescape"),
            )
        )

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


TRAILERS: Final[deque[tuple[istr, str]]] = deque(maxlen=0)
"""Takes the trailers of a body, and keeps none."""
_NAMES: Final[dict[bytes, istr]] = {}
"""Names of headers. Clients send the same few names again and again."""


def _name(name: bytes) -> istr:
    """A name that is not in `_NAMES`, or was not."""
    if len(_NAMES) >= _MAX_NAMES:
        _NAMES.clear()  # clients choose the names: the table must not grow without end
    known = _NAMES[name] = istr(name.decode("latin-1"))
    return known
