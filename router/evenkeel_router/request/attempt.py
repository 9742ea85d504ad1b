"""One attempt: what a request holds at one replica, and its answer on the way from the replica to the client.

The current `Attempt` owns what the request holds: a ticket (fleet), a booking (ledger) and an exchange (connection). An
attempt takes each in one place, and one of four endings gives all of them back:

| state      | holds                     | left by                                  |
|------------|---------------------------|------------------------------------------|
| SELECTED   | ticket                    | `dispatched`, `refused`, `finished`      |
| DISPATCHED | ticket, exchange, booking | `failed`, `relocated`, `finished`        |
| RELOCATING | booking                   | the end of `relocated`, or `finished`    |
| ENDED      | nothing                   |                                          |

Where the router orders a replica's queue, the attempt also has a turn at its gate (R12), until it has ended.

Most chunks of a stream never come to `Relay.feed`: once the client was sent something, chunks that need no look inside
pass straight through (`Reply.splice`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Final, TypeAlias

from evenkeel_fairshare.fleet.contract import EMPTY, NOTHING, ReplicaSet, Usage
from msgspec import Struct

from evenkeel_router.api.answers import GarbageError, of_reply
from evenkeel_router.api.errors import Outcome, Refusal, error_body, rejected_by_replica
from evenkeel_router.api.identity import Client, Paid
from evenkeel_router.api.streams import SCANS
from evenkeel_router.fleet.health import HealthMonitor
from evenkeel_router.fleet.selection import Fleet, Ticket
from evenkeel_router.gate.gates import Turn
from evenkeel_router.ledger.accounting import Accounting, Booking
from evenkeel_router.ledger.held_work import HeldWork, RelocationVerdict, TakenBack
from evenkeel_router.request import own_answers, usage_claims
from evenkeel_router.request.charges import Computed, charge_of
from evenkeel_router.request.request_state import AdmittedRequest, RequestState
from evenkeel_router.transport.client_request import JSON, Answer, CompleteReply, Request, Stream
from evenkeel_router.transport.upstream import (
    BrokenError,
    Exchange,
    Passes,
    Reply,
    SilenceError,
)

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


class Attempt(Struct, eq=False):
    """One attempt, from selection to one ending."""

    _fleet: Fleet
    _accounting: Accounting
    ticket: Ticket
    tried: ReplicaSet
    """Slots of the replicas that failed the request before."""
    _state: AttemptState = _SELECTED
    exchange: Exchange | None = None
    booking: Booking | None = None
    turn: Turn | None = None
    """Turn at the replica's gate; None where the engine orders its own queue."""
    taken_back: PendingVerdict | None = None
    """The verdict to wait for, once the router took the request back from its replica; None otherwise."""
    invited: ReplicaSet = EMPTY
    """Idle replicas that the request was taken back for; empty: it may go to any."""
    dispatched_s: float = 0.0
    """Time of the loop at which the request was sent."""

    @property
    def replica(self) -> str:
        """Name of the replica."""
        return self.ticket.member.name

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

    def failed(self, estimate: Usage) -> tuple[bool, Paid]:
        """The replica failed before the client was sent anything. Its charge of q is taken back, since the next attempt pays it.

        Returns whether the request had begun there as far as the last report shows, and what of it is charged by
        now (R11): if the replica may have computed and charged its input, the next attempt carries that flag.
        """
        booking = self._end()
        ran = self._accounting.was_running(booking)
        paid = self._accounting.failed(booking, estimate)
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
                    charge = request_state.charged = unknown
            self._accounting.ended(self._end(), charge)
            self._leave_gate(usage)

    def _charge_of_unknown(self, *, client_left: bool) -> Usage:
        """The charge of a request that ends without content."""
        computed, booking = Computed.NO, self.booking
        if booking is not None and self._accounting.was_running(booking):
            in_doubt = self._accounting.is_in_doubt(booking)
            computed = Computed.UNKNOWN if in_doubt else Computed.YES
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


Begun: TypeAlias = Callable[[int], None]
"""The client is about to be sent the first of its answer, with this status."""


class Answered(Struct, frozen=True):
    """A replica's answer, and the request that it belongs to."""

    request_state: RequestState
    admitted: AdmittedRequest
    attempt: Attempt
    request: Request
    reply: Reply
    begun: Begun


class FailedAttempt(Exception):
    """An attempt failed before the client was sent anything."""

    def __init__(self, why: str, *, unanswered: bool = False) -> None:
        """`unanswered`: nothing of an answer came."""
        super().__init__(why)
        self.unanswered = unanswered


class Relay:
    """One request's stream, sent on as it comes."""

    __slots__ = ("_admitted", "_begun", "passes", "reply", "request_state", "scan", "stream")

    def __init__(self, answered: Answered) -> None:
        admitted = answered.admitted
        self.request_state = answered.request_state
        self.reply = answered.reply
        self._admitted = admitted
        self._begun = answered.begun
        inference = admitted.inference
        # Each sequence has events without a token, and calls of tools may take two events for one.
        most = inference.most_output_tokens + usage_claims.EVENTS_BESIDE * inference.sequences
        if inference.loose_events:
            most *= 2
        scan = self.scan = SCANS[admitted.endpoint.api.dialect](
            drops_usage=not inference.wants_usage,
            continuous=self.request_state.continuous,
            most_events=most,
            left=most,
        )
        self.passes: Passes = scan.passes
        self.stream = Stream(answered.request, headers=self.request_state.reply_headers())

    def feed(self, data: bytes, last: bool) -> None:
        """Pass on what is whole."""
        scan = self.scan
        events = scan.feed(data)
        if events:
            self.stream.send(events, last and scan.done)
            if self.request_state.first_byte_s is None:
                self._begun(200)
                client = self.stream.client
                if client is not None:  # from now on most chunks pass without `feed`
                    self.reply.splice(self.passes, client)
        if scan.broken is not None or scan.cut:
            self.reply.hold()

    def usage(self) -> Usage:
        """The usage that the replica reported, or an estimate."""
        scan = self.scan
        if scan.failed and not scan.events:  # an error as the first event: nothing was computed
            return NOTHING
        return usage_claims.of_stream(self.request_state, self._admitted, scan)

    async def room(self, idle_s: float) -> None:
        """Wait until the client may be sent more; raises `Refusal` for a client that does not read."""
        if self.stream.full:  # perhaps of the connection's last answer
            await _drain(self.stream, idle_s)

    @property
    def all_sent(self) -> bool:
        """Whether the client was sent all that came."""
        return True

    async def send_rest(self) -> None:
        """Wait until the client was sent all of a stream whose replica is done."""

    def send_now(self) -> None:
        """Send at once what waits here."""

    def close(self) -> None:
        """Nothing more is sent."""

    def end(self, refusal: Refusal) -> Answer:
        """End a stream that has begun with an error event, if its last event was not sent yet."""
        self.send_now()
        if not self.scan.done:
            self.request_state.outcome = refusal.outcome
            self.stream.send(self.scan.error_event(refusal))
        self.stream.finish()
        return self.stream


async def relay_stream(relay: Relay, *, idle_s: float, health: HealthMonitor) -> Answer:
    """Pass a stream on; raises `FailedAttempt` while nothing was sent, `Refusal` if its client does not read."""
    state, scan, stream = relay.request_state, relay.scan, relay.stream
    stream.when_full(relay.reply.hold)
    try:
        error = await _receive(relay, idle_s)
        stream.when_full(None)
        if error is not None:
            return _break_off(relay, error, health)
        if not relay.all_sent:
            await relay.send_rest()
    except asyncio.CancelledError:
        state.complete = scan.done and relay.all_sent
        if not stream.started or not state.interrupted():
            raise
        return relay.end(own_answers.shutting_down())
    finally:
        relay.close()
        stream.when_full(None)
        if stream.started:
            state.usage_reported = scan.usage is not None
            state.usage = relay.usage()
            if scan.cut:
                state.impossible = "an answer beyond the bound of its output"
    if scan.failed:
        state.outcome = Outcome.REPLICA_FAILED
    stream.finish()
    return stream


async def _receive(relay: Relay, idle_s: float) -> BrokenError | SilenceError | None:
    """Pass on what the replica sends. Returns why the stream broke before its last event; None if it did not."""
    scan = relay.scan
    try:
        ended = False
        while not ended and scan.broken is None and not scan.cut:
            await relay.room(idle_s)
            ended = await relay.reply.relay(relay.feed, idle_s=idle_s)
        scan.close()
    except (BrokenError, SilenceError) as error:
        if not scan.done:
            return error
    return None if scan.broken is None else BrokenError(scan.broken)


def _break_off(relay: Relay, error: BrokenError | SilenceError, health: HealthMonitor) -> Answer:
    """The replica failed in the middle of a stream."""
    if isinstance(error, BrokenError):
        health.broken(relay.request_state.replica, str(error))
    if not relay.stream.started:
        if isinstance(error, SilenceError):
            raise own_answers.silent(
                "The replica did not finish its first event in time."
            ) from error
        raise FailedAttempt(str(error)) from error
    if isinstance(error, SilenceError):
        return relay.end(
            own_answers.silent("The replica sent nothing more within the idle timeout.")
        )
    return relay.end(own_answers.broken_off(str(error)))


async def _drain(stream: Stream, idle_s: float) -> None:
    """Wait for a client that reads slowly; raises `Refusal` for one that does not read at all."""
    try:
        async with asyncio.timeout(idle_s):
            await stream.drain()
    except TimeoutError as error:
        stream.abort()
        raise own_answers.not_reading(idle_s) from error


def relay_whole(
    request_state: RequestState,
    admitted: AdmittedRequest,
    *,
    request: Request,
    reply: Reply,
    close: bool,
) -> CompleteReply:
    """The client's answer if the replica's answer is no stream; raises `FailedAttempt`."""
    status, body, inference = reply.status, reply.body, admitted.inference
    api = admitted.endpoint.api
    content_type = reply.content_type or "application/octet-stream"
    if 400 <= status < 500 and status not in (401, 403) and body is not None:
        rejected = rejected_by_replica(status, body)
        request_state.outcome = rejected.outcome
        request_state.usage = NOTHING
        body, content_type = error_body(rejected, api.dialect), JSON
    elif status == 200 and body is not None and not inference.stream:
        try:
            reported = of_reply(admitted.endpoint, body, content_type)
        except GarbageError as error:
            raise FailedAttempt(str(error)) from error
        request_state.usage_reported = reported is not None
        request_state.usage = (
            usage_claims.of_whole(request_state, admitted, reported, body)
            if api.computes
            else NOTHING
        )
    else:  # 5xx; 401 and 403 are about the router's own key; a stream where none was asked for
        content = reply.content_type or "no content type"
        raise FailedAttempt(f"the replica answered {status} with {content}")
    return CompleteReply(
        request,
        status=status,
        body=body,
        content_type=content_type,
        headers=request_state.reply_headers(),
        close=close,
    )
