"""Compressed bodies, unpacked in slices: one that unfolds to gigabytes is refused early and delays no other request."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from evenkeel_router.api.errors import invalid

_PACKED: Final = ("gzip", "deflate")
_GZIP_OR_ZLIB: Final = 47  # zlib's wbits: either header, any window
_SLICE_BYTES: Final = 256 * 1024  # about a millisecond


def is_packed(encodings: Sequence[str]) -> bool:
    """Whether a body with these headers `Content-Encoding` is compressed; raises `Refusal` for an unknown encoding."""
    encoding = ", ".join(encodings).strip().lower()
    if encoding not in ("", "identity", *_PACKED):
        message = (
            f"content-encoding {encoding[:40]!r} is not supported; send {' or '.join(_PACKED)}."
        )
        raise invalid(message, code="unsupported_encoding", param="content-encoding")
    return encoding in _PACKED


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
