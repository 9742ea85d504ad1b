"""One request from its head to its end: what the steps find out about it, for totals, metrics and the request log.

What the request holds at a replica is owned by its current `Attempt`: a ticket (fleet), a booking (ledger) and an exchange
(connection). An attempt takes each in one place, and one of four endings gives all of them back:

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
from enum import Enum
from typing import Final, NamedTuple, Protocol

from evenkeel_contract.names import (
    ADAPTER_HEADER,
    CACHE_SALT_HEADER,
    CLIENT_KEY_HEADER,
    REQUEST_ID_HEADER,
    SESSION_HEADER,
)
from evenkeel_contract.routerconfig import ReplicaConfig
from evenkeel_fairshare.fleet.contract import NOTHING, ReplicaSet, Usage
from evenkeel_fairshare.qoe import Delivery
from multidict import istr

from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.api.errors import Outcome
from evenkeel_router.api.identity import Client, Paid
from evenkeel_router.api.inference import Inference, with_cache_salt, with_client_key
from evenkeel_router.fleet.selection import Fleet, Match, Ticket
from evenkeel_router.gate.gates import Turn
from evenkeel_router.ledger.accounting import Accounting, Booking, RelocationVerdict
from evenkeel_router.ledger.totals import ClientTotals
from evenkeel_router.prefix.tokenised import Tokenised
from evenkeel_router.request.request_trace import RequestTrace
from evenkeel_router.transport.client_request import Request
from evenkeel_router.transport.upstream import Exchange, Outgoing, Upstream

_TRACE_HEADERS: Final = (istr("traceparent"), istr("tracestate"))


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
        "_accounting", "_fleet", "_state", "booking", "exchange", "taken_back", "ticket", "tried", "turn",
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
        self.turn: Turn | None = None
        """Where the router orders the replica's queue."""
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
        """The request is about to be sent: book it. Returns the client key to send with it."""
        self._state = State.DISPATCHED
        self.booking = self._accounting.sends(self.replica, client, paid=paid, now_s=now_s)
        return self.booking.key

    def refused(self) -> None:
        """The request never reached the replica: nothing is charged."""
        self._state = State.ENDED
        self._give_back(NOTHING)
        self._leave_gate(NOTHING)

    def failed(self, estimate: Usage) -> tuple[bool, Paid]:
        """The replica failed with nothing sent to the client; its charge of q is taken back, as the next attempt pays.

        Returns whether the request had begun there as far as the last report shows, and what of it is charged by
        now (R11): if the replica computed and charged its input, the next attempt carries that flag.
        """
        booking = self._end()
        ran = self._accounting.was_running(booking)
        paid = self._accounting.failed(booking, estimate)
        self._give_back(NOTHING)
        self._leave_gate(None if ran else NOTHING)
        return ran, paid

    async def relocated(self, estimate: Usage) -> Paid:
        """A draining replica gives the request back. Returns what of it is charged by now (R11).

        Waits for the report that shows whether the request had begun after all.
        """
        self._state = State.RELOCATING
        self._give_back(NOTHING)
        verdict = await self.taken_back.verdict() if self.taken_back is not None else None
        paid = self._accounting.moved(self._end(), verdict, estimate)
        self._leave_gate(None if paid.input else NOTHING)
        return paid

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
            self._leave_gate(usage)

    def _end(self) -> Booking:
        self._state = State.ENDED
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


class RequestState:
    """One request."""

    __slots__ = (
        "activation_s", "attempt", "attempts", "client", "complete", "delivery", "estimate_tokens", "expired", "first_byte_s",
        "outcome", "path", "replica", "reply_headers", "request_id", "started_s", "status", "stream", "task", "tokenised", "totals", "trace",
        "usage", "usage_reported",
    )  # fmt: skip

    def __init__(self, *, request_id: str, path: str, started_s: float) -> None:
        self.request_id = request_id
        self.path = path
        self.started_s = started_s
        self.reply_headers: tuple[tuple[str, str], ...] = ((REQUEST_ID_HEADER, request_id),)
        """Headers of every answer to it."""
        self.trace: RequestTrace | None = None
        """None while tracing is off."""
        # Identify, parse, admit.
        self.client: Client | None = None
        self.totals: ClientTotals | None = None
        self.stream = False
        self.estimate_tokens = 0
        """Input tokens, before the replica reports them: exact where the prompt was tokenised."""
        self.tokenised: Tokenised | None = None
        self.task: asyncio.Task[object] | None = None
        """To interrupt the request; set while it is admitted."""
        self.expired = False
        """The router ends and waits for the request no longer."""
        # Select and forward.
        self.activation_s = 0.0
        """Time that it waited for the first replica of a service at zero; it counts towards no other limit."""
        self.attempt: Attempt | None = None
        """The current attempt, or the last one."""
        self.attempts = 0
        """Times that it was sent."""
        self.replica = ""
        """Name of the last replica that it was sent to."""
        # The answer.
        self.first_byte_s: float | None = None
        """When the client was sent the first event, or the whole answer."""
        self.status = 0
        self.complete = False
        """The client was sent the last event of its stream before it left."""
        self.delivery: Delivery | None = None
        """When the tokens of its stream came; None while QoE is not measured."""
        self.usage: Usage | None = None
        """Estimated where the replica does not report it. `NOTHING`: it refused. None: unknown."""
        self.usage_reported = False
        """Whether the replica reported `usage`."""
        self.outcome: Outcome | None = None
        """None: success."""

    def attempt_failed(self, why: str) -> None:
        """The current attempt failed; `why` is one of few words, for the trace."""
        if self.trace is not None:
            self.trace.failed(why)

    def interrupt(self) -> None:
        """The router can wait no longer: the request ends with an error."""
        if self.task is not None:
            self.expired = True
            self.task.cancel()

    def client_left(self) -> None:
        """The client went away. Many do so with the last event, before the replica has closed the stream."""
        if not self.complete:
            self.outcome = Outcome.CLIENT_GONE

    def interrupted(self) -> bool:
        """Whether a cancellation came from `interrupt`, and not from a client that left; takes it back."""
        if self.expired and self.task is not None:
            self.task.uncancel()
        return self.expired


class AdmittedRequest(NamedTuple):
    """What an admitted request asks for."""

    client: Client
    totals: ClientTotals
    endpoint: Endpoint
    inference: Inference
    match: Match

    def outgoing(self, request_state: RequestState, request: Request, key: str) -> Outgoing:
        """What a replica is sent: the client's body, the client key, the salt of the engine's cache, and the request's origin."""
        inference = self.inference
        headers = [(REQUEST_ID_HEADER, request_state.request_id)]
        body = inference.body
        if self.endpoint.api.key_in_body:
            body = with_client_key(body, key)
        else:
            headers += ((CLIENT_KEY_HEADER, key), (SESSION_HEADER, key))
        if cache_salt := self.client.cache_salt:
            headers.append((CACHE_SALT_HEADER, cache_salt))
            if self.endpoint.api.salt_in_body:
                body = with_cache_salt(body, cache_salt)
        if inference.adapter is not None:
            headers.append((ADAPTER_HEADER, inference.adapter))
        if request_state.trace is not None:
            headers += request_state.trace.headers()
            return Outgoing(request_state.path, headers, body, inference.content_type)
        for name in _TRACE_HEADERS:
            value = request.headers.get(name)
            if value is not None and value.isascii() and value.isprintable():
                headers.append((name, value))
        return Outgoing(request_state.path, headers, body, inference.content_type)
