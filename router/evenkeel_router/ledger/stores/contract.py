"""The seam between the ledger and whatever keeps it beyond this process (design R8).

Place in the flow: ledger → `keeping` → **store**, and back at the start. A store knows nothing of the ledger but that
it is a list of deltas, each of which may be merged alone, in any order and any number of times: so a store need
not lock, and what two routers wrote at the same time is merged when it is read.

The surprising thing: losing a store loses nothing while a replica or a router lives. A store may be away for as long
as it likes; the router serves on, says so, and writes everything again when it is back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from evenkeel_contract.ledgerwire import LedgerDelta


class StoreError(Exception):
    """The store cannot be read or written now; the message says why, without secrets. Tried again later."""


class LedgerStore(Protocol):
    """Keeps this router's whole ledger, and gives back what all routers left."""

    async def load(self) -> Sequence[LedgerDelta]:
        """All that is kept, by whomever; empty where nothing is. Raises `StoreError`.

        Called until it succeeds once, and never again. What is damaged beyond reading is put aside and logged, not
        raised: a router must be able to start.
        """

    async def save(self, whole: Sequence[LedgerDelta]) -> None:
        """Keep this router's whole ledger, in place of what it kept before. Raises `StoreError`.

        All of it or nothing: after a crash in between, `load` finds the old one. Only called after `load`. Encode part
        by part and let others run in between (`asyncio.sleep(0)`): there may be gigabytes.
        """

    async def close(self) -> None:
        """Give back connections and files. Never raises."""
