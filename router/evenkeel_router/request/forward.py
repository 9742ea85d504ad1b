"""Forwarding one request: attempts, the stream, and what follows each way of failing (design §5.5).

Place in the flow: match → **select → forward and stream** → account.

| what happens                                   | what follows                                              |
|------------------------------------------------|-----------------------------------------------------------|
| no connection                                  | the replica is lost; another one; nobody was charged      |
| broken, garbage or 5xx before the first byte   | another one, as a retry of the fleet (R11); then 502      |
| the same, but it had not begun by the report   | another one; not one of its attempts, up to a limit       |
| the replica drains, and it has not begun       | another one, if there is one; not an attempt              |
| nobody left to try, nobody routable            | wait for a replica, up to queueTimeout; then 503          |
| the service stands at zero                     | the same, up to activationTimeout, or 503 at once         |
| silence before the first byte                  | 504, never a retry: the replica may still be at it        |
| broken, garbage or silence after the first byte| one error event, and the end of the stream                |
| 4xx of the replica, or its error as first event | passed on; the charge is taken back                      |

The surprising thing: a stream's first whole event is what commits to a replica, not its status line.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web
from evenkeel_contract.names import CLIENT_KEY_HEADER, REQUEST_ID_HEADER
from evenkeel_fairshare.fleet.contract import EMPTY, NOTHING, ReplicaSet
from multidict import istr

from evenkeel_router.api.errors import Refusal
from evenkeel_router.api.inference import Endpoint, with_client_key
from evenkeel_router.api.outcomes import Outcome, of_status
from evenkeel_router.api.usage import GarbageError, of_reply
from evenkeel_router.fleet.health import Health
from evenkeel_router.fleet.selection import Ticket
from evenkeel_router.request.hold import RETRY_AFTER_S, ReplicaWait
from evenkeel_router.request.relay import Relay, estimate
from evenkeel_router.request.request_state import AdmittedRequest, RequestState
from evenkeel_router.state import RouterState
from evenkeel_router.transport.replies import CompleteReply, Stream
from evenkeel_router.transport.upstream import (
    BrokenError,
    ConnectError,
    ConnectionLimitError,
    Outgoing,
    RelocatedError,
    Reply,
    SilenceError,
    UnansweredError,
    Upstream,
)

_TRACE_HEADERS: Final = (istr("traceparent"), istr("tracestate"))


EXCUSED_PER_ATTEMPT: Final = 4
"""A request that only waited where a replica was lost is excused so often for each attempt that it has. Not without
end: what brings down whoever begins it looks the same until the next report, and must not go through a fleet."""


class Failed(Exception):
    """An attempt failed before the client was sent anything."""

    def __init__(self, why: str, *, unanswered: bool = False) -> None:
        """`unanswered`: nothing of an answer came."""
        super().__init__(why)
        self.unanswered = unanswered


class Forwarder:
    """Sends requests to replicas until one answers."""

    def __init__(self, state: RouterState, upstream: Upstream, health: Health) -> None:
        self._state = state
        self._upstream = upstream
        self._health = health
        self._holding = ReplicaWait(state)
        self._now = asyncio.get_running_loop().time

    async def forward(
        self, request_state: RequestState, order: AdmittedRequest, request: web.BaseRequest
    ) -> web.StreamResponse:
        """The answer; raises `Refusal`. Leaves the last ticket and exchange in the flight, to settle."""
        state = self._state
        deadline_s = request_state.started_s + state.config.limits.queue_timeout_s
        while True:
            ticket = state.fleet.select(order.plan, request_state.tried)
            if ticket is None:
                if not state.fleet.routable:
                    deadline_s = await self._holding.hold(request_state, order, deadline_s)
                elif request_state.spent:
                    raise _failed_everywhere()
                request_state.tried = EMPTY  # it had begun nowhere, or much may have changed
                continue
            try:
                answer = await self._attempt(request_state, order, request, ticket)
            except RelocatedError:
                await self._move(request_state, order)
                deadline_s = self._another_while(request_state, order)
                order.totals.moves += 1
                continue
            except Failed as failed:
                ran = self._end_attempt(request_state, order)
                request_state.failed += (ticket,)
                if failed.unanswered and not ran:
                    request_state.excused += 1
                    deadline_s = self._another_while(request_state, order)
                if self._has_no_attempt_left(request_state):
                    raise _failed(request_state, failed) from failed
                order.totals.retries += 1
                request_state.tried = ReplicaSet(request_state.tried | 1 << ticket.slot)
                continue
            if answer is not None:
                return answer

    def _has_no_attempt_left(self, request_state: RequestState) -> bool:
        attempts = self._state.config.limits.max_attempts
        return (
            request_state.spent >= attempts
            or request_state.excused >= EXCUSED_PER_ATTEMPT * attempts
        )

    async def _attempt(
        self,
        request_state: RequestState,
        order: AdmittedRequest,
        request: web.BaseRequest,
        ticket: Ticket,
    ) -> web.StreamResponse | None:
        """One replica; None if there was no connection. Raises `Failed`, `Refusal`."""
        state, member = self._state, ticket.member
        replica = state.replicas[member.name]
        request_state.ticket = ticket
        try:
            request_state.exchange = await self._upstream.connect(replica)
        except ConnectError as error:
            request_state.ticket = None
            state.fleet.refused(ticket)
            self._health.refused(member.name, str(error))
            return None
        except ConnectionLimitError as error:
            request_state.ticket = None
            state.fleet.refused(ticket)
            raise _no_room(str(error)) from error
        state.fleet.dispatched(ticket)
        key = self._book(request_state, order, member.name)
        request_state.attempts += 1
        request_state.replica = member.name
        state.totals.replica(member.name).requests += 1
        outgoing = _outgoing(request_state, order, request, key)
        silence_s = self._silence_s(order)
        left_s = self._answer_by_s(request_state, silence_s) - self._now()
        silence_s = min(silence_s, max(0.0, left_s))
        request_state.move = None
        try:
            reply = await request_state.exchange.ask(outgoing, silence_s=silence_s)
        except SilenceError as error:
            raise _silent(f"The replica did not answer within {silence_s:g} s.") from error
        except BrokenError as error:
            self._health.broken(member.name, str(error))
            raise Failed(str(error), unanswered=isinstance(error, UnansweredError)) from error
        if reply.status == 200 and order.inference.stream and reply.body is None:
            return await self._stream(request_state, order, request, reply)
        return self._whole(request_state, order, request, reply)

    def _silence_s(self, order: AdmittedRequest) -> float:
        """How long a replica may take to begin its answer."""
        limits = self._state.config.limits
        if order.inference.stream:
            return limits.first_token_timeout_s
        # Its first byte comes with its last token.
        return limits.first_token_timeout_s + limits.idle_timeout_s

    def _answer_by_s(self, request_state: RequestState, silence_s: float) -> float:
        """When a request must have its first byte, however often it is taken elsewhere through no fault of its own."""
        once_s = self._state.config.limits.queue_timeout_s + silence_s
        return (
            request_state.started_s
            + request_state.activation_s
            + once_s * (1 + request_state.spent)
        )

    def _another_while(self, request_state: RequestState, order: AdmittedRequest) -> float:
        """Until when a request that was taken elsewhere may wait for a replica to be routable."""
        queue_until_s = self._now() + self._state.config.limits.queue_timeout_s
        return min(queue_until_s, self._answer_by_s(request_state, self._silence_s(order)))

    def _book(self, request_state: RequestState, order: AdmittedRequest, replica: str) -> str:
        """The ledger hears of what is sent, whereto, and the most that it can cost; returns the client key."""
        state, extend = self._state, order.plan.dispatch.input_tokens
        most, cost = order.inference.max_output_tokens, state.totals.cost
        if most is None:
            most = state.config.limits.max_output_tokens
        request_state.booking = state.accounting.sends(
            replica,
            order.client,
            worst=cost.input_cost(extend) + cost.output_cost(extend, 0, most),
            paid=request_state.paid,
            now_s=self._now(),
        )
        return request_state.booking.key

    def _whole(
        self,
        request_state: RequestState,
        order: AdmittedRequest,
        request: web.BaseRequest,
        reply: Reply,
    ) -> web.StreamResponse:
        """What the client gets for a replica's answer that is no stream; raises `Failed`."""
        status, body = reply.status, reply.body
        if 400 <= status < 500 and status not in (401, 403) and body is not None:
            request_state.outcome = of_status(status)
            request_state.usage = NOTHING
        elif status == 200 and body is not None and not order.inference.stream:
            try:
                said = of_reply(order.inference.endpoint, body)
            except GarbageError as error:
                raise Failed(str(error)) from error
            request_state.told = said is not None
            request_state.usage = said or estimate(order.plan, 0)
        else:  # 5xx; 401 and 403 are about the router's own key; a stream where none was asked for
            raise Failed(f"the replica answered {status} with {reply.content_type or 'no type'}")
        self._begun(request_state, status)
        return CompleteReply(
            request,
            status=status,
            body=body,
            content_type=reply.content_type or "application/octet-stream",
            headers=((REQUEST_ID_HEADER, request_state.request_id),),
            close=self._state.draining,
        )

    async def _stream(
        self,
        request_state: RequestState,
        order: AdmittedRequest,
        request: web.BaseRequest,
        reply: Reply,
    ) -> web.StreamResponse:
        """Pass a stream on; raises `Failed` while nothing was sent, `Refusal` if its client does not read."""
        relay = Relay(request_state, order, request, reply, self._begun)
        idle_s = self._state.config.limits.idle_timeout_s
        relay.stream.when_full(reply.hold)
        try:
            ended = False
            while not ended and relay.scan.broken is None:
                if relay.stream.full:  # perhaps of the connection's last answer
                    await _drain(relay.stream, idle_s)
                ended = await reply.relay(relay.feed, idle_s=idle_s)
            relay.scan.close()
        except (BrokenError, SilenceError) as error:
            if not relay.scan.done:
                return self._break_off(request_state, relay, error)
        except asyncio.CancelledError:
            request_state.complete = relay.scan.done
            if not relay.stream.started or not request_state.interrupted():
                raise
            relay.end(going_away())
            return relay.stream
        finally:
            relay.stream.when_full(None)
            if relay.stream.started:
                request_state.told = relay.scan.usage is not None
                request_state.usage = relay.usage()
        if relay.scan.broken is not None:
            return self._break_off(request_state, relay, BrokenError(relay.scan.broken))
        if relay.scan.failed:
            request_state.outcome = Outcome.REPLICA_FAILED
        relay.stream.finish()
        return relay.stream

    def _begun(self, request_state: RequestState, status: int) -> None:
        """The client is being sent the first of its answer."""
        request_state.first_byte_s = self._now()
        request_state.status = status
        if status == 200:
            self._health.answered(request_state.replica, request_state.failed)

    def _break_off(
        self, request_state: RequestState, relay: Relay, error: BrokenError | SilenceError
    ) -> web.StreamResponse:
        """The replica failed in the middle of a stream."""
        if isinstance(error, BrokenError):
            self._health.broken(request_state.replica, str(error))
        if not relay.stream.started:
            if isinstance(error, SilenceError):
                raise _silent("The replica did not finish its first event in time.") from error
            raise Failed(str(error)) from error
        if isinstance(error, SilenceError):
            relay.end(_silent("The replica fell silent."))
        else:
            message = f"The stream broke off: {error}."
            relay.end(Refusal(Outcome.REPLICA_FAILED, message, code="replica_failed"))
        return relay.stream

    def _end_attempt(self, request_state: RequestState, order: AdmittedRequest) -> bool:
        """Give back what a failed attempt held; its charge of q too, as the next attempt pays.

        If the input was computed and charged there, the next attempt says so (R11), and it counts there. Whether
        it had begun, as far as the last report tells.
        """
        ran = True
        if request_state.ticket is not None:
            if request_state.booking is not None:
                ran = self._state.accounting.was_running(request_state.booking)
                request_state.paid = self._state.accounting.failed(
                    request_state.booking, estimate(order.plan, 0)
                )
                request_state.booking = None
            self._state.totals.replica(request_state.ticket.member.name).failures += 1
            self._state.fleet.finished(request_state.ticket, NOTHING)
            request_state.ticket = None
        if request_state.exchange is not None:
            request_state.exchange.close()
            request_state.exchange = None
        return ran

    async def _move(self, request_state: RequestState, order: AdmittedRequest) -> None:
        """A replica that drains gives it back: what that held, and, if it had begun after all, says so (R11)."""
        if request_state.exchange is not None:
            request_state.exchange.close()
            request_state.exchange = None
        if request_state.ticket is not None:
            self._state.fleet.finished(request_state.ticket, NOTHING)
            request_state.ticket = None
        if request_state.move is not None and request_state.booking is not None:
            told = await request_state.move.verdict()
            request_state.paid = self._state.accounting.moved(
                request_state.booking, told, estimate(order.plan, 0)
            )
            request_state.booking = None


def _outgoing(
    request_state: RequestState, order: AdmittedRequest, request: web.BaseRequest, key: str
) -> Outgoing:
    """What is sent: the client's body, the client key, and where the request came from."""
    inference = order.inference
    headers = [(REQUEST_ID_HEADER, request_state.request_id)]
    if inference.endpoint is Endpoint.GENERATE:
        body = with_client_key(inference.body, key)
    else:
        body = inference.body
        headers.append((CLIENT_KEY_HEADER, key))
    for name in _TRACE_HEADERS:
        value = request.headers.get(name)
        if value is not None and value.isascii() and value.isprintable():
            headers.append((name, value))
    return Outgoing(request_state.path, headers, body)


async def _drain(stream: Stream, idle_s: float) -> None:
    """Wait for a client that reads slowly; raises `Refusal` for one that does not read at all."""
    try:
        async with asyncio.timeout(idle_s):
            await stream.drain()
    except TimeoutError as error:
        stream.abort()
        message = f"The client read nothing for {idle_s:g} s."
        raise Refusal(Outcome.CLIENT_GONE, message, code="client_not_reading") from error


def _silent(message: str) -> Refusal:
    return Refusal(Outcome.TIMEOUT, message, code="replica_timeout")


def _no_room(why: str) -> Refusal:
    message = f"The router can open no more connections: {why}."
    return Refusal(Outcome.UNAVAILABLE, message, code="overloaded", retry_after_s=RETRY_AFTER_S)


def going_away() -> Refusal:
    message = "The router is going away; send the request again."
    return Refusal(Outcome.UNAVAILABLE, message, code="draining", retry_after_s=RETRY_AFTER_S)


def _failed_everywhere() -> Refusal:
    message = "Every replica failed to answer the request."
    return Refusal(Outcome.REPLICA_FAILED, message, code="replica_failed")


def _failed(request_state: RequestState, failed: Failed) -> Refusal:
    message = f"The request failed on {request_state.attempts} replicas; on the last, {failed}."
    return Refusal(Outcome.REPLICA_FAILED, message, code="replica_failed")
