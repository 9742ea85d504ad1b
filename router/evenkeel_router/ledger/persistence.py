"""Reading the ledger from its store at the start, and writing it from then on (R8).

Reading comes first, however long it takes: a ledger saved before would replace the one to be read. No request waits for
the store: while it does not answer, requests are served from what replicas and peers know; `error` gives the reason
to the state, the metrics and the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from evenkeel_contract.routerconfig import RouterConfig, StateStore
from evenkeel_fairshare.ledger import Delta, Ledger

from evenkeel_router.ledger.stores.contract import Clock, LedgerStore, StoreError
from evenkeel_router.ledger.stores.file import FileStore

_log = logging.getLogger(__name__)
FIRST_PAUSE_S: Final = 0.5
LAST_PAUSE_S: Final = 30.0
LAST_SAVE_S: Final = 5.0
"""Longest time for the save at the end: stopping a router waits for it."""


class Persistence:
    """One ledger and one store."""

    def __init__(
        self, ledger: Ledger, store: LedgerStore, *, interval_s: Callable[[], float], now: Clock
    ) -> None:
        """`interval_s` is asked before every pause, since configurations change."""
        self._ledger = ledger
        self._store = store
        self._interval_s = interval_s
        self._now = now
        self.loaded = asyncio.Event()
        """Event that is set once the store was read."""
        self.error: str | None = None
        """Why the store does not answer; None while it does."""
        self.began_s = now()
        self.loaded_s: float | None = None
        """Time at which the store was read; None before."""
        self.saved_s: float | None = None
        """Time at which the store was last written; None before."""

    async def run(self) -> None:
        """Read, then write until cancelled, and once more at the end."""
        try:
            await self._load()
            while True:
                await asyncio.sleep(self._interval_s())
                await self._save()
        finally:
            if self.loaded.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_SAVE_S):
                        await self._save()
            await self._store.close()

    async def _load(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                parts = await self._store.load()
            except StoreError as error:
                self._has_failed(error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LAST_PAUSE_S)
                continue
            await self._merge(list(parts))
            self._has_answered()
            self.loaded_s = self._now()
            self.loaded.set()  # last: from now on a save may replace what was stored
            return

    async def _merge(self, parts: list[Delta]) -> None:
        """Merge the parts in order. An invalid part of an account ends it: later parts would hide the gap, and no
        router would ask for it."""
        lost: set[tuple[str, str]] = set()
        parts.reverse()  # taken off the end, so that what was merged is not held twice
        while parts:
            part = parts.pop()
            accounts = {(part.router, one.incarnation) for one in part.replica_accounts}
            if accounts & lost:
                continue
            try:
                self._ledger.merge(part)
            except ValueError as error:
                _log.warning("a part of the stored ledger is invalid and is ignored: %s", error)
                lost |= accounts
            await asyncio.sleep(0)  # a part may hold many thousand rows: requests come first

    async def _save(self) -> None:
        parts = []
        for part in self._ledger.parts():
            parts.append(part)
            await asyncio.sleep(0)
        try:
            await self._store.save(parts)
        except StoreError as error:
            self._has_failed(error)
        else:
            self.saved_s = self._now()
            self._has_answered()

    def _has_failed(self, error: StoreError) -> None:
        if self.error is None:
            _log.warning(
                "the ledger's store does not answer; requests are served without it: %s", error
            )
        self.error = str(error)

    def _has_answered(self) -> None:
        if self.error is not None:
            _log.info("the ledger's store answers again")
        self.error = None


def store_of(config: RouterConfig, now: Clock) -> LedgerStore | None:
    """The configured store, not opened yet; none with store Peers: routers pull what they need from each other."""
    state = config.state
    if state.store is StateStore.FILE and state.file is not None:
        return FileStore(Path(state.file))
    if state.store is StateStore.REDIS and state.redis_url is not None:
        # A tenth of the router's time to import; it also imports the SDK of OpenTelemetry where that is installed.
        from evenkeel_router.ledger.stores.redis import RedisStore

        service = f"{config.namespace}/{config.service}"
        return RedisStore(state.redis_url, service=service, clock=now)
    return None
