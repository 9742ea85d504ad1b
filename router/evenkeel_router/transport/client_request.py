"""A client's request: its head, and its body as it arrives; and what a handler returns for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from multidict import CIMultiDict, istr

if TYPE_CHECKING:
    from evenkeel_router.transport.client_connection import ClientConnection

MAX_UNREAD_BYTES: Final = 128 * 1024
"""Of a body in a connection's memory, before the connection stops reading from its socket."""

_CONTENT_LENGTH: Final = istr("Content-Length")


class HttpSyntaxError(Exception):
    """The bytes are not an HTTP/1 request."""


class TransferCodingError(HttpSyntaxError):
    """The request uses a transfer coding other than `chunked`."""


class Body:
    """The body of one request. The connection adds bytes, the handler reads them."""

    __slots__ = ("_connection", "_error", "_pieces", "_unread_bytes", "_waiter", "complete")

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._pieces: list[bytes] = []
        self._unread_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._error: HttpSyntaxError | None = None
        self.complete = False
        """Whether all of it has arrived."""

    def read_nowait(self) -> bytes:
        """Everything that has arrived since the last read; raises `HttpSyntaxError`."""
        if self._error is not None:
            raise self._error
        data = b"".join(self._pieces)
        self._pieces.clear()
        if self._unread_bytes > MAX_UNREAD_BYTES:
            self._connection.resume_body()
        self._unread_bytes = 0
        return data

    async def read(self) -> bytes:
        """The next bytes, empty at the end; raises `HttpSyntaxError`."""
        while not (self._pieces or self.complete or self._error):
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.read_nowait()

    # Called by the connection.

    def add(self, data: bytes) -> None:
        """More of it arrived."""
        self._pieces.append(data)
        self._unread_bytes += len(data)
        if self._unread_bytes > MAX_UNREAD_BYTES:
            self._connection.pause_body()
        self._wake()

    def end(self) -> None:
        """All of it has arrived."""
        self.complete = True
        self._wake()

    def fail(self, error: HttpSyntaxError) -> None:
        """The rest cannot be read."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Request:
    """The head of a request, with its body and its connection."""

    __slots__ = ("body", "chunks_allowed", "connection", "error", "headers", "keep_alive",
                 "method", "target")  # fmt: skip

    def __init__(
        self,
        connection: ClientConnection,
        *,
        method: str,
        target: str,
        headers: CIMultiDict[str],
        keep_alive: bool = False,
        chunks_allowed: bool = True,
        error: HttpSyntaxError | None = None,
    ) -> None:
        self.connection = connection
        self.method = method
        self.target = target
        """Path and query, as the client sent them."""
        self.headers = headers
        self.keep_alive = keep_alive
        """Whether the client expects the connection to stay open."""
        self.chunks_allowed = chunks_allowed
        """Whether the answer may use chunks (HTTP/1.1)."""
        self.error = error
        """Set if the bytes are not an HTTP request; all else is empty then."""
        self.body = Body(connection)

    @property
    def remote(self) -> str | None:
        """The client's address; None if its socket has none."""
        return self.connection.peer

    @property
    def content_length(self) -> int | None:
        """The length of the body, if the head states it."""
        length = self.headers.get(_CONTENT_LENGTH)
        return None if length is None else int(length)


class Answer(Protocol):
    """What a handler returns for a request."""

    @property
    def keep_alive(self) -> bool:
        """Whether the connection may take another request."""

    def finish(self) -> None:
        """Write what has not been written yet."""
