"""Messages in which routers exchange their ledgers (design R3): `POST /v1/ledger` on the admin port.

The request is a `Digest`, the versions that the asker has; of accounts only where they may differ, once it has read the other
router's ledger. The response has the rows that it lacks, as one or several `Delta`. Each may be merged alone, so that a large ledger is written and merged in slices. The response to an empty
digest is a whole ledger, which stores keep too. A message is one byte of version and MessagePack. In a sequence each
message follows its length in four bytes, little-endian. `evenkeel_fairshare.ledger` declares the fields: named tuples are
arrays in MessagePack. A change of them needs a new `LEDGER_VERSION`.

Rows travel as names and one block of little-endian doubles: a hundred thousand clients are one copy, not a million
numbers. `Ledger.merge` checks that a block fits its names and that all numbers are finite. A router's row has four numbers since
version 5: before, it had no base, which is 0 then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from evenkeel_fairshare.ledger import Delta, Digest
from evenkeel_fairshare.ledger.merge_table import DOUBLE_BYTES

from evenkeel_contract.messages import pack, unpack

LEDGER_PATH: Final = "/v1/ledger"
LEDGER_VERSION: Final = 5
READABLE_VERSIONS: Final = (3, 4, 5)
"""Versions of deltas that are read, for stores may hold them: those of version 3 lack only fields with defaults."""
FIRST_WITH_BASES: Final = 5
ROW_WITHOUT_BASE: Final = 3 * DOUBLE_BYTES
"""Bytes of a router's row before `FIRST_WITH_BASES`."""
LENGTH_BYTES: Final = 4
"""Length prefix of each message in a sequence."""


class LedgerMessageError(ValueError):
    """A digest or a delta is malformed or has an unknown version."""


_digest = msgspec.msgpack.Decoder(Digest)
_delta = msgspec.msgpack.Decoder(Delta)


def encode(message: Digest | Delta) -> bytes:
    """Encode a digest or a delta."""
    return pack(LEDGER_VERSION, message)


def decode_digest(data: bytes) -> Digest:
    """Decode a digest; raises `LedgerMessageError`."""
    what = "a ledger's digest"
    return unpack(_digest, data, LEDGER_VERSION, what=what, error=LedgerMessageError)


def decode_delta(data: bytes) -> Delta:
    """Decode a delta; raises `LedgerMessageError`."""
    what = "a ledger's delta"
    version = data[0] if data and data[0] in READABLE_VERSIONS else LEDGER_VERSION
    delta = unpack(_delta, data, version, what=what, error=LedgerMessageError)
    return delta if version >= FIRST_WITH_BASES else _with_bases(delta)


def _with_bases(delta: Delta) -> Delta:
    """A delta from before version 5, with a base of 0 in each row of a router."""
    accounts = (
        account._replace(
            accounts=tuple(
                part._replace(clients=part.clients.widened(ROW_WITHOUT_BASE))
                for part in account.accounts
            )
        )
        for account in delta.replica_accounts
    )
    return delta._replace(replica_accounts=tuple(accounts))


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
