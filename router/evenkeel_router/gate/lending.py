"""Places at engines that this router lends to others (R12).

A router whose request finds no room asks its peers for a place (contract `placeswire`). Its client then waits here too: when a request
of this router leaves an engine, the client arrives at that gate as a guest, beside those of other gates (`gates`), and the policy decides.
A guest that is admitted is a loan: its place counts as used here until the other router gives it back. Only a place that this router used
itself is lent, since others may have taken any other one.

Each question says what its router wants and holds, and replaces the one before. A router that asks nothing for `LOST_S` wants and holds
nothing any more. Client names are claims: a name that is no identity is ignored, and weights are this router's own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from evenkeel_contract.placeswire import PlaceGrant, PlacesAnswer, PlacesAsk, PlaceWant

from evenkeel_router.gate.gates import Gates
from evenkeel_router.gate.turns import Place
from evenkeel_router.gate.window import GatedRequest

POLL_S: Final = 1.0
"""Longest wait of an answer."""
LOST_S: Final = 3.0
"""After a router asked nothing for so long, its places are free."""
LONGEST_LOAN_S: Final = 3600.0
"""A place that was not given back for so long counts as free."""
AT_ONCE: Final = 2
"""Places for one client that are on their way to a router."""
PARTS_OF_NAME: Final = 3


@dataclass(slots=True, eq=False)
class Want:
    """A client whose requests wait at another router."""

    _borrower: _Borrower
    message: PlaceWant

    @property
    def who(self) -> str:
        """The client."""
        return self.message.client

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens of the prompt, and the most of the answer."""
        return max(1, self.message.input_tokens), self.message.max_output_tokens

    def lend(self, place: Place, request: GatedRequest, now_s: float) -> None:
        """The client got a place."""
        self._borrower.lend(self, _Loan(place, request, now_s))


@dataclass(slots=True, eq=False)
class _Loan:
    place: Place
    request: GatedRequest
    since_s: float
    is_used: bool = False
    """Whether the other router held it."""


@dataclass(slots=True, eq=False)
class _Borrower:
    """What one router wants and holds."""

    _gates: Gates
    heard_s: float = 0.0
    sequence: int = -1
    _wants: list[Want] = field(default_factory=list)
    _loans: dict[int, _Loan] = field(default_factory=dict)
    _unseen: dict[int, PlaceGrant] = field(default_factory=dict)
    _last: int = 0
    """Number of the last loan."""
    poll: asyncio.Future[None] | None = None
    """The answer that waits."""

    def take(self, ask: PlacesAsk, now_s: float, *, is_known: bool) -> None:
        """A newer question. `is_known`: its numbers are those of this process."""
        self.heard_s, self.sequence = now_s, ask.sequence
        self.wake()
        seen, held = (ask.seen, frozenset(ask.held)) if is_known else (self._last, frozenset[int]())
        for number in [one for one in self._unseen if one <= seen]:
            del self._unseen[number]
        for number, loan in list(self._loans.items()):
            loan.is_used |= number in held
            is_old = now_s - loan.since_s > LONGEST_LOAN_S
            if is_old or (number <= seen and number not in held):
                self._end(number)
        on_their_way = Counter(grant.client for grant in self._unseen.values())
        self._want_nothing()
        for message in ask.wants:
            if on_their_way[message.client] < AT_ONCE and _is_identity(message.client):
                want = Want(self, message)
                self._wants.append(want)
                self._gates.foreign.add(want)

    def lend(self, want: Want, loan: _Loan) -> None:
        self._last += 1
        grant = PlaceGrant(self._last, want.who, loan.place.replica)
        self._loans[self._last], self._unseen[self._last] = loan, grant
        if sum(one.client == want.who for one in self._unseen.values()) >= AT_ONCE:
            self._gates.foreign.remove(want)
        self.wake()

    def wake(self) -> None:
        """Let the answer that waits go."""
        if self.poll is not None and not self.poll.done():
            self.poll.set_result(None)

    def grants(self) -> tuple[PlaceGrant, ...]:
        """The places that have not arrived, as far as is known."""
        return tuple(self._unseen.values())

    def end(self) -> None:
        """The router is lost."""
        self._want_nothing()
        self._unseen.clear()
        for number in list(self._loans):
            self._end(number)
        self.wake()

    def _end(self, number: int) -> None:
        loan = self._loans.pop(number)
        self._gates.give_back(loan.place, loan.request, lends=loan.is_used)

    def _want_nothing(self) -> None:
        for want in self._wants:
            self._gates.foreign.remove(want)
        self._wants = []


class Lending:
    """What this router lends to all others."""

    def __init__(self, gates: Gates, router: str) -> None:
        """`router`: incarnation of this one."""
        self._gates = gates
        self._router = router
        self._borrowers: dict[str, _Borrower] = {}

    @property
    def lent(self) -> int:
        """Places that others hold."""
        return sum(len(one._loans) for one in self._borrowers.values())

    async def answer(self, ask: PlacesAsk) -> PlacesAnswer:
        """The answer to a question, once there is a place; at the latest after `POLL_S`."""
        if ask.router == self._router:  # it asks itself
            return PlacesAnswer(self._router, ())
        borrower = self._borrowers.get(ask.router)
        if borrower is None:
            borrower = self._borrowers[ask.router] = _Borrower(self._gates)
        if ask.sequence > borrower.sequence:
            borrower.take(
                ask, asyncio.get_running_loop().time(), is_known=ask.asked == self._router
            )
            if not borrower.grants():
                poll = borrower.poll = asyncio.get_running_loop().create_future()
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await poll
        return PlacesAnswer(self._router, borrower.grants())

    def expire(self) -> None:
        """Free the places of routers that ask no more."""
        now_s = asyncio.get_running_loop().time()
        for router, borrower in list(self._borrowers.items()):
            if now_s - borrower.heard_s > LOST_S:
                del self._borrowers[router]
                borrower.end()

    def end(self) -> None:
        """The router is closed: no answer waits any longer."""
        for borrower in self._borrowers.values():
            borrower.wake()


def _is_identity(client: str) -> bool:
    parts = client.split("/")
    return len(parts) == PARTS_OF_NAME and all(parts)
