"""One replica's gate with its requests, and one request's turn there (R12)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

from evenkeel_fairshare.fleet.contract import EMPTY, NOTHING, ReplicaSet, Usage

from evenkeel_router.api.identity import Client
from evenkeel_router.api.openai import EventScan
from evenkeel_router.fleet.selection import Ticket
from evenkeel_router.gate.gate import Gate
from evenkeel_router.gate.window import GatedRequest


@dataclass(slots=True, eq=False)
class Place:
    """The gate of one replica, and the requests there."""

    gate: Gate
    replica: str
    slot: int
    """Slot of the process that the gate is about."""
    incarnation: str
    """Incarnation under which the ledger has this gate; empty: the engine reports for itself."""
    turns: dict[GatedRequest, Turn] = field(default_factory=dict)
    active: Collection[str] = ()
    """Clients with requests or deficits here when rows were published last."""
    sequence: int = 0
    """Sequence of the rows published last."""
    timer: asyncio.TimerHandle | None = None
    """Looks again when a prompt should be computed, while requests wait."""


class Foreign(Protocol):
    """A client whose requests wait at another router."""

    @property
    def who(self) -> str:
        """The client."""

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens of the prompt, and the most of the answer."""

    def lend(self, place: Place, request: GatedRequest, now_s: float) -> None:
        """The client got a place."""


class Owner(Protocol):
    """What a turn reports to."""

    def decided(self, turn: Turn) -> None:
        """The request waits no more."""

    def begun(self, turn: Turn, output_tokens: int) -> None:
        """The answer to a request begins."""

    def left(self, turn: Turn, usage: Usage | None) -> None:
        """A request is over."""


@dataclass(slots=True, eq=False)
class Turn:
    """One request at one gate, from its selection to its end there."""

    _gates: Owner
    place: Place
    request: GatedRequest
    admitted: asyncio.Future[bool] | None = None
    """The decision. True: go to the replica. False: select another one. None: the request did not wait."""
    ticket: Ticket | None = None
    client: Client | None = None
    """What a request that waits is called by to another gate, with `ticket`; None if it did not wait."""
    called: Turn | None = None
    """The turn at another gate that admitted it, until it goes there."""
    give_back: Callable[[], None] | None = None
    """What gives back a place that another router lent."""
    produced: EventScan | None = None
    """Scan of the answer, while it is streamed; None otherwise."""

    @property
    def who(self) -> str:
        """The client."""
        return self.request.client

    @property
    def waits(self) -> bool:
        """Whether it is not decided yet where the request goes."""
        return self.admitted is not None and not self.admitted.done()

    async def admission(self, timeout_s: float) -> bool:
        """Wait for admission; raises `TimeoutError`. False: another replica must be selected."""
        if self.admitted is None:
            return True
        if self.admitted.done():
            return self.admitted.result()
        async with asyncio.timeout(timeout_s):
            return await self.admitted

    def decide(self, *, admitted: bool) -> None:
        """Admit the request or send it back to selection, unless its client has just left."""
        if self.admitted is not None and not self.admitted.done():
            self.admitted.set_result(admitted)
            self._gates.decided(self)

    def call(self, called: Turn) -> None:
        """Send the request to another gate, which has admitted it."""
        self.called = called
        self.decide(admitted=False)

    def take_call(self) -> Turn | None:
        """The turn at another gate; the caller goes there, or ends it."""
        called, self.called = self.called, None
        return called

    @property
    def invited(self) -> ReplicaSet:
        """The replica to go to instead; empty: any."""
        return EMPTY if self.called is None else ReplicaSet(1 << self.called.place.slot)

    def begun(self, usage: Usage | None) -> None:
        """The client is sent the first of the answer. `usage`: of a whole answer; None for a stream."""
        if usage is None and not self.request.streams:
            return  # a stream of several sequences counts until its end
        output_tokens = 0 if usage is None or self.request.streams else usage.output_tokens
        self._gates.begun(self, output_tokens)

    def leave(self, usage: Usage | None) -> None:
        """The request is over at this replica; does nothing the second time. `usage`: see `Gate.leave`."""
        if self.place.turns.pop(self.request, None) is None:
            return
        if self.admitted is not None:
            self._gates.decided(self)
        if self.called is not None:  # its client left before it went there
            self.called.leave(NOTHING)
        self._gates.left(self, usage)
