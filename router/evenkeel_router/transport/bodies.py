"""Reading a request's body: bounded in size, in time, and in what all bodies together hold in memory.

Compressed bodies are unpacked here in slices, so that a body that unfolds to gigabytes is refused early and delays no
other request.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import Final, NamedTuple

from multidict import istr

from evenkeel_router.api.errors import Outcome, Refusal, invalid
from evenkeel_router.settings import may_hold_more
from evenkeel_router.transport.client_request import HttpSyntaxError, Request

INVALID_BODY: Final = "invalid_body"
"""The code of a body after which nothing else can be read from the connection."""

_CONTENT_ENCODING: Final = istr("Content-Encoding")
_EXPECT: Final = istr("Expect")
_PACKED: Final = ("gzip", "deflate")
_GZIP_OR_ZLIB: Final = 47  # zlib's wbits: either header, any window
_SLICE_BYTES: Final = 256 * 1024  # about a millisecond


class BodyMemory:
    """Bytes of bodies in memory, with one limit for all of them. No tenant can use all of it."""

    __slots__ = ("_held_bytes", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._held_bytes: dict[str, int] = {}  # no zeros

    def reserve(self, tenant: str, size_bytes: int) -> None:
        """Use some of it; raises `Refusal`."""
        free_bytes = self.limit_bytes - self.used_bytes - size_bytes
        if free_bytes < 0:
            message = f"The router already holds {self.used_bytes} bytes of request bodies, which is its limit."
            raise Refusal(Outcome.UNAVAILABLE, message, code="overloaded", retry_after_s=1)
        held_bytes = self._held_bytes.get(tenant, 0)
        if not may_hold_more(held_bytes, free_bytes):
            message = (
                f"The tenant's requests already hold {held_bytes} bytes in the router; "
                "the rest is kept free for other tenants."
            )
            raise Refusal(Outcome.RATE_LIMITED, message, code="max_buffered", retry_after_s=1)
        self.used_bytes += size_bytes
        self._held_bytes[tenant] = held_bytes + size_bytes

    def release(self, tenant: str, size_bytes: int) -> None:
        """Free what was reserved."""
        self.used_bytes -= size_bytes
        held_bytes = self._held_bytes.get(tenant, 0) - size_bytes
        if held_bytes:
            self._held_bytes[tenant] = held_bytes
        else:
            self._held_bytes.pop(tenant, None)


class TenantMemory(NamedTuple):
    """The body memory, for one tenant."""

    memory: BodyMemory
    tenant: str

    def reserve(self, size_bytes: int) -> None:
        """See `BodyMemory.reserve`."""
        self.memory.reserve(self.tenant, size_bytes)

    def release(self, size_bytes: int) -> None:
        """See `BodyMemory.release`."""
        self.memory.release(self.tenant, size_bytes)


async def read_body(
    request: Request, memory: TenantMemory, *, limit_bytes: int, timeout_s: float
) -> bytes:
    """The whole body, unpacked. Its length stays reserved: release it. Raises `Refusal`."""
    packed = _is_packed(request)
    if request.body.complete:  # the usual case: it arrived with its head
        body = _arrived(request, memory, limit_bytes)
    else:
        body = await _read(request, memory, limit_bytes=limit_bytes, timeout_s=timeout_s)
    if not packed:
        return body
    try:
        return await _unpack(body, memory, limit_bytes)
    finally:
        memory.release(len(body))


def _arrived(request: Request, memory: TenantMemory, limit_bytes: int) -> bytes:
    body = request.body.read_nowait()
    if len(body) > limit_bytes:
        raise _too_large(limit_bytes)
    memory.reserve(len(body))
    return body


async def _read(
    request: Request, memory: TenantMemory, *, limit_bytes: int, timeout_s: float
) -> bytes:
    try:
        _check_announced(request, limit_bytes)
        _continue(request)
        async with asyncio.timeout(timeout_s):
            return await _collect(request, memory, limit_bytes)
    except TimeoutError as error:
        message = f"The body did not arrive within {timeout_s:g} s."
        raise invalid(message, code="body_timeout") from error
    except HttpSyntaxError as error:
        raise invalid(
            "The body does not have the framing that its head announces.", code=INVALID_BODY
        ) from error


async def _collect(request: Request, memory: TenantMemory, limit_bytes: int) -> bytes:
    pieces: list[bytes] = []
    taken_bytes = 0
    try:
        while piece := await request.body.read():
            if taken_bytes + len(piece) > limit_bytes:
                raise _too_large(limit_bytes)
            memory.reserve(len(piece))
            taken_bytes += len(piece)
            pieces.append(piece)
    except BaseException:  # cancellation included: the client disconnected
        memory.release(taken_bytes)
        raise
    return b"".join(pieces)


def _is_packed(request: Request) -> bool:
    """Whether the body is compressed; raises `Refusal` for an unknown encoding."""
    encodings = request.headers.getall(_CONTENT_ENCODING, ())
    if not encodings:
        return False
    encoding = ", ".join(encodings).strip().lower()
    if encoding not in ("", "identity", *_PACKED):
        message = (
            f"content-encoding {encoding[:40]!r} is not supported; send {' or '.join(_PACKED)}."
        )
        raise invalid(message, code="unsupported_encoding", param="content-encoding")
    return encoding in _PACKED


async def _unpack(packed: bytes, memory: TenantMemory, limit_bytes: int) -> bytes:
    """Slice by slice, with other requests in between: a kilobyte may unfold to a megabyte."""
    stream = zlib.decompressobj(_GZIP_OR_ZLIB)
    pieces: list[bytes] = []
    taken_bytes = 0
    rest = packed
    try:
        while not stream.eof:
            piece = stream.decompress(rest, _SLICE_BYTES)
            rest = stream.unconsumed_tail
            if not piece and not rest and not stream.eof:
                raise zlib.error("it is incomplete")
            if taken_bytes + len(piece) > limit_bytes:
                raise _too_large(limit_bytes)
            memory.reserve(len(piece))
            taken_bytes += len(piece)
            pieces.append(piece)
            await asyncio.sleep(0)
        if stream.unused_data:
            raise zlib.error("more bytes follow it")
    except zlib.error as error:
        memory.release(taken_bytes)
        message = f"The body cannot be unpacked: {error}."
        raise invalid(message, code=INVALID_BODY) from error
    except BaseException:
        memory.release(taken_bytes)
        raise
    return b"".join(pieces)


def _check_announced(request: Request, limit_bytes: int) -> None:
    """Refuse before reading, if the head states the length."""
    length = request.content_length
    if length is not None and length > limit_bytes:
        raise _too_large(limit_bytes)


def _continue(request: Request) -> None:
    """Ask for the body where the client waits for it, as curl does above 1 MiB."""
    if request.headers.get(_EXPECT, "").lower() == "100-continue":
        request.connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def _too_large(limit_bytes: int) -> Refusal:
    message = f"The body is larger than the limit of {limit_bytes} bytes."
    return Refusal(Outcome.TOO_LARGE, message, code="body_too_large")
