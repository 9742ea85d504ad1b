"""Revocations of signed keys on their way: to and from the other routers, and to a store that outlives this router.

Every router asks every other one each second for a changed list. A revocation therefore reaches all routers within two seconds. It
is stored before the administrator gets the answer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import aiohttp
from evenkeel_contract.revocations import (
    REVOCATIONS_PATH,
    Revocation,
    RevocationList,
    RevocationMessage,
    RevocationsError,
    decode,
    encode,
)

from evenkeel_router.ledger.contacts import Peer

_log = logging.getLogger(__name__)
INTERVAL_S: Final = 1.0
"""Longest time between two questions, whatever the configuration says of other exchanges."""
_TIMEOUT: Final = aiohttp.ClientTimeout(total=5.0)
_REFRESH_S: Final = 2.0
_MAX_BYTES: Final = 128 * 1024 * 1024


class RevocationStore(Protocol):
    """What keeps revocations while no router runs. Its errors are `OSError`."""

    @property
    def place(self) -> str:
        """Where they are."""

    async def load(self) -> Sequence[Revocation]:
        """All that were stored; raises `RevocationsError` for what cannot be read."""

    async def save(self, all_: RevocationList, added: Sequence[Revocation]) -> None:
        """Store what was added. `all_`: the whole list."""

    async def drop(self, all_: RevocationList, gone: Sequence[Revocation]) -> None:
        """Remove those that ended."""


class FileStore:
    """A file, replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def place(self) -> str:
        return str(self._path)

    async def load(self) -> Sequence[Revocation]:
        def read() -> bytes | None:
            return self._path.read_bytes() if self._path.exists() else None

        data = await asyncio.to_thread(read)
        return () if data is None else decode(data).revocations

    async def save(self, all_: RevocationList, added: Sequence[Revocation]) -> None:
        data = encode(RevocationMessage(tuple(all_)))
        await asyncio.to_thread(self._write, data)

    async def drop(self, all_: RevocationList, gone: Sequence[Revocation]) -> None:
        await self.save(all_, ())

    def _write(self, data: bytes) -> None:
        new = self._path.with_name(f"{self._path.name}.new")
        with new.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)


class RevocationExchange:
    """The exchange of one router."""

    def __init__(
        self,
        revocations: RevocationList,
        session: aiohttp.ClientSession,
        *,
        router: str,
        peers: Callable[[], Sequence[Peer] | None],
        token: Callable[[], str | None],
        interval_s: Callable[[], float],
        store: Callable[[], RevocationStore | None],
        changed: Callable[[Sequence[Revocation], str], None],
    ) -> None:
        """`changed` takes revocations that were new here, and where they came from. `router`: this router's incarnation. `store`
        gives the one of the configuration in force."""
        self._revocations = revocations
        self._session = session
        self._router = router
        self._peers = peers
        self._token = token
        self._interval_s = interval_s
        self._store = store
        self._changed = changed
        self._seen: dict[Peer, tuple[str, int]] = {}
        """Peer → its incarnation and the version of its list that was merged."""
        self._unstored: list[Revocation] = []
        self._place = ""
        """Where the list was stored last."""
        self._writing = asyncio.Lock()
        self._asking = asyncio.Lock()
        self._rounds = 0
        """Questions to all other routers that `refresh` began."""

    async def open(self) -> None:
        """Read what was stored, and ask the other routers once. Raises `RevocationsError` and `OSError`: a router that does not know
        what is revoked must not start."""
        await self._save()
        await self._ask_all()

    async def run(self) -> None:
        """Exchange until cancelled."""
        while True:
            await asyncio.sleep(min(INTERVAL_S, self._interval_s()))
            await self._ask_all()
            await self._expire()
            await self._save_rest()

    async def revoke(self, given: Iterable[Revocation], by: str) -> None:
        """Add revocations and store them; raises `OSError` if they are in force here and could not be stored, and `RevocationsError` if
        the list has no room for them."""
        wanted = list(given)
        self._merge(wanted, by)
        now_s = time.time()
        if any(one.subject not in self._revocations and one.until_s > now_s for one in wanted):
            raise RevocationsError(
                f"the list is full: it has {self._revocations.count} revocations; revoke a client or a tenant, "
                "or change the signing key"
            )
        await self._save()

    async def refresh(self) -> None:
        """Learn what other routers revoked until now, as far as they answer soon. Concurrent calls share a question."""
        known = self._rounds
        async with self._asking:
            if self._rounds == known:  # else one began, and ended, while this call waited
                self._rounds += 1
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._ask_all(), _REFRESH_S)

    def message(self) -> RevocationMessage:
        """The answer to another router."""
        found = self._revocations
        return RevocationMessage(tuple(found), found.version, self._router)

    def _merge(self, given: Iterable[Revocation], by: str) -> None:
        added = self._revocations.merge(given, time.time())
        if added:
            self._changed(added, by)
            self._unstored += added

    async def _save(self) -> None:
        store = self._store()
        if store is None:
            self._place = ""
            self._unstored.clear()
            return
        async with self._writing:
            if store.place != self._place:
                self._merge(await store.load(), "store")
                self._unstored = list(self._revocations)
                self._place = store.place
            added, self._unstored = self._unstored, []
            if added:
                try:
                    await store.save(self._revocations, added)
                except BaseException:
                    self._unstored = added + self._unstored
                    raise

    async def _save_rest(self) -> None:
        """Store what other routers sent, and what could not be stored before."""
        try:
            await self._save()
        except (OSError, RevocationsError) as error:
            _log.warning("cannot store revocations, and tries again: %s", error)

    async def _expire(self) -> None:
        gone = self._revocations.expire(time.time())
        store = self._store()
        if gone and store is not None:
            try:
                await store.drop(self._revocations, gone)
            except OSError as error:
                _log.warning("cannot remove revocations that ended: %s", error)

    async def _ask_all(self) -> None:
        peers = self._peers() or ()
        for peer in self._seen.keys() - set(peers):
            del self._seen[peer]
        await asyncio.gather(*map(self._ask, peers))

    async def _ask(self, peer: Peer) -> None:
        token, seen = self._token(), self._seen.get(peer, ("", 0))
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        known = {"router": seen[0], "version": str(seen[1])}
        try:
            async with self._session.get(
                peer.url + REVOCATIONS_PATH, params=known, headers=headers, timeout=_TIMEOUT
            ) as response:
                if response.status == 200:
                    answer = decode(await response.content.read(_MAX_BYTES))
                    self._merge(answer.revocations, f"router {peer.name}")
                    self._seen[peer] = answer.router, answer.version
        except (aiohttp.ClientError, TimeoutError, OSError, RevocationsError) as error:
            _log.debug("router %s does not send its revocations: %s", peer.name, error)
