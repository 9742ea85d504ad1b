"""Moving what waits off a replica that drains (docs/design/0003; R7, R11).

Place in the flow: drain → next report → **broken off** → next report → **what ran** → forwarded elsewhere.

A queue that is served out is served by what clients happen to have in it, whatever their weights, and that adds up over
drains. So with every report of a replica that drains, what has not begun there by it is broken off, and its task
sends it elsewhere; never unless another replica is routable that the request was not tried at. What runs is finished.

The surprising thing: nobody can tell for sure what has not begun. So a request that was broken off waits for
another report, which says how many may have begun, and what output they paid: these count as charged there, and go
on with the flag of R11 and that output.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from typing import Final

from evenkeel_router.ledger.relocated import HeldWork, RelocationVerdict, TakenBack
from evenkeel_router.request.request_state import RequestState
from evenkeel_router.state import RouterState

_log = logging.getLogger(__name__)
NOTICE_S: Final = 5.0
"""How long a replica may take to let go of a request: SGLang looks for clients that are gone every 4 s."""


class Move:
    """What was broken off of one client at one replica, until a report says what of it had begun."""

    def __init__(self, taken: TakenBack) -> None:
        self.taken = taken
        self.told: RelocationVerdict | None = None
        """By the last report; None: there was none yet."""
        self._noticed = asyncio.Event()

    def heard(self, held: HeldWork) -> bool:
        """A report says what the replica has of the client; whether it has let go of what was broken off."""
        self.told = self.taken.told(held)
        settled = self.taken.is_settled(held)
        if settled:
            self.end()
        return settled

    def end(self) -> None:
        """Nothing more will be heard."""
        self._noticed.set()

    async def verdict(self) -> RelocationVerdict | None:
        """What had begun; None where no report ever said."""
        try:
            async with asyncio.timeout(NOTICE_S):
                await self._noticed.wait()
        except TimeoutError:
            pass
        return self.told


class Relocation:
    """Moves what waits."""

    def __init__(self, state: RouterState) -> None:
        self._state = state
        self._moves: dict[str, dict[str, Move]] = {}
        """By incarnation and client, those that are not noticed yet. No empty ones."""

    def heard(self, incarnation: str) -> None:
        """A report of an incarnation is in the ledger."""
        self._settle(incarnation)
        books = self._state.accounting
        knows = books.is_draining(incarnation) and not books.is_incomplete(incarnation)
        if knows and self._state.fleet.routable:
            self._take(incarnation)

    def forget(self, incarnation: str) -> None:
        """Nothing will be heard of it any more."""
        for move in self._moves.pop(incarnation, {}).values():
            move.end()

    def _settle(self, incarnation: str) -> None:
        moves = self._moves.pop(incarnation, {})
        for client, move in list(moves.items()):
            if move.heard(self._state.accounting.held(incarnation, client)):
                del moves[client]
        if moves:
            self._moves[incarnation] = moves

    def _take(self, incarnation: str) -> None:
        unanswered: dict[str, list[tuple[int, RequestState]]] = defaultdict(list)
        for request_state in self._state.active_requests:
            booking = request_state.booking
            if (
                booking is not None
                and booking.incarnation == incarnation
                and request_state.first_byte_s is None
                and request_state.move is None
            ):
                unanswered[booking.client.identity].append((booking.number, request_state))
        moved = 0
        for client, theirs in unanswered.items():
            if client not in self._moves.get(incarnation, ()):
                theirs.sort(key=lambda one: one[0])
                moved += self._take_from(
                    incarnation, client, [request_state for _, request_state in theirs]
                )
        if moved:
            _log.info("%d requests that waited at a replica that drains go elsewhere", moved)

    def _take_from(self, incarnation: str, client: str, unanswered: list[RequestState]) -> int:
        """Break off what of a client's unanswered requests, oldest first, only waits; how many."""
        books, routable = self._state.accounting, self._state.fleet.routable
        held, open_here = books.held(incarnation, client), books.open_at(incarnation, client)
        waiting = held.waiting_here(open_here, len(unanswered))
        if not waiting:
            return 0
        taken = [
            request_state
            for request_state in unanswered[-waiting:]
            if routable & ~request_state.tried
            and request_state.exchange
            and request_state.exchange.break_off()
        ]
        numbers = tuple(
            request_state.booking.number for request_state in taken if request_state.booking
        )
        move = Move(TakenBack(held, held.share(open_here), numbers))
        for request_state in taken:
            request_state.move = move
        if taken:
            self._moves.setdefault(incarnation, {})[client] = move
        return len(taken)
