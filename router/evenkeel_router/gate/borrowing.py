"""Asking other routers for places at engines, for requests that find no room here (R12; `lending` is the other side).

While requests wait at this router, each peer has one open question: which clients wait. A place that comes as an answer goes to the
oldest request of its client, whichever that is then. The next question confirms the place, or gives it back; so does the end of the
request. A peer that does not answer delays nothing: requests wait at their own gates as they would without peers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from urllib.parse import urlencode

import aiohttp
from evenkeel_contract.adminstate import SERVICE_QUERY
from evenkeel_contract.placeswire import (
    MOST_HELD,
    MOST_WANTS,
    PLACES_PATH,
    PlacesAnswer,
    PlacesAsk,
    PlaceWant,
    decode_answer,
    encode,
)

from evenkeel_router.gate.gates import Gates
from evenkeel_router.gate.turns import Turn
from evenkeel_router.ledger.contacts import Peer
from evenkeel_router.settings import Settings

LEAST_S: Final = 0.01
"""Shortest time from one question to the next: it has all that changed meanwhile."""
RETRY_S: Final = 1.0
"""Pause after a question without an answer."""
ANSWER_TIMEOUT_S: Final = 3.0

Transport: TypeAlias = Callable[[Peer, PlacesAsk], Awaitable[PlacesAnswer]]
"""Sends a question; raises `OSError`, `TimeoutError` or `ValueError`."""


@dataclass(slots=True, eq=False)
class _Lender:
    """What one peer has lent to this router."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)
    router: str = ""
    """Incarnation that answered last; empty before."""
    sequence: int = 0
    seen: int = 0
    held: dict[int, Turn] = field(default_factory=dict)
    asks: bool = False
    """Whether the last question wanted or held something."""

    def forget(self, router: str) -> None:
        """Another process answers, or none: requests that run go on, and their places count there no more."""
        self.router, self.seen = router, 0
        self.held.clear()


class Borrowing:
    """What this router asks all others for."""

    def __init__(
        self,
        gates: Gates,
        router: str,
        send: Transport,
        *,
        peers: Callable[[], Sequence[Peer] | None],
        interval_s: Callable[[], float],
    ) -> None:
        """`router`: incarnation of this one. `peers`: all others; None while they are not known."""
        self._gates = gates
        self._router = router
        self._send = send
        self._peers = peers
        self._interval_s = interval_s
        self._lenders: dict[Peer, _Lender] = {}
        self._tasks: dict[Peer, asyncio.Task[None]] = {}
        gates.waiters.changed = self._changed

    async def run(self) -> None:
        """Keep a task for each peer, until cancelled."""
        try:
            while True:
                self._follow(self._peers() or ())
                await asyncio.sleep(self._interval_s())
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _follow(self, wanted: Sequence[Peer]) -> None:
        for peer in [peer for peer in self._tasks if peer not in wanted]:
            self._tasks.pop(peer).cancel()
            del self._lenders[peer]
        for peer in wanted:
            if peer not in self._tasks:
                lender = self._lenders[peer] = _Lender()
                self._tasks[peer] = asyncio.create_task(self._ask_forever(peer, lender))

    def _changed(self) -> None:
        for lender in self._lenders.values():
            lender.changed.set()

    async def _ask_forever(self, peer: Peer, lender: _Lender) -> None:
        """One question after the other. A newer one goes out while the last one waits for its answer, which comes at once then."""
        open_: set[asyncio.Task[bool]] = set()
        try:
            while True:
                news = asyncio.ensure_future(lender.changed.wait())
                try:
                    await asyncio.wait((news, *open_), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    news.cancel()
                done = {task for task in open_ if task.done()}
                open_ -= done
                if not all(task.result() for task in done):
                    lender.forget("")
                    await asyncio.sleep(RETRY_S)
                if open_ and not lender.changed.is_set():
                    continue
                await asyncio.sleep(LEAST_S)
                lender.changed.clear()
                ask = self._ask(lender)
                says = bool(ask.wants or ask.held)
                if says or lender.asks:
                    lender.asks = says
                    open_.add(asyncio.create_task(self._exchange(peer, lender, ask)))
        finally:
            for task in open_:
                task.cancel()
            await asyncio.gather(*open_, return_exceptions=True)

    def _ask(self, lender: _Lender) -> PlacesAsk:
        lender.sequence += 1
        wants = tuple(self._want(client) for client in self._gates.waiters.clients(MOST_WANTS))
        held = tuple(lender.held)[:MOST_HELD]
        if len(held) == MOST_HELD:
            wants = ()
        return PlacesAsk(self._router, lender.router, lender.sequence, lender.seen, held, wants)

    def _want(self, client: str) -> PlaceWant:
        oldest = next(self._gates.waiters.oldest(client)).request
        return PlaceWant(client, oldest.input_tokens, oldest.max_output_tokens)

    async def _exchange(self, peer: Peer, lender: _Lender, ask: PlacesAsk) -> bool:
        """One question and its answer. Returns whether another router answered."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answer = await self._send(peer, ask)
        except (OSError, TimeoutError, ValueError):
            return False
        if answer.router == self._router:
            return False  # an address of this router itself
        if answer.router != lender.router:
            lender.forget(answer.router)
        for grant in answer.grants:
            if grant.number > lender.seen:
                lender.seen = grant.number
                self._take(lender, grant.number, grant.client, grant.replica)
        if answer.grants:
            lender.changed.set()
        return True

    def _take(self, lender: _Lender, number: int, client: str, replica: str) -> None:
        """A place came. If no request can use it, the next question gives it back."""
        turn = self._gates.borrow(client, replica)
        if turn is not None:
            held = lender.held

            def give_back() -> None:
                if held.get(number) is turn:
                    del held[number]
                    lender.changed.set()

            held[number] = turn
            turn.give_back = give_back


def http_transport(
    session: aiohttp.ClientSession, settings: Settings, *, several: bool
) -> Transport:
    """Questions as `POST /v1/places` to admin ports. `several`: the routers have several services, so a question names its own."""

    async def send(peer: Peer, ask: PlacesAsk) -> PlacesAnswer:
        token, path = settings.config.state.peer_token, PLACES_PATH
        if several:
            path += f"?{urlencode({SERVICE_QUERY: settings.config.service})}"
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            async with session.post(peer.url + path, data=encode(ask), headers=headers) as response:
                if response.status != 200:
                    raise ValueError(f"it answered {response.status}")
                return decode_answer(await response.read())
        except aiohttp.ClientError as error:
            raise OSError(str(error) or type(error).__name__) from error

    return send
