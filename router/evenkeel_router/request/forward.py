"""Forwarding one request and its answer: attempts, and what follows each way of failing (DESIGN section 5, steps 5 and 6).

| what happens                                    | what follows                                             |
|-------------------------------------------------|----------------------------------------------------------|
| no connection                                   | the replica is lost; another replica; no charge          |
| broken, garbage or 5xx before the first byte    | another replica, as a retry of the fleet (R11); then 502 |
| the same, but it had not begun by the report    | another replica; not one of its attempts, up to a limit  |
| the replica drains, and it has not begun        | another replica, if there is one; not an attempt         |
| no replica is routable                          | wait for a replica, up to queueTimeout; then 503         |
| every routable replica failed it                | 502                                                      |
| its turn at the replica's gate does not come    | 503 after queueTimeout                                   |
| that replica drains or is lost before its turn  | another replica; no charge                               |
| the service is at zero replicas                 | the same, up to activationTimeout, or 503 at once        |
| silence before the first byte                   | 504, never a retry: the replica may still work on it     |
| broken, garbage or silence after the first byte | one error event, and the end of the stream               |
| 4xx of the replica, or its error as first event | passed on; the charge is taken back                      |

A stream's first whole event commits the request to a replica, not its status line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableSet
from functools import partial
from typing import Final

from evenkeel_contract.routerconfig import ReplicaConfig
from evenkeel_fairshare.fleet.contract import EMPTY, ReplicaSet, Usage
from msgspec import Struct

from evenkeel_router.api.identity import UNPAID, Paid
from evenkeel_router.fleet.health import HealthMonitor
from evenkeel_router.fleet.replicas import Replicas
from evenkeel_router.fleet.selection import Ticket
from evenkeel_router.gate.gates import Gates
from evenkeel_router.ledger.accounting import Accounting
from evenkeel_router.request import own_answers
from evenkeel_router.request.attempt import (
    Answered,
    Attempt,
    FailedAttempt,
    Relay,
    relay_stream,
    relay_whole,
)
from evenkeel_router.request.pacing import relay_of
from evenkeel_router.request.replica_wait import ReplicaWait
from evenkeel_router.request.request_state import AdmittedRequest, RequestState, Step
from evenkeel_router.settings import Settings
from evenkeel_router.transport.client_request import Answer, Request
from evenkeel_router.transport.upstream import (
    BrokenError,
    ConnectError,
    ConnectionLimitError,
    Exchange,
    RelocatedError,
    SilenceError,
    UnansweredError,
    Upstream,
)

EXCUSED_PER_ATTEMPT: Final = 4
"""Losses of replicas that use no attempt, for each attempt: the request only waited there. The limit stops a request
that crashes every replica: until the next report it looks as if it had only waited."""


class _History(Struct, eq=False):
    """The attempts of one request so far."""

    wait_until_s: float
    """Time until which the request may wait for a replica, or for its turn at one."""
    failed: tuple[Ticket, ...] = ()
    """Attempts at replicas that failed the request: 5xx, garbage, or a broken connection before the first byte."""
    tried: ReplicaSet = EMPTY
    """Slots of the replicas that failed the request."""
    invited: ReplicaSet = EMPTY
    """An idle replica, for a request that waited at a gate: the next attempt goes there, if it can."""
    excused: int = 0
    """Failed attempts that had not begun when their replica was lost."""
    paid: Paid = UNPAID
    """What replicas that failed the request, or gave it back, have charged the client already (R11)."""

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
        gates: Gates,
        *,
        upstream: Upstream,
        health: HealthMonitor,
        unanswered: MutableSet[Attempt],
        is_draining: Callable[[], bool],
    ) -> None:
        """`unanswered` gets the attempts at replicas whose client was sent nothing yet."""
        self._settings = settings
        self._replicas = replicas
        self._accounting = accounting
        self._gates = gates
        self._upstream = upstream
        self._health = health
        self._unanswered = unanswered
        self._is_draining = is_draining
        self._replica_wait = ReplicaWait(settings, replicas, accounting)
        self._now = asyncio.get_running_loop().time

    async def forward(
        self, request_state: RequestState, admitted: AdmittedRequest, request: Request
    ) -> Answer:
        """The answer; raises `Refusal`."""
        fleet = self._replicas.fleet
        queue_timeout_s = self._settings.config.limits.queue_timeout_s
        history = _History(request_state.started_s + queue_timeout_s)
        while True:
            ticket = self._select(admitted, history)
            if ticket is None:
                if not fleet.routable:
                    history.wait_until_s = await self._replica_wait.wait(
                        request_state, admitted, history.wait_until_s
                    )
                elif history.spent():
                    raise own_answers.failed_everywhere()
                history.tried = EMPTY  # no replica had begun it, or much may have changed
                continue
            attempt = Attempt(fleet, self._accounting, ticket, history.tried)
            request_state.ticket = ticket
            try:
                answer = await self._attempt(request_state, admitted, request, attempt, history)
            except RelocatedError:
                request_state.attempt_failed("relocated")
                estimate = admitted.match.estimate(0)
                history.paid = _noted(request_state, await attempt.relocated(estimate), estimate)
                history.invited = attempt.invited
                history.wait_until_s = self._wait_until_s(request_state, admitted, history)
                admitted.totals.relocations += 1
                continue
            except FailedAttempt as failed:
                request_state.attempt_failed("replica_failed")
                estimate = admitted.match.estimate(0)
                ran, paid = attempt.failed(estimate)
                history.paid = _noted(request_state, paid, estimate)
                self._replicas.totals[attempt.replica].failures += 1
                history.failed += (ticket,)
                if failed.unanswered and not ran:
                    history.excused += 1
                    history.wait_until_s = self._wait_until_s(request_state, admitted, history)
                if self._has_no_attempt_left(history):
                    raise own_answers.failed(request_state.attempts, str(failed)) from failed
                admitted.totals.retries += 1
                history.tried = ReplicaSet(history.tried | 1 << ticket.slot)
                continue
            finally:
                self._unanswered.discard(attempt)
                # Does nothing after `relocated` and `failed`.
                attempt.finished(request_state.usage, request_state)
            if answer is not None:
                return answer

    def _select(self, admitted: AdmittedRequest, history: _History) -> Ticket | None:
        fleet = self._replicas.fleet
        if history.invited:
            # For one attempt only: the replica that is idle now may be busy at the next one.
            invited, history.invited = history.invited & ~history.tried, EMPTY
            if invited & fleet.routable:
                # All other replicas count as tried.
                return fleet.select(admitted.match, ReplicaSet(fleet.routable & ~invited))
        return fleet.select(admitted.match, history.tried)

    def _has_no_attempt_left(self, history: _History) -> bool:
        attempts = self._settings.config.limits.max_attempts
        return history.spent() >= attempts or history.excused >= EXCUSED_PER_ATTEMPT * attempts

    async def _attempt(  # noqa: PLR0917 - the state of one request, called once
        self,
        request_state: RequestState,
        admitted: AdmittedRequest,
        request: Request,
        attempt: Attempt,
        history: _History,
    ) -> Answer | None:
        """One replica; None if there was no turn or no connection. Raises `FailedAttempt`, `RelocatedError`, `Refusal`."""
        replica, stream = attempt.ticket.member.name, admitted.inference.stream
        if self._accounting.orders_queue(replica) and not await self._has_turn(
            request_state, admitted, attempt, history
        ):
            attempt.refused()
            return None
        configured = self._replicas.configured[replica]
        if request_state.trace is not None:
            request_state.trace.forward(admitted, replica=replica, url=configured.url)
        # Not in `_connect`, because a coroutine costs as much as the search in the pool.
        exchange = attempt.exchange = self._upstream.pooled(configured)
        if exchange is None:
            exchange = await self._connect(request_state, attempt, configured)
            if exchange is None:
                return None
        now_s = self._now()
        key = attempt.dispatched(admitted.client, paid=history.paid, now_s=now_s)
        self._unanswered.add(attempt)
        request_state.attempts += 1
        request_state.replica = replica
        totals = self._replicas.totals[replica]
        totals.requests += 1
        if totals.packs_tokens:
            request_state.continuous = True
        silence_s = self._silence_s(admitted)
        left_s = self._answer_by_s(request_state, history, silence_s) - now_s
        if left_s < silence_s:
            silence_s = max(0.0, left_s)
        outgoing = admitted.outgoing(request_state, request, key)
        try:
            reply = await exchange.ask(outgoing, silence_s=silence_s)
        except SilenceError as error:
            raise own_answers.silent(
                f"The replica did not answer within {silence_s:g} s."
            ) from error
        except BrokenError as error:
            self._health.broken(replica, str(error))
            raise FailedAttempt(
                str(error), unanswered=isinstance(error, UnansweredError)
            ) from error
        if stream and reply.status == 200 and reply.body is None:
            begun = partial(self._begun, request_state, attempt, history)
            answered = Answered(request_state, admitted, attempt, request, reply, begun)
            return await self._relay(answered)
        answer = relay_whole(
            request_state, admitted, request=request, reply=reply, close=self._is_draining()
        )
        self._begun(request_state, attempt, history, answer.status)
        return answer

    async def _connect(
        self, request_state: RequestState, attempt: Attempt, replica: ReplicaConfig
    ) -> Exchange | None:
        """A connection to the replica; None if it refuses one. Raises `Refusal` if this process can open no more."""
        try:
            exchange = attempt.exchange = await self._upstream.connect(replica)
            return exchange
        except ConnectError as error:
            request_state.attempt_failed("unreachable")
            attempt.refused()
            self._health.lost(attempt.replica, str(error))
            return None
        except ConnectionLimitError as error:
            attempt.refused()
            raise own_answers.no_connection(str(error)) from error

    async def _relay(self, answered: Answered) -> Answer:
        """Pass a stream on; raises `FailedAttempt`, `Refusal`."""
        config = self._settings.config
        relay = (Relay if config.qoe is None else relay_of(config.qoe))(answered)
        if (turn := answered.attempt.turn) is not None:
            turn.produced = relay.scan
        try:
            return await relay_stream(
                relay, idle_s=config.limits.idle_timeout_s, health=self._health
            )
        finally:
            if (
                relay.scan.packed and relay.scan.packs_tokens
            ):  # from now on it is asked for usage in every event
                self._replicas.totals[answered.attempt.replica].packs_tokens = True

    async def _has_turn(
        self,
        request_state: RequestState,
        admitted: AdmittedRequest,
        attempt: Attempt,
        history: _History,
    ) -> bool:
        """Wait for the request's turn at a replica whose queue the router orders (R12). False: another replica is needed."""
        inference = admitted.inference
        turn = attempt.turn = self._gates.enter(
            attempt.ticket,
            admitted.client,
            streams=inference.stream,
            max_output_tokens=inference.max_output_tokens or 0,
            paid=history.paid,
            sequences=inference.sequences,
        )
        if request_state.trace is not None:
            request_state.trace.step(Step.QUEUE)
        if turn.admitted is None:
            return True
        try:
            is_admitted = await turn.admission(history.wait_until_s - self._now())
            history.invited = turn.invited
            return is_admitted
        except TimeoutError as error:
            limits = self._settings.config.limits
            raise own_answers.not_admitted(limits.queue_timeout_s) from error

    def _begun(
        self, request_state: RequestState, attempt: Attempt, history: _History, status: int
    ) -> None:
        """The client is being sent the first of its answer."""
        self._unanswered.discard(attempt)
        request_state.first_byte_s = self._now()
        request_state.status = status
        if request_state.trace is not None:
            request_state.trace.answered()
        if status == 200:
            if attempt.turn is not None:
                attempt.turn.begun(request_state.usage)
            attempt.ticket.member.backoff.answered()
            if history.failed:
                # Not before another replica answers: a request that fails everywhere is itself the cause.
                self._health.failed(history.failed, answered_by=attempt.replica)

    def _silence_s(self, admitted: AdmittedRequest) -> float:
        """How long a replica may take to begin its answer."""
        limits = self._settings.config.limits
        if admitted.inference.stream:
            return limits.first_token_timeout_s
        # Its first byte comes with its last token.
        return limits.first_token_timeout_s + limits.idle_timeout_s

    def _answer_by_s(
        self, request_state: RequestState, history: _History, silence_s: float
    ) -> float:
        """When a request must have its first byte, however often it goes to another replica without using an attempt."""
        once_s = self._settings.config.limits.queue_timeout_s + silence_s
        return request_state.started_s + request_state.activation_s + once_s * (1 + history.spent())

    def _wait_until_s(
        self, request_state: RequestState, admitted: AdmittedRequest, history: _History
    ) -> float:
        """Time until which a request that left a replica may wait for one to be routable."""
        queue_until_s = self._now() + self._settings.config.limits.queue_timeout_s
        answer_by_s = self._answer_by_s(request_state, history, self._silence_s(admitted))
        return min(queue_until_s, answer_by_s)


def _noted(request_state: RequestState, paid: Paid, estimate: Usage) -> Paid:
    """What an attempt without content was charged, noted for the other books."""
    if paid.input and paid.booked:
        request_state.charged = estimate
    return paid
