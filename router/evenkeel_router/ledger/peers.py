"""Asking the other routers for their part of the ledger (R3, contract `ledgerwire`).

Every router asks every other one each second for what changed since its last whole answer; the answer is what it lacks, in
parts that are merged as they arrive. A router keeps nothing per peer but the name that answered last and how far it has read that
one's ledger, so a peer that is away, slow or started anew needs no handling of its own.

The answer names a member, not the address: a peer that never answered has no name, and until it has one, nothing is
closed or compacted here. An address that turns out to be this router is no peer.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final
from urllib.parse import urlencode

import aiohttp
from evenkeel_contract.adminstate import SERVICE_QUERY
from evenkeel_contract.ledgerwire import (
    LEDGER_PATH,
    LENGTH_BYTES,
    LedgerMessageError,
    decode_delta,
    encode,
)

from evenkeel_router.ledger.contacts import Peer, PeerContact
from evenkeel_router.ledger.service_ledger import ServiceLedger
from evenkeel_router.settings import Settings

_log = logging.getLogger(__name__)
SILENCE_S: Final = 10.0
"""Longest wait for a piece of an answer: a peer writes one while it serves."""
MAX_PART_BYTES: Final = 256 * 1024 * 1024


class Peers:
    """Asks all peers."""

    def __init__(
        self,
        settings: Settings,
        service_ledger: ServiceLedger,
        session: aiohttp.ClientSession,
        *,
        several: bool = False,
    ) -> None:
        """`several`: the routers have several services, so a question names its own."""
        self._path = LEDGER_PATH
        if several:
            self._path += f"?{urlencode({SERVICE_QUERY: settings.config.service})}"
        self._settings = settings
        self._service_ledger = service_ledger
        self._session = session
        self._now = asyncio.get_running_loop().time
        self._tasks: dict[Peer, asyncio.Task[None]] = {}
        self.known = service_ledger.peer_contacts
        self.all_asked = asyncio.Event()
        """Event that is set once every peer was asked, with or without an answer."""

    def members(self) -> frozenset[str] | None:
        """All routers of the service by incarnation; None while a peer is not known by one."""
        if self.listed() is None:
            return None
        routers = [known.router for known in self.known.values()]
        return frozenset((self._service_ledger.ledger.router, *routers)) if all(routers) else None

    async def run(self) -> None:
        """Keep one asker for each peer, until cancelled."""
        try:
            while True:
                self._follow()
                await asyncio.sleep(self._interval_s())
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _interval_s(self) -> float:
        return self._settings.config.state.exchange_interval_s

    def listed(self) -> tuple[Peer, ...] | None:
        """All other routers, whether they answer or not; None until discovery finds them."""
        config, found = self._settings.config, self._service_ledger.peers
        if config.cluster is not None and config.cluster.peers is not None and found is None:
            return None
        configured = (Peer(peer.name, peer.url) for peer in config.state.peers)
        return tuple(dict.fromkeys((*configured, *(found or ()))))

    def _follow(self) -> None:
        wanted = self.listed() or ()
        for peer in [peer for peer in self._tasks if peer not in wanted]:
            self._tasks.pop(peer).cancel()
            del self.known[peer]
        for peer in set(wanted) - self._tasks.keys():
            self.known[peer] = PeerContact(since_s=self._now())
            self._tasks[peer] = asyncio.create_task(self._ask_forever(peer, self.known[peer]))
        if not self.known:
            self.all_asked.set()

    async def _ask_forever(self, peer: Peer, known: PeerContact) -> None:
        while True:
            try:
                await self._ask(peer, known)
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError, EOFError) as error:
                trouble = str(error) or type(error).__name__
                if not known.error:
                    _log.warning(
                        "router %s does not send its part of the ledger: %s", peer.name, trouble
                    )
                known.error = trouble
            else:
                if known.error:
                    _log.info("router %s answers again", peer.name)
                known.error = ""
                known.answered_s = self._now()
            known.asked = True
            if all(each.asked for each in self.known.values()):
                self.all_asked.set()
            await asyncio.sleep(self._interval_s())

    async def _ask(self, peer: Peer, known: PeerContact) -> None:
        """One question, and a second one if the peer asks for versions of accounts that changed there."""
        await self._ask_once(peer, known)
        if known.progress.listed:
            await self._ask_once(peer, known)

    async def _ask_once(self, peer: Peer, known: PeerContact) -> None:
        """A part that is lost or invalid ends a question: later parts would hide the gap."""
        question = encode(self._service_ledger.ledger.digest(known.progress))
        token = self._settings.config.state.peer_token
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE_S, sock_read=SILENCE_S)
        async with self._session.post(
            peer.url + self._path, data=question, headers=headers, timeout=timeout
        ) as response:
            if response.status != 200:
                raise ValueError(f"it answered {response.status}")
            while True:
                length = await response.content.read(LENGTH_BYTES)
                if not length:
                    return
                rest = await response.content.readexactly(LENGTH_BYTES - len(length))
                await self._merge(known, response.content, int.from_bytes(length + rest, "little"))

    async def _merge(
        self, known: PeerContact, content: aiohttp.StreamReader, size_bytes: int
    ) -> None:
        if size_bytes > MAX_PART_BYTES:
            raise LedgerMessageError(f"a part of {size_bytes} bytes is beyond {MAX_PART_BYTES}")
        delta = decode_delta(await content.readexactly(size_bytes))
        known.router = delta.router
        if delta.router != self._service_ledger.ledger.router:
            self._service_ledger.ledger.merge(delta)
        if delta.revision:  # the last part
            known.progress.answered(delta)
        await asyncio.sleep(0)  # a part may hold thousands of rows: requests come first
