"""Messages in which routers exchange their ledgers (design R3): `POST /v1/ledger` on the admin port.

The request is a `LedgerDigest`, the versions that the asker has. The response has the rows that it lacks, as one or several
`LedgerDelta`. Each may be merged alone, so that a large ledger is written and merged in slices. The response to an empty
digest is a whole ledger, which stores keep too. A message is one byte of version and MessagePack. In a sequence each
message follows its length in four bytes, little-endian. Fields are those of `Digest` and `Delta` in
`evenkeel_fairshare.ledger`, which explains them; `msgspec.convert(…, from_attributes=True)` converts both ways.

Rows travel as names and one block of little-endian doubles: a hundred thousand clients are one copy, not a million
numbers. `merge` checks that a block fits its names and has finite numbers only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

LEDGER_PATH: Final = "/v1/ledger"
LEDGER_VERSION: Final = 3
LENGTH_BYTES: Final = 4
"""Length prefix of each message in a sequence."""

_MAX_FLOAT: Final = 1.7976931348623157e308
Finite = Annotated[float, msgspec.Meta(ge=-_MAX_FLOAT, le=_MAX_FLOAT)]
Count = Annotated[int, msgspec.Meta(ge=0)]


Rank = tuple[Count, str]
"""Number and writer of closed totals."""


class Rows(msgspec.Struct, frozen=True, array_like=True):
    """Names, and their rows as little-endian doubles."""

    names: tuple[str, ...]
    cells: bytes


class ReplicaAccountDigest(msgspec.Struct, frozen=True, array_like=True):
    """The versions that the asker has of one incarnation."""

    head: Finite
    accounts: dict[str, Finite]
    closed_by: frozenset[str]


class LedgerDigest(msgspec.Struct, frozen=True, array_like=True):
    """The versions that the asker has of the whole ledger."""

    replica_accounts: dict[str, ReplicaAccountDigest]
    closed_totals: Rank
    demand: dict[str, Finite]
    adopted: dict[str, Rank]


class RouterAccountDelta(msgspec.Struct, frozen=True, array_like=True):
    """Service that one router received from one incarnation: the rows that the asker lacks."""

    router: str
    base: Finite
    head: Finite
    clients: Rows
    tenants: Rows
    marks: Rows
    tenant_marks: Rows


class ReplicaAccountDelta(msgspec.Struct, frozen=True, array_like=True):
    """The rows of one incarnation that the asker lacks."""

    incarnation: str
    base: Finite
    head: Finite
    clients: Rows
    tenants: Rows
    accounts: tuple[RouterAccountDelta, ...]
    closed_by: tuple[str, ...]


class ClosedTotalsDelta(msgspec.Struct, frozen=True, array_like=True):
    """Changes of closed totals; all rows if `base` is None."""

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
    """The rows that the asker lacks."""

    router: str
    """Incarnation of the router that answers."""
    members: tuple[str, ...]
    live: tuple[str, ...]
    replica_accounts: tuple[ReplicaAccountDelta, ...]
    closed_totals: ClosedTotalsDelta | None
    demand: tuple[DemandDelta, ...]
    adopted: dict[str, Rank]


class LedgerMessageError(ValueError):
    """A digest or a delta is malformed or has an unknown version."""


_VERSION: Final = bytes([LEDGER_VERSION])
_encoder = msgspec.msgpack.Encoder()
_digest = msgspec.msgpack.Decoder(LedgerDigest)
_delta = msgspec.msgpack.Decoder(LedgerDelta)
# For bad UTF-8 and deep nesting msgspec raises other errors than its own.
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
    """An encoded message with its length prefix."""
    return len(message).to_bytes(LENGTH_BYTES, "little") + message


def unframe(data: bytes) -> Iterator[bytes]:
    """The messages of a sequence of `frame`s; raises `LedgerMessageError` if one is cut short."""
    at = 0
    while at < len(data):
        begin = at + LENGTH_BYTES
        end = begin + int.from_bytes(data[at:begin], "little")
        if begin > len(data) or end > len(data):
            raise LedgerMessageError(f"a message at byte {at} is cut short")
        yield data[begin:end]
        at = end


def _content(data: bytes) -> memoryview:
    # Checked first, so that routers of two versions report the version and not a malformed message.
    if data[:1] != _VERSION:
        found = data[0] if data else "missing"
        raise LedgerMessageError(f"version {found} is not {LEDGER_VERSION}")
    return memoryview(data)[1:]
