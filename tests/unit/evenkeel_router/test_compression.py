"""Compressed bodies of every size: whole, cut off, with more behind them."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import pytest
from evenkeel_router.api.errors import Refusal
from evenkeel_router.transport.compression import _SLICE_BYTES, codings, unpacked

PACKERS = (gzip.compress, zlib.compress)


async def whole(packed: bytes) -> list[bytes]:
    return [piece async for piece in unpacked(packed)]


@pytest.mark.parametrize("pack", PACKERS)
@pytest.mark.parametrize("size", [0, 1, _SLICE_BYTES - 1, _SLICE_BYTES, _SLICE_BYTES + 1])
async def test_a_body_of_any_size_is_unpacked_in_slices(
    pack: Callable[[bytes], bytes], size: int
) -> None:
    pieces = await whole(pack(b"x" * size))
    assert b"".join(pieces) == b"x" * size
    assert all(len(piece) <= _SLICE_BYTES for piece in pieces)


@pytest.mark.parametrize("pack", PACKERS)
async def test_a_body_that_is_cut_off_or_goes_on_is_an_error(
    pack: Callable[[bytes], bytes],
) -> None:
    packed = pack(b"hello")
    for cut in range(len(packed)):
        with pytest.raises(zlib.error, match="incomplete"):
            await whole(packed[:cut])
    with pytest.raises(zlib.error, match="more bytes follow"):
        await whole(packed + b"x")


@pytest.mark.parametrize(
    ("encodings", "want"),
    [
        ([], ()),
        (["identity"], ()),
        (["GZIP"], ("gzip",)),
        ([" deflate "], ("deflate",)),
        (["x-gzip"], ("gzip",)),
        (["gzip", "deflate, identity"], ("gzip", "deflate")),
    ],
)
def test_an_encoding_is_known_by_its_names(encodings: list[str], want: tuple[str, ...]) -> None:
    assert codings(encodings) == want


@pytest.mark.parametrize("encodings", [["br"], ["gzip", "br"], ["gzip, " * 4 + "gzip"]])
def test_another_encoding_is_refused(encodings: list[str]) -> None:
    with pytest.raises(Refusal, match="is not supported"):
        codings(encodings)
