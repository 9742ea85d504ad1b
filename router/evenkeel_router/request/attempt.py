"""One attempt: what a request holds at one replica.

The current `Attempt` owns what the request holds: a ticket (fleet), a booking (ledger) and an exchange (connection). An
attempt takes each in one place, and one of four endings gives all of them back:

| state      | holds                     | left by                                  |
|------------|---------------------------|------------------------------------------|
| SELECTED   | ticket                    | `dispatched`, `refused`, `finished`      |
| DISPATCHED | ticket, exchange, booking | `failed`, `relocated`, `finished`        |
| RELOCATING | booking                   | the end of `relocated`, or `finished`    |
| ENDED      | nothing                   |                                          |

Where the router orders a replica's queue, the attempt also has a turn at its gate (R12), until it has ended.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final

from evenkeel_fairshare.fleet.contract import EMPTY, NOTHING, ReplicaSet, Usage

from evenkeel_router.api.identity import Client, Paid
from evenkeel_router.fleet.selection import Fleet, Ticket
from evenkeel_router.gate.turns import Turn
from evenkeel_router.ledger.accounting import Accounting, Booking
from evenkeel_router.ledger.held_work import HeldWork, RelocationVerdict, TakenBack
from evenkeel_router.request.charges import Computed, charge_of
from evenkeel_router.request.request_state import RequestState
from evenkeel_router.transport.upstream import Exchange

PROBE_TOKENS: Final = 8
"""Output tokens after which the stream of a probe is sent on: a suspect that breaks off earlier costs no client its answer."""
NEW_TOKENS: Final = 2
"""Output tokens after which the first stream of a process is sent on, or the next one of a replica that broke one off."""
NOTICE_S: Final = 5.0
"""How long a replica may take to drop a request: SGLang checks every 4 s for clients that left."""


class PendingVerdict:
    """The requests that were taken back of one client at one replica, until a report shows which had begun."""

    def __init__(self, taken: TakenBack) -> None:
        self._taken = taken
        self._verdict: RelocationVerdict | None = None
        """Verdict of the last report; None: there was none yet."""
        self._noticed = asyncio.Event()

    def reported(self, held: HeldWork) -> bool:
        """A report shows what the replica has of the client. Whether it has dropped what was taken back."""
        self._verdict = self._taken.verdict(held)
        settled = self._taken.is_settled(held)
        if settled:
            self.end()
        return settled

    def end(self) -> None:
        """No more reports follow."""
        self._noticed.set()

    async def verdict(self) -> RelocationVerdict | None:
        """The verdict on the requests that were taken back; None if no report showed which had begun."""
        with suppress(TimeoutError):
            async with asyncio.timeout(NOTICE_S):
                await self._noticed.wait()
        return self._verdict


class AttemptState(Enum):
    """What an attempt holds; see the table of this module."""

    SELECTED = "selected"
    DISPATCHED = "dispatched"
    RELOCATING = "relocating"
    ENDED = "ended"


# Python 3.11 takes 0.3 µs to find a member in its class, and each request needs five.
_SELECTED, _DISPATCHED, _RELOCATING, _ENDED = AttemptState


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt, from selection to one ending."""

    _fleet: Fleet
    _accounting: Accounting
    ticket: Ticket
    tried: ReplicaSet
    """Slots of the replicas that failed the request before."""
    _state: AttemptState = _SELECTED
    dispatched_s: float = 0.0
    """When the request was sent to the replica, by the clock of the event loop."""
    begun_s: float = 0.0
    """When its answer began."""
    exchange: Exchange | None = None
    booking: Booking | None = None
    turn: Turn | None = None
    """Turn at the replica's gate; None where the engine orders its own queue."""
    taken_back: PendingVerdict | None = None
    """The verdict to wait for, once the router took the request back from its replica; None otherwise."""
    invited: ReplicaSet = EMPTY
    """Idle replicas that the request was taken back for; empty: it may go to any."""

    @property
    def replica(self) -> str:
        """Name of the replica."""
        return self.ticket.member.name

    @property
    def is_unproved(self) -> bool:
        """Whether the replica must show more than a first token, while the request could go elsewhere."""
        ticket, standing = self.ticket, self.ticket.member.standing
        if standing.begun_s and not standing.breaks_off and not ticket.probe:
            return False
        return bool(self._fleet.routable & ~self.tried & ~(1 << ticket.slot))

    @property
    def proof_tokens(self) -> int:
        """Tokens that it must show."""
        return PROBE_TOKENS if self.ticket.probe else NEW_TOKENS

    @property
    def first_token(self) -> tuple[float, int]:
        """Time from the dispatch of a stream to its first content, and tokens of the prompt."""
        return self.begun_s - self.dispatched_s, self.ticket.match.dispatch.input_tokens

    @property
    def open_booking(self) -> Booking | None:
        """The ledger's booking while the request is at the replica."""
        return self.booking if self._state is _DISPATCHED else None

    def dispatched(self, client: Client, *, paid: Paid, now_s: float) -> str:
        """The request is about to be sent: book it. Returns the client key to send with it."""
        self._state = _DISPATCHED
        self.dispatched_s = now_s
        ticket = self.ticket
        booking = self.booking = self._accounting.sends(
            ticket.member.name,
            client,
            paid=paid,
            now_s=now_s,
            sequences=ticket.match.dispatch.sequences,
        )
        return booking.key

    def refused(self) -> None:
        """The request never reached the replica: nothing is charged."""
        self._state = _ENDED
        self._give_back(NOTHING)
        self._leave_gate(NOTHING)

    def failed(self, estimate: Usage, *, began: bool = False) -> tuple[bool, Paid]:
        """The replica failed before the client was sent anything. Its charge of q is taken back, since the next attempt pays it.

        Returns whether the request had begun there, as content of its answer (`began`) or the last report shows, and what of it is
        charged by now (R11): if the replica may have computed and charged its input, the next attempt carries that flag.
        """
        booking = self._end()
        ran = began or self._accounting.was_running(booking)
        paid = self._accounting.failed(booking, estimate, began=began)
        self._give_back(NOTHING)
        # A request that ran keeps its charge at the gate.
        self._leave_gate(None if ran else NOTHING)
        return ran, paid

    async def relocated(self, estimate: Usage) -> Paid:
        """A replica gives the request back: it drains, or another one is idle. Returns what of it is charged by now (R11).

        Waits for the report that shows whether the request had begun after all.
        """
        self._state = _RELOCATING
        # The connection closes before the wait: only then does the replica drop the request and report it.
        self._give_back(NOTHING)
        verdict = await self.taken_back.verdict() if self.taken_back is not None else None
        paid = self._accounting.moved(self._end(), verdict, estimate)
        self._leave_gate(None if paid.input else NOTHING)
        return paid

    def finished(self, usage: Usage | None, request_state: RequestState | None = None) -> None:
        """The request is over, however it ended; does nothing where another ending came before.

        `usage`: `NOTHING` where the replica refused it, None where it is unknown. Then `request_state` gets what it is charged.
        """
        if self._state is _SELECTED:
            self.refused()  # nothing was sent, so no booking is open
        elif self._state is not _ENDED:
            if self._state is _DISPATCHED:
                self._give_back(usage)
            charge = usage
            if usage is None and request_state is not None:
                unknown = self._charge_of_unknown(client_left=request_state.client_leaves())
                if unknown != NOTHING:
                    request_state.charged = unknown
                    # Where the replica reports, the ledger has what it computed: an estimate may be more.
                    if self.booking is None or not self._accounting.sends_reports(self.booking):
                        charge = unknown
            self._accounting.ended(self._end(), charge)
            if self.turn is not None:
                self.turn.leave(usage)

    def _charge_of_unknown(self, *, client_left: bool) -> Usage:
        """The charge of a request that ends without content."""
        computed, booking = Computed.NO, self.booking
        if booking is not None and self._accounting.was_running(booking):
            if not self._accounting.is_in_doubt(booking):
                computed = Computed.YES
            elif not self._accounting.sends_reports(booking):
                computed = Computed.UNKNOWN  # else a report will have it
        estimate = self.ticket.match.estimate(0)
        return charge_of(None, computed, estimate, client_left=client_left)

    def _end(self) -> Booking:
        self._state = _ENDED
        if self.booking is None:
            raise RuntimeError("an attempt that was not dispatched has no booking to close")
        return self.booking

    def _give_back(self, usage: Usage | None) -> None:
        if self.exchange is not None:
            self.exchange.close()
        self._fleet.finished(self.ticket, usage)

    def _leave_gate(self, usage: Usage | None) -> None:
        """`usage`: None where the charge stands."""
        if self.turn is not None:
            self.turn.leave(usage)
