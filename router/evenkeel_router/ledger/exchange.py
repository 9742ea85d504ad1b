"""The ledger's messages as they travel: dataclasses of fairshare ⇄ wire structs of contract (design R3).

Place in the flow: ledger → **to wire** → peers and stores → **from wire** → ledger. Blocks of rows are handed on as
they are, so that this costs by the page, not by the row.
"""

from __future__ import annotations

import msgspec
from evenkeel_contract.ledgerwire import LedgerDelta, LedgerDigest
from evenkeel_fairshare.ledger import Delta, Digest


def to_wire(delta: Delta) -> LedgerDelta:
    """A delta to be encoded."""
    return msgspec.convert(delta, LedgerDelta, from_attributes=True)


def from_wire(delta: LedgerDelta) -> Delta:
    """A delta to be merged."""
    return msgspec.convert(delta, Delta, from_attributes=True)


def digest_to_wire(digest: Digest) -> LedgerDigest:
    """A question to be encoded."""
    return msgspec.convert(digest, LedgerDigest, from_attributes=True)


def digest_from_wire(digest: LedgerDigest) -> Digest:
    """A question to be answered."""
    return msgspec.convert(digest, Digest, from_attributes=True)
