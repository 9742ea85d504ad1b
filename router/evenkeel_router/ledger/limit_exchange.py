"""Moves parts of tenants' limits between this router and the others (design/limits.md).

Each second this router asks every other one for parts, so that they follow demand. A request that finds the part
here used up asks at once and waits for the answers. The oldest router that reaches all others runs the census.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import aiohttp
from evenkeel_contract.limitswire import LIMITS_PATH, LimitsAnswer, LimitsAsk, decode_answer, encode

from evenkeel_router.ledger.contacts import Peer
from evenkeel_router.ledger.limit_parts import TINY, LimitPart, LimitParts

_log = logging.getLogger(__name__)
INTERVAL_S: Final = 1.0
"""Longest time between two exchanges: a shorter exchange interval of the configuration counts here, too."""
ANSWER_TIMEOUT_S: Final = 2.0
"""Longest wait for an answer. A request waits as long for parts of a router that stopped answering: only once, then
it is silent."""
PAUSE_S: Final = 1.0
"""Longest time for which no request asks again, after no other router had anything free."""
BUSY_PAUSE_S: Final = 0.1
"""Pause for a limit of requests in flight: when one of them ends is not known."""
RETRIES_S: Final = (0.05, 0.1, 0.2)
"""Parts on their way between other routers, or a census, take some milliseconds; then a question may bring more."""
CENSUS_INTERVAL_S: Final = 10.0
"""A part whose message was lost is missing for as long."""
GONE_AFTER_S: Final = 3.0
"""After it refused connections for so long, the process of a router has ended, and its parts are free."""


class Contact(Enum):
    """What is known of another router."""

    ANSWERS = "answers"
    SILENT = "silent"  # it may run, and have parts
    REFUSES = "refuses"  # no process listens there
    UNAWARE = "unaware"  # a version that does not share limits, and has no parts


@dataclass(slots=True)
class _Standing:
    contact: Contact = Contact.SILENT
    router: str = ""
    """Incarnation of the router, from the last answer; empty before."""
    since_s: float = 0.0

    def becomes(self, contact: Contact, now_s: float) -> None:
        if contact is not self.contact:
            self.contact, self.since_s = contact, now_s

    def is_gone(self, now_s: float) -> bool:
        return self.contact is Contact.REFUSES and now_s - self.since_s >= GONE_AFTER_S


Transport = Callable[[Peer, LimitsAsk], Awaitable[LimitsAnswer]]
"""Sends a question to a router; raises `OSError`, `TimeoutError`, `ValueError`, or `Unaware`."""


class Unaware(Exception):
    """The other router does not know this exchange."""


class LimitExchange:
    """The exchange of one router."""

    def __init__(
        self,
        parts: LimitParts,
        send: Transport,
        *,
        peers: Callable[[], Sequence[Peer] | None],
        interval_s: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        """`peers`: all other routers that may run; None while they are not known."""
        self._parts = parts
        self._send = send
        self._peers = peers
        self._interval_s = interval_s
        self._now = now
        self._standings: dict[Peer, _Standing] = {}
        self._counted: frozenset[str] = frozenset()
        """The routers of the last census."""
        self._counted_s = 0.0
        self._batch: dict[str, _Need] | None = None
        self._batch_task: asyncio.Task[None] | None = None
        self._batches: set[asyncio.Task[None]] = set()
        self._one_batch = asyncio.Lock()
        self._paused_until_s: dict[str, float] = {}
        self.ready = asyncio.Event()
        """Event that is set once this router may have parts."""

    async def run(self) -> None:
        """Exchange parts until cancelled."""
        try:
            while True:
                await self.round()
                await asyncio.sleep(min(INTERVAL_S, self._interval_s()))
        finally:
            for task in self._batches:
                task.cancel()
            await asyncio.gather(*self._batches, return_exceptions=True)

    async def round(self) -> None:
        """Ask every other router once; run a census if one is due."""
        peers = self._peers()
        if peers is None:
            return
        self._standings = {peer: self._standings.get(peer) or _Standing() for peer in peers}
        ask = self._parts.ask(self._now())
        await asyncio.gather(*(self._ask(peer, ask) for peer in peers))
        if self._census_is_due():
            await self._census()
        if self._parts.has_entered:
            self.ready.set()

    async def _ask(self, peer: Peer, ask: LimitsAsk) -> LimitsAnswer | None:
        """One question. What it brings is taken, unless it comes too late for the epoch."""
        standing = self._standings.setdefault(peer, _Standing())
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answer = await self._send(peer, ask)
        except ConnectionRefusedError:
            standing.becomes(Contact.REFUSES, self._now())
        except Unaware:
            standing.becomes(Contact.UNAWARE, self._now())
        except (OSError, TimeoutError, ValueError) as error:
            if standing.contact is Contact.ANSWERS:
                _log.warning("router %s does not exchange limits: %s", peer.name, error)
            standing.becomes(Contact.SILENT, self._now())
        else:
            standing.becomes(Contact.ANSWERS, self._now())
            standing.router = answer.router
            if answer.router != self._parts.router:  # an address of this router itself
                self._parts.receive(answer, self._now())
            return answer
        return None

    # The census.

    def _others(self) -> list[Peer]:
        """The routers that answer, without this one."""
        return [
            peer
            for peer, standing in self._standings.items()
            if standing.contact is Contact.ANSWERS and standing.router != self._parts.router
        ]

    def _census_is_due(self) -> bool:
        now_s, own = self._now(), self._parts.router
        for standing in self._standings.values():
            answers = standing.contact in (Contact.ANSWERS, Contact.UNAWARE)
            if not answers and not standing.is_gone(now_s):
                return False  # it may have parts that are not free
        routers = frozenset((own, *(self._standings[peer].router for peer in self._others())))
        if own != min(routers) or not self._parts.heard(now_s) <= routers:
            return False
        changed = routers != self._counted or self._parts.epoch[1] != own
        return changed or now_s - self._counted_s >= CENSUS_INTERVAL_S

    async def _census(self) -> None:
        peers = self._others()
        ask = self._parts.begin_census()
        answers = await asyncio.gather(*(self._ask(peer, ask) for peer in peers))
        given = [answer for answer in answers if answer is not None]
        if len(given) == len(peers) and self._parts.end_census(ask, given, self._now()):
            self._counted = frozenset((self._parts.router, *(each.router for each in given)))
            self._counted_s = self._now()

    # Requests that wait for parts.

    async def top_up(self, limit: LimitPart, amount: float) -> bool:
        """Ask other routers for what a request needs; False at once if that is in vain.

        After True the part may still be too small: another request may have used what came.
        """
        if self._now() < self._paused_until_s.get(limit.name, 0.0) or not self._may_give():
            return False
        if self._batch is None:
            self._batch = {}
            self._batch_task = asyncio.create_task(self._top_up_batch(self._batch))
            self._batches.add(self._batch_task)
            self._batch_task.add_done_callback(self._batches.discard)
        need = self._batch.setdefault(limit.name, _Need(limit))
        need.amount += amount
        assert self._batch_task is not None
        await asyncio.shield(self._batch_task)
        return True

    async def _top_up_batch(self, batch: Mapping[str, _Need]) -> None:
        async with self._one_batch:
            self._batch = None  # requests from now on are in the next one
            await self._gather(batch)
            for retry_s in RETRIES_S:
                if not (lacking := self._lacking(batch)):
                    break
                await asyncio.sleep(retry_s)
                await self._gather(lacking)
        now_s = self._now()
        for name, need in self._lacking(batch).items():
            wait_s = need.limit.wait_s(now_s) or BUSY_PAUSE_S
            self._paused_until_s[name] = now_s + min(PAUSE_S, max(wait_s, RETRIES_S[0]))

    async def _gather(self, batch: Mapping[str, _Need]) -> None:
        needs = {name: need.amount / need.limit.size for name, need in batch.items()}
        ask = self._parts.ask(self._now(), needs)
        await asyncio.gather(*(self._ask(peer, ask) for peer in self._may_give()))

    def _may_give(self) -> list[Peer]:
        """The routers that answer, and those on the list that were not asked yet: a request asks them before the next round."""
        new = [peer for peer in self._peers() or () if peer not in self._standings]
        return self._others() + new

    def _lacking(self, batch: Mapping[str, _Need]) -> dict[str, _Need]:
        """Limits of which not even one request, or token, is free."""
        now_s = self._now()
        return {name: need for name, need in batch.items() if need.limit.free(now_s) < 1.0 - TINY}


@dataclass(slots=True)
class _Need:
    limit: LimitPart
    amount: float = 0.0
    """What all requests that wait need of the limit."""


def http_transport(session: aiohttp.ClientSession, token: Callable[[], str | None]) -> Transport:
    """Questions as `POST /v1/limits` to admin ports."""

    async def send(peer: Peer, ask: LimitsAsk) -> LimitsAnswer:
        bearer = token()
        headers = {} if bearer is None else {"Authorization": f"Bearer {bearer}"}
        url = peer.url + LIMITS_PATH
        try:
            async with session.post(url, data=encode(ask), headers=headers) as response:
                if response.status == 404:
                    raise Unaware
                if response.status != 200:
                    raise ValueError(f"it answered {response.status}")
                return decode_answer(await response.read())
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, ConnectionRefusedError):
                raise ConnectionRefusedError(str(error)) from error
            raise OSError(str(error)) from error
        except aiohttp.ClientError as error:
            raise OSError(str(error) or type(error).__name__) from error

    return send
