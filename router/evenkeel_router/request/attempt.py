"""One request at one replica, and everything that it holds there.

An attempt is the only owner of its ticket (fleet), its booking (ledger) and its exchange (connection). It takes each
in one place, and one of four endings gives all of them back:

| state      | holds                     | left by                                  |
|------------|---------------------------|------------------------------------------|
| SELECTED   | ticket                    | `dispatched`, `refused`, `finished`      |
| DISPATCHED | ticket, exchange, booking | `failed`, `relocated`, `finished`        |
| RELOCATING | booking                   | the end of `relocated`, or `finished`    |
| ENDED      | nothing                   |                                          |
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from evenkeel_contract.routerconfig import ReplicaConfig
from evenkeel_fairshare.fleet.contract import NOTHING, ReplicaSet, Usage

from evenkeel_router.api.charged import Paid
from evenkeel_router.api.identity import Client
from evenkeel_router.fleet.selection import Fleet, Ticket
from evenkeel_router.ledger.accounting import Accounting, Booking
from evenkeel_router.ledger.relocated import RelocationVerdict
from evenkeel_router.transport.upstream import Exchange, Upstream


class State(Enum):
    """What an attempt holds; see the table of this module."""

    SELECTED = "selected"
    DISPATCHED = "dispatched"
    RELOCATING = "relocating"
    ENDED = "ended"


class Verdict(Protocol):
    """The answer to come for a request that the router took back from a draining replica."""

    async def verdict(self) -> RelocationVerdict | None:
        """What had begun there; None if no report ever showed it."""


class Attempt:
    """From selection to one ending."""

    __slots__ = (
        "_accounting", "_fleet", "_state", "booking", "exchange", "taken_back", "ticket", "tried",
    )  # fmt: skip

    def __init__(
        self, fleet: Fleet, accounting: Accounting, ticket: Ticket, tried: ReplicaSet
    ) -> None:
        """`tried`: slots of the replicas that failed the request before."""
        self._fleet = fleet
        self._accounting = accounting
        self._state = State.SELECTED
        self.ticket = ticket
        self.tried = tried
        self.exchange: Exchange | None = None
        self.booking: Booking | None = None
        self.taken_back: Verdict | None = None
        """Set when the router takes the request back from a replica that drains."""

    @property
    def replica(self) -> str:
        """Name of the replica."""
        return self.ticket.member.name

    @property
    def open_booking(self) -> Booking | None:
        """The ledger's booking while the request is at the replica."""
        return self.booking if self._state is State.DISPATCHED else None

    async def connect(self, upstream: Upstream, replica: ReplicaConfig) -> Exchange:
        """A connection for the request. Raises `ConnectError` and `ConnectionLimitError`; then `refused` follows."""
        self.exchange = await upstream.connect(replica)
        return self.exchange

    def dispatched(self, client: Client, *, paid: Paid, now_s: float) -> str:
        """The request is about to be sent: charge it. Returns the client key to send with it."""
        self._state = State.DISPATCHED
        self._fleet.dispatched(self.ticket)
        self.booking = self._accounting.sends(self.replica, client, paid=paid, now_s=now_s)
        return self.booking.key

    def refused(self) -> None:
        """The request never reached the replica: nothing is charged."""
        self._state = State.ENDED
        self._close_exchange()
        self._fleet.refused(self.ticket)

    def failed(self, estimate: Usage) -> tuple[bool, Paid]:
        """The replica failed with nothing sent to the client; its charge of q is taken back, as the next attempt pays.

        Returns whether the request had begun there as far as the last report shows, and what of it is charged by
        now (R11): if the replica computed and charged its input, the next attempt carries that flag.
        """
        booking = self._end()
        ran = self._accounting.was_running(booking)
        paid = self._accounting.failed(booking, estimate)
        self._give_back(NOTHING)
        return ran, paid

    async def relocated(self, estimate: Usage) -> Paid:
        """A draining replica gives the request back. Returns what of it is charged by now (R11).

        Waits for the report that shows whether the request had begun after all.
        """
        self._state = State.RELOCATING
        self._give_back(NOTHING)
        verdict = await self.taken_back.verdict() if self.taken_back is not None else None
        return self._accounting.moved(self._end(), verdict, estimate)

    def finished(self, usage: Usage | None) -> None:
        """The request is over, however it ended; does nothing where another ending came before.

        `usage`: `NOTHING` where the replica refused it, None where it is unknown.
        """
        if self._state is State.SELECTED:
            self.refused()
        elif self._state is not State.ENDED:
            if self._state is State.DISPATCHED:
                self._give_back(usage)
            self._accounting.ended(self._end(), usage)

    def _end(self) -> Booking:
        self._state = State.ENDED
        if self.booking is None:
            raise RuntimeError("an attempt that was not dispatched has no booking to close")
        return self.booking

    def _give_back(self, usage: Usage | None) -> None:
        self._close_exchange()
        self._fleet.finished(self.ticket, usage)

    def _close_exchange(self) -> None:
        if self.exchange is not None:
            self.exchange.close()
