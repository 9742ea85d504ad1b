"""Compressed bodies, unpacked in slices: one that unfolds to gigabytes is refused early and delays no other request."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Sequence
from http import HTTPStatus
from typing import Final

from evenkeel_router.api.errors import Outcome, Refusal

_PACKED: Final = ("gzip", "deflate")
_MOST: Final = 4
"""Codings of one body, one in another."""
_GZIP_OR_ZLIB: Final = 47  # zlib's wbits: either header, any window
_SLICE_BYTES: Final = 256 * 1024  # about a millisecond


def codings(encodings: Sequence[str]) -> tuple[str, ...]:
    """The codings in these headers `Content-Encoding`, in the order of their application (RFC 9110, section 8.4).

    Raises `Refusal` for an unknown one.
    """
    names = [name.strip().lower() for one in encodings for name in one.split(",")]
    given = tuple(name.removeprefix("x-") for name in names if name not in ("", "identity"))
    if len(given) > _MOST or any(name not in _PACKED for name in given):
        message = f"content-encoding {', '.join(names)[:40]!r} is not supported; send {' or '.join(_PACKED)}."
        raise Refusal(
            Outcome.INVALID_REQUEST,
            message,
            code="unsupported_encoding",
            param="content-encoding",
            status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            more=[("accept-encoding", ", ".join(_PACKED))],
        )
    return given


async def unpacked(packed: bytes) -> AsyncGenerator[bytes]:
    """The slices, with other requests in between: a kilobyte may unfold to a megabyte. Raises `zlib.error`."""
    stream, rest = zlib.decompressobj(_GZIP_OR_ZLIB), packed
    while not stream.eof:
        piece = stream.decompress(rest, _SLICE_BYTES)
        rest = stream.unconsumed_tail
        if not piece and not rest and not stream.eof:
            raise zlib.error("it is incomplete")
        yield piece
        await asyncio.sleep(0)
    if stream.unused_data:
        raise zlib.error("more bytes follow it")
