"""Reading a request's body: bounded in size and in time.

Place in the flow: head → **body** → parse. Most bodies have arrived with their head, and cost no wait.

The surprising thing: what all requests hold together is bounded too (`Budget`). Without that, as many
requests as may be in flight, each with the largest body allowed, would be 64 GiB. And compressed bodies are
unpacked here, not by aiohttp: of a body that is refused it would unpack all the rest, a gigabyte for each megabyte
that somebody sends, while everybody else waits.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import Final, NamedTuple

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError
from multidict import istr

from evenkeel_router.api.errors import Refusal, invalid
from evenkeel_router.api.headroom import may_hold_more
from evenkeel_router.api.outcomes import Outcome
from evenkeel_router.transport.server import connection_of

INVALID_BODY: Final = "invalid_body"
"""The code of a body after which nothing on the connection can be trusted."""

_CONTENT_ENCODING: Final = istr("Content-Encoding")
_PACKED: Final = ("gzip", "deflate")
_GZIP_OR_ZLIB: Final = 47  # zlib's wbits: either header, any window
_SLICE_BYTES: Final = 256 * 1024  # about a millisecond


class Budget:
    """Bytes of bodies in memory. No tenant can take up all of it (`request/admission.py`)."""

    __slots__ = ("_held_bytes", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._held_bytes: dict[str, int] = {}  # no zeros

    def take(self, owner: str, size_bytes: int) -> None:
        """Use some; raises `Refusal`."""
        free_bytes = self.limit_bytes - self.used_bytes - size_bytes
        if free_bytes < 0:
            message = f"The router holds {self.used_bytes} bytes of requests, as many as it may."
            raise Refusal(Outcome.UNAVAILABLE, message, code="overloaded", retry_after_s=1)
        held_bytes = self._held_bytes.get(owner, 0)
        if not may_hold_more(held_bytes, free_bytes):
            message = (
                f"The tenant's requests hold {held_bytes} bytes in the router, as many as leave room "
                f"for others."
            )
            raise Refusal(Outcome.RATE_LIMITED, message, code="max_buffered", retry_after_s=1)
        self.used_bytes += size_bytes
        self._held_bytes[owner] = held_bytes + size_bytes

    def give(self, owner: str, size_bytes: int) -> None:
        """Give some back."""
        self.used_bytes -= size_bytes
        held_bytes = self._held_bytes.get(owner, 0) - size_bytes
        if held_bytes:
            self._held_bytes[owner] = held_bytes
        else:
            self._held_bytes.pop(owner, None)


class Account(NamedTuple):
    """A budget, and who uses it."""

    budget: Budget
    owner: str

    def take(self, size_bytes: int) -> None:
        """See `Budget.take`."""
        self.budget.take(self.owner, size_bytes)

    def give(self, size_bytes: int) -> None:
        """See `Budget.give`."""
        self.budget.give(self.owner, size_bytes)


async def read_body(
    request: web.BaseRequest, account: Account, *, limit_bytes: int, timeout_s: float
) -> bytes:
    """The whole body, unpacked, taken from the budget: give back its length. Raises `Refusal`."""
    packed = _is_packed(request)
    if request.content.is_eof():  # as usual: it came with its head
        body = _arrived(request, account, limit_bytes)
    else:
        body = await _read(request, account, limit_bytes=limit_bytes, timeout_s=timeout_s)
    if not packed:
        return body
    try:
        return await _unpack(body, account, limit_bytes)
    finally:
        account.give(len(body))


def _arrived(request: web.BaseRequest, account: Account, limit_bytes: int) -> bytes:
    try:
        body: bytes = request.content.read_nowait()
    except (RequestPayloadError, HttpProcessingError) as error:
        raise _misframed(request) from error
    if len(body) > limit_bytes:
        raise _too_large(limit_bytes)
    account.take(len(body))
    return body


async def _read(
    request: web.BaseRequest, account: Account, *, limit_bytes: int, timeout_s: float
) -> bytes:
    try:
        _check_announced(request, limit_bytes)
        _continue(request)
        async with asyncio.timeout(timeout_s):
            return await _collect(request, account, limit_bytes)
    except TimeoutError as error:
        message = f"The body did not arrive within {timeout_s:g} s."
        raise invalid(message, code="body_timeout") from error
    except (RequestPayloadError, HttpProcessingError) as error:
        raise _misframed(request) from error


def _misframed(request: web.BaseRequest) -> Refusal:
    request.content.feed_eof()  # or else aiohttp would go on reading it, and log the same error once more
    return invalid("The body is not framed as its head says.", code=INVALID_BODY)


async def _collect(request: web.BaseRequest, account: Account, limit_bytes: int) -> bytes:
    pieces: list[bytes] = []
    taken_bytes = 0
    try:
        while piece := await request.content.readany():
            if taken_bytes + len(piece) > limit_bytes:
                raise _too_large(limit_bytes)
            account.take(len(piece))
            taken_bytes += len(piece)
            pieces.append(piece)
    except BaseException:  # the client going away (cancellation) included
        account.give(taken_bytes)
        raise
    return b"".join(pieces)


def _is_packed(request: web.BaseRequest) -> bool:
    """Whether the body is compressed, in a way that is understood; raises `Refusal` otherwise."""
    encodings = request.headers.getall(_CONTENT_ENCODING, ())
    if not encodings:
        return False
    encoding = ", ".join(encodings).strip().lower()
    if encoding not in ("", "identity", *_PACKED):
        message = (
            f"content-encoding {encoding[:40]!r} is not understood; send {' or '.join(_PACKED)}."
        )
        raise invalid(message, code="unsupported_encoding", param="content-encoding")
    return encoding in _PACKED


async def _unpack(packed: bytes, account: Account, limit_bytes: int) -> bytes:
    """Slice by slice, and others have their turn in between: a kilobyte may unfold to a megabyte."""
    stream = zlib.decompressobj(_GZIP_OR_ZLIB)
    pieces: list[bytes] = []
    taken_bytes = 0
    rest = packed
    try:
        while not stream.eof:
            piece = stream.decompress(rest, _SLICE_BYTES)
            rest = stream.unconsumed_tail
            if not piece and not rest and not stream.eof:
                raise zlib.error("it ends too early")
            if taken_bytes + len(piece) > limit_bytes:
                raise _too_large(limit_bytes)
            account.take(len(piece))
            taken_bytes += len(piece)
            pieces.append(piece)
            await asyncio.sleep(0)
        if stream.unused_data:
            raise zlib.error("something follows it")
    except zlib.error as error:
        account.give(taken_bytes)
        message = f"The body is not compressed as its head says ({error})."
        raise invalid(message, code=INVALID_BODY) from error
    except BaseException:
        account.give(taken_bytes)
        raise
    return b"".join(pieces)


def _check_announced(request: web.BaseRequest, limit_bytes: int) -> None:
    """Refuse before reading where the head says enough."""
    length = request.content_length
    if length is not None and length > limit_bytes:
        raise _too_large(limit_bytes)


def _continue(request: web.BaseRequest) -> None:
    """Some clients (curl above 1 MiB) send the head and wait to be told."""
    expected = request.headers.get("Expect", "").lower() == "100-continue"
    if expected:
        connection_of(request).write(b"HTTP/1.1 100 Continue\r\n\r\n")


def _too_large(limit_bytes: int) -> Refusal:
    message = f"The body is larger than {limit_bytes} bytes."
    return Refusal(Outcome.TOO_LARGE, message, code="body_too_large")
