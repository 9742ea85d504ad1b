"""What routers tell one another of their ledgers (design R3): `POST /v1/ledger` on the admin port.

The question is a `LedgerDigest`, how much the asker has; the answer what it lacks, as one or several
`LedgerDelta`, each of which may be merged alone: a large ledger is then written and merged in slices. An answer
to an empty digest is a whole ledger, which is also what stores keep. A message is the version, one byte, and
MessagePack; several follow one another, each behind its length in four bytes, little-endian. The fields are those of
`evenkeel_fairshare.ledger`'s `Digest` and `Delta`, so that `msgspec.convert(…, from_attributes=True)` leads
from one to the other and back; what they mean is said there.

Rows travel as names and one block of little-endian doubles: a hundred thousand clients are one copy, not a million
numbers. Whether a block fits its names and holds numbers only is checked where it is merged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

LEDGER_PATH: Final = "/v1/ledger"
LEDGER_VERSION: Final = 2
LENGTH_BYTES: Final = 4
"""In front of each of several messages."""

_MAX_FLOAT: Final = 1.7976931348623157e308
Finite = Annotated[float, msgspec.Meta(ge=-_MAX_FLOAT, le=_MAX_FLOAT)]
Count = Annotated[int, msgspec.Meta(ge=0)]


Rank = tuple[Count, str]
"""Number and author of a book."""


class Rows(msgspec.Struct, frozen=True, array_like=True):
    """Names, and their rows as little-endian doubles."""

    names: tuple[str, ...]
    cells: bytes


class PageDigest(msgspec.Struct, frozen=True, array_like=True):
    """How much the asker has of one incarnation."""

    head: Finite
    accounts: dict[str, Finite]
    closed_by: frozenset[str]


class LedgerDigest(msgspec.Struct, frozen=True, array_like=True):
    """How much the asker has of everything."""

    pages: dict[str, PageDigest]
    book: Rank
    demand: dict[str, Finite]
    lifts: dict[str, Count]
    adopted: dict[str, Rank]


class AccountDelta(msgspec.Struct, frozen=True, array_like=True):
    """What one router received from one incarnation, as far as the asker does not know it."""

    router: str
    base: Finite
    head: Finite
    clients: Rows
    tenants: Rows
    marks: Rows
    tenant_marks: Rows


class PageDelta(msgspec.Struct, frozen=True, array_like=True):
    """What the asker does not know of one incarnation."""

    incarnation: str
    base: Finite
    head: Finite
    clients: Rows
    tenants: Rows
    accounts: tuple[AccountDelta, ...]
    closed_by: tuple[str, ...]


class BookDelta(msgspec.Struct, frozen=True, array_like=True):
    """What changed in the book; all of it if `base` is None."""

    rank: Rank
    base: Rank | None
    lineage: tuple[Rank, ...]
    clients: Rows
    tenants: Rows
    dropped: dict[str, Count]
    folded: dict[str, Count]
    given: dict[str, Finite]
    baselines: tuple[str, ...]


class DemandDelta(msgspec.Struct, frozen=True, array_like=True):
    """Requested rates that one router measured."""

    router: str
    base: Finite
    head: Finite
    rates: Rows


class LedgerDelta(msgspec.Struct, frozen=True, array_like=True):
    """What the asker does not know."""

    router: str
    """Incarnation of the router that answers."""
    members: tuple[str, ...]
    live: tuple[str, ...]
    pages: tuple[PageDelta, ...]
    book: BookDelta | None
    demand: tuple[DemandDelta, ...]
    levels: dict[str, Finite]
    lifts_base: Count
    lifts_head: Count
    lifts: dict[str, Finite]
    adopted: dict[str, Rank]


class LedgerMessageError(ValueError):
    """A digest or a delta that is not well formed or of an unknown version."""


_VERSION: Final = bytes([LEDGER_VERSION])
_encoder = msgspec.msgpack.Encoder()
_digest = msgspec.msgpack.Decoder(LedgerDigest)
_delta = msgspec.msgpack.Decoder(LedgerDelta)
# Beyond its own errors, msgspec lets bad UTF-8 and endless nesting through as they are.
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def encode(message: LedgerDigest | LedgerDelta) -> bytes:
    """Encode a digest or a delta."""
    return _VERSION + _encoder.encode(message)


def decode_digest(data: bytes) -> LedgerDigest:
    """Decode a digest; raises `LedgerMessageError`."""
    try:
        return _digest.decode(_content(data))
    except _UNREADABLE as error:
        raise LedgerMessageError(f"not a ledger's digest: {error}") from error


def decode_delta(data: bytes) -> LedgerDelta:
    """Decode a delta; raises `LedgerMessageError`."""
    try:
        return _delta.decode(_content(data))
    except _UNREADABLE as error:
        raise LedgerMessageError(f"not a ledger's delta: {error}") from error


def frame(message: bytes) -> bytes:
    """An encoded message as one of several."""
    return len(message).to_bytes(LENGTH_BYTES, "little") + message


def unframe(data: bytes) -> Iterator[bytes]:
    """The messages that `frame` joined; raises `LedgerMessageError` where one is cut short."""
    at = 0
    while at < len(data):
        begin = at + LENGTH_BYTES
        end = begin + int.from_bytes(data[at:begin], "little")
        if begin > len(data) or end > len(data):
            raise LedgerMessageError(f"a message at byte {at} is cut short")
        yield data[begin:end]
        at = end


def _content(data: bytes) -> memoryview:
    # Before anything else, so that routers of two versions say so instead of taking each other for damaged.
    if data[:1] != _VERSION:
        found = data[0] if data else "missing"
        raise LedgerMessageError(f"version {found} is not {LEDGER_VERSION}")
    return memoryview(data)[1:]
