"""Forwarding one request: attempts, and what follows each way of failing (DESIGN section 5, step 5).

| what happens                                    | what follows                                             |
|-------------------------------------------------|----------------------------------------------------------|
| no connection                                   | the replica is lost; another replica; no charge          |
| broken, garbage or 5xx before the first byte    | another replica, as a retry of the fleet (R11); then 502 |
| the same, but it had not begun by the report    | another replica; not one of its attempts, up to a limit  |
| the replica drains, and it has not begun        | another replica, if there is one; not an attempt         |
| no replica left to try, or none routable        | wait for a replica, up to queueTimeout; then 503         |
| the service is at zero replicas                 | the same, up to activationTimeout, or 503 at once        |
| silence before the first byte                   | 504, never a retry: the replica may still work on it     |
| broken, garbage or silence after the first byte | one error event, and the end of the stream               |
| 4xx of the replica, or its error as first event | passed on; the charge is taken back                      |

A stream's first whole event commits the request to a replica, not its status line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from evenkeel_contract.names import CLIENT_KEY_HEADER, REQUEST_ID_HEADER
from evenkeel_fairshare.fleet.contract import EMPTY, ReplicaSet
from multidict import istr

from evenkeel_router.api.identity import UNPAID, Paid
from evenkeel_router.api.inference import with_client_key
from evenkeel_router.fleet.health import Health
from evenkeel_router.fleet.replicas import Replicas
from evenkeel_router.fleet.selection import Ticket
from evenkeel_router.ledger.accounting import Accounting
from evenkeel_router.request import refusals
from evenkeel_router.request.relay import (
    FailedAttempt,
    Relay,
    estimate,
    relay_stream,
    relay_whole,
)
from evenkeel_router.request.replica_wait import ReplicaWait
from evenkeel_router.request.request_state import AdmittedRequest, Attempt, RequestState
from evenkeel_router.settings import Settings
from evenkeel_router.transport.client_request import Answer, Request
from evenkeel_router.transport.upstream import (
    BrokenError,
    ConnectError,
    ConnectionLimitError,
    Outgoing,
    RelocatedError,
    SilenceError,
    UnansweredError,
    Upstream,
)

_TRACE_HEADERS: Final = (istr("traceparent"), istr("tracestate"))
EXCUSED_PER_ATTEMPT: Final = 4
"""A request that only waited where a replica was lost is excused this often for each attempt that it has. The limit
stops a request that brings down every replica that begins it: until the next report it looks the same."""


@dataclass(slots=True)
class _History:
    """The attempts of one request so far."""

    failed: tuple[Ticket, ...] = ()
    """At replicas that failed it: 5xx, garbage, or a broken connection before the first byte."""
    tried: ReplicaSet = EMPTY
    """Slots of those."""
    excused: int = 0
    """How many of those had not begun it when they were lost."""
    paid: Paid = UNPAID
    """What replicas that failed it, or gave it back, have charged the client already (R11)."""

    @property
    def spent(self) -> int:
        """Attempts that count."""
        return len(self.failed) - self.excused


class Forwarder:
    """Sends requests to replicas until one answers."""

    def __init__(
        self,
        settings: Settings,
        replicas: Replicas,
        accounting: Accounting,
        *,
        upstream: Upstream,
        health: Health,
        is_draining: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._replicas = replicas
        self._accounting = accounting
        self._upstream = upstream
        self._health = health
        self._is_draining = is_draining
        self._replica_wait = ReplicaWait(settings, replicas, accounting)
        self._now = asyncio.get_running_loop().time

    async def forward(
        self, request_state: RequestState, admitted: AdmittedRequest, request: Request
    ) -> Answer:
        """The answer; raises `Refusal`. The last attempt stays open in `request_state`, to settle."""
        fleet, history = self._replicas.fleet, _History()
        deadline_s = request_state.started_s + self._settings.limits.queue_timeout_s
        while True:
            ticket = fleet.select(admitted.match, history.tried)
            if ticket is None:
                if not fleet.routable:
                    deadline_s = await self._replica_wait.wait(request_state, admitted, deadline_s)
                elif history.spent:
                    raise refusals.failed_everywhere()
                history.tried = EMPTY  # no replica had begun it, or much may have changed
                continue
            attempt = Attempt(fleet, self._accounting, ticket, history.tried)
            request_state.attempt = attempt
            try:
                answer = await self._attempt(request_state, admitted, request, attempt, history)
            except RelocatedError:
                history.paid = await attempt.relocated(estimate(admitted.match, 0))
                deadline_s = self._wait_until_s(request_state, admitted, history)
                admitted.totals.relocations += 1
                continue
            except FailedAttempt as failed:
                ran, history.paid = attempt.failed(estimate(admitted.match, 0))
                self._replicas.totals(attempt.replica).failures += 1
                history.failed += (ticket,)
                if failed.unanswered and not ran:
                    history.excused += 1
                    deadline_s = self._wait_until_s(request_state, admitted, history)
                if self._has_no_attempt_left(history):
                    raise refusals.failed(request_state.attempts, str(failed)) from failed
                admitted.totals.retries += 1
                history.tried = ReplicaSet(history.tried | 1 << ticket.slot)
                continue
            if answer is not None:
                return answer

    def _has_no_attempt_left(self, history: _History) -> bool:
        attempts = self._settings.limits.max_attempts
        return history.spent >= attempts or history.excused >= EXCUSED_PER_ATTEMPT * attempts

    async def _attempt(
        self,
        request_state: RequestState,
        admitted: AdmittedRequest,
        request: Request,
        attempt: Attempt,
        history: _History,
    ) -> Answer | None:
        """One replica; None if there was no connection. Raises `FailedAttempt`, `RelocatedError`, `Refusal`."""
        try:
            exchange = await attempt.connect(
                self._upstream, self._replicas.configured[attempt.replica]
            )
        except ConnectError as error:
            attempt.refused()
            self._health.refused(attempt.replica, str(error))
            return None
        except ConnectionLimitError as error:
            attempt.refused()
            raise refusals.no_connection(str(error)) from error
        key = attempt.dispatched(admitted.client, paid=history.paid, now_s=self._now())
        request_state.attempts += 1
        request_state.replica = attempt.replica
        self._replicas.totals(attempt.replica).requests += 1
        silence_s = self._silence_s(admitted)
        left_s = self._answer_by_s(request_state, history, silence_s) - self._now()
        silence_s = min(silence_s, max(0.0, left_s))
        outgoing = _outgoing(request_state, admitted, request, key)
        try:
            reply = await exchange.ask(outgoing, silence_s=silence_s)
        except SilenceError as error:
            raise refusals.silent(f"The replica did not answer within {silence_s:g} s.") from error
        except BrokenError as error:
            self._health.broken(attempt.replica, str(error))
            raise FailedAttempt(
                str(error), unanswered=isinstance(error, UnansweredError)
            ) from error
        begun = partial(self._begun, request_state, history)
        if reply.status == 200 and admitted.inference.stream and reply.body is None:
            relay = Relay(request_state, admitted, request, reply, begun)
            idle_s = self._settings.limits.idle_timeout_s
            return await relay_stream(relay, idle_s=idle_s, health=self._health)
        return relay_whole(
            request_state, admitted, request, reply, begun, close=self._is_draining()
        )

    def _begun(self, request_state: RequestState, history: _History, status: int) -> None:
        """The client is being sent the first of its answer."""
        request_state.first_byte_s = self._now()
        request_state.status = status
        if status == 200:
            self._health.answered(request_state.replica, history.failed)

    def _silence_s(self, admitted: AdmittedRequest) -> float:
        """How long a replica may take to begin its answer."""
        limits = self._settings.limits
        if admitted.inference.stream:
            return limits.first_token_timeout_s
        # Its first byte comes with its last token.
        return limits.first_token_timeout_s + limits.idle_timeout_s

    def _answer_by_s(
        self, request_state: RequestState, history: _History, silence_s: float
    ) -> float:
        """When a request must have its first byte, however often it goes to another replica through no fault of its own."""
        once_s = self._settings.limits.queue_timeout_s + silence_s
        return request_state.started_s + request_state.activation_s + once_s * (1 + history.spent)

    def _wait_until_s(
        self, request_state: RequestState, admitted: AdmittedRequest, history: _History
    ) -> float:
        """Until when a request that left a replica may wait for one to be routable."""
        queue_until_s = self._now() + self._settings.limits.queue_timeout_s
        answer_by_s = self._answer_by_s(request_state, history, self._silence_s(admitted))
        return min(queue_until_s, answer_by_s)


def _outgoing(
    request_state: RequestState, admitted: AdmittedRequest, request: Request, key: str
) -> Outgoing:
    """What is sent: the client's body, the client key, and the request's origin."""
    inference = admitted.inference
    headers = [(REQUEST_ID_HEADER, request_state.request_id)]
    if admitted.endpoint.api.key_in_body:
        body = with_client_key(inference.body, key)
    else:
        body = inference.body
        headers.append((CLIENT_KEY_HEADER, key))
    for name in _TRACE_HEADERS:
        value = request.headers.get(name)
        if value is not None and value.isascii() and value.isprintable():
            headers.append((name, value))
    return Outgoing(request_state.path, headers, body, inference.content_type)
