"""The seam between the ledger and a store that outlives the process (R8).

A store holds a list of deltas, each of which may be merged alone, in any order and any number of times. So a store needs
no lock, and what two routers wrote at the same time is merged when it is read. A lost store loses nothing while a
replica or a router lives: the router serves on, reports the loss, and writes everything again when the store returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from evenkeel_fairshare.ledger import Delta

Clock: TypeAlias = Callable[[], float]
"""Seconds since some moment; the event loop's `time`."""


class StoreError(Exception):
    """The store cannot be read or written now; the message says why, without secrets. Tried again later."""


class LedgerStore(Protocol):
    """Keeps this router's whole ledger, and gives back what all routers left."""

    async def load(self) -> Sequence[Delta]:
        """Everything that any router stored; empty where there is nothing. Raises `StoreError`.

        Called until it succeeds once, and never again. What is damaged beyond reading is put aside and logged, not
        raised: a router must be able to start.
        """

    async def save(self, whole: Sequence[Delta]) -> None:
        """Keep this router's whole ledger, in place of what it kept before. Raises `StoreError`.

        All of it or nothing: after a crash in between, `load` finds the old one. Only called after `load`. Encode part
        by part and let others run in between (`asyncio.sleep(0)`): there may be gigabytes.
        """

    async def close(self) -> None:
        """Close connections and files. Never raises."""
