"""Forwarding one request and its answer: attempts, and what follows each way of failing (DESIGN section 5, steps 5 and 6).

| what happens                                    | what follows                                             |
|-------------------------------------------------|----------------------------------------------------------|
| no connection                                   | the replica is lost; another replica; no charge          |
| broken or 5xx before the answer began           | another replica, as a retry of the fleet (R11); then 502 |
| the same, but it had not begun by the report    | another replica; not one of its attempts, up to a limit  |
| 429 or 503                                      | another replica; then the same status, with Retry-After  |
| another 4xx, or such an error inside a 200      | another replica, once; its answer counts                 |
| an answer that is not JSON, an empty stream     | another replica, once; then 502                          |
| a context too long, an answer too large         | the same at any replica: the client gets the error       |
| the replica of the request sends nothing at all | another replica, once, within the same time limit        |
| a probe of a suspect fails (R20)                | another replica; not one of its attempts                 |
| the replica drains, and it has not begun        | another replica, if there is one; not an attempt         |
| no replica is routable                          | wait for a replica, up to queueTimeout; then 503         |
| every routable replica failed it                | the last one's error, or 502                             |
| its turn at the replica's gate does not come    | 503 after queueTimeout                                   |
| that replica drains or is lost before its turn  | another replica; no charge                               |
| the service is at zero replicas                 | the same, up to activationTimeout, or 503 at once        |
| the answer does not begin in time               | 504; the client's next request goes to another replica   |
| broken, garbage or silence after it began       | one error event, and the end of the stream               |

A stream begins with its first content, any other answer with its whole body (R19). That commits the request to a replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableSet
from functools import partial
from typing import Final

from evenkeel_contract.routerconfig import ReplicaConfig
from evenkeel_fairshare.fleet.contract import EMPTY, NOTHING, ReplicaSet, Usage
from msgspec import Struct

from evenkeel_router.api.identity import UNPAID, Paid
from evenkeel_router.fleet.health import SILENT, HealthMonitor
from evenkeel_router.fleet.replicas import Replicas
from evenkeel_router.fleet.selection import ALL, Ticket
from evenkeel_router.fleet.suspicion import Evidence
from evenkeel_router.gate.gates import Gates
from evenkeel_router.gate.turns import Turn
from evenkeel_router.ledger.accounting import Accounting
from evenkeel_router.request import own_answers
from evenkeel_router.request.attempt import Attempt
from evenkeel_router.request.failures import Cause, FailedAttempt
from evenkeel_router.request.large_bodies import LARGE_ANSWER_BYTES, LargeBodies
from evenkeel_router.request.pacing import relay_of
from evenkeel_router.request.relay import Answered, Relay, relay_stream
from evenkeel_router.request.replica_wait import ReplicaWait
from evenkeel_router.request.request_state import AdmittedRequest, RequestState, Step
from evenkeel_router.request.whole_answer import read_large, relay_whole
from evenkeel_router.settings import Settings
from evenkeel_router.transport.client_request import Answer, Request
from evenkeel_router.transport.upstream import (
    BrokenError,
    ConnectError,
    ConnectionLimitError,
    Exchange,
    OverdueError,
    RelocatedError,
    SilenceError,
    Upstream,
)

EXCUSED_PER_ATTEMPT: Final = 4
"""Losses of replicas that use no attempt, for each attempt: the request only waited there. The limit stops a request
that crashes every replica: until the next report it looks as if it had only waited."""


class _History(Struct, eq=False):
    """The attempts of one request so far."""

    wait_until_s: float
    """Time until which the request may wait for a replica, or for its turn at one."""
    failed: tuple[tuple[Ticket, Evidence], ...] = ()
    """Attempts at replicas that failed the request before the answer began, and why."""
    causes: tuple[Cause, ...] = ()
    """Causes of `failed`, in the same order."""
    tried: ReplicaSet = EMPTY
    """Slots of the replicas that failed the request."""
    invited: ReplicaSet = EMPTY
    """An idle replica, for a request that waited at a gate: the next attempt goes there, if it can."""
    called: Turn | None = None
    """The turn that it has there already."""
    excused: int = 0
    """Failed attempts that do not count: probes, and those that had not begun when their replica was lost."""
    begin_by_s: float | None = None
    """Time by which the answer must begin, once a silent replica took a part of that time; None before."""
    paid: Paid = UNPAID
    """What replicas that failed the request, or gave it back, have charged the client already (R11)."""

    def spent(self) -> int:
        """Attempts that count."""
        return len(self.failed) - self.excused


class Forwarder:
    """Sends requests to replicas until one answers."""

    def __init__(  # noqa: PLR0913 - each is one object of the router
        self,
        settings: Settings,
        replicas: Replicas,
        accounting: Accounting,
        gates: Gates,
        *,
        upstream: Upstream,
        health: HealthMonitor,
        large_bodies: LargeBodies,
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
        self._large_bodies = large_bodies
        self._unanswered = unanswered
        self._is_draining = is_draining
        self._replica_wait = ReplicaWait(settings, replicas, accounting)
        self._now = asyncio.get_running_loop().time

    async def forward(
        self, request_state: RequestState, admitted: AdmittedRequest, request: Request
    ) -> Answer:
        """The answer; raises `Refusal`."""
        fleet = self._replicas.fleet
        history = _History(request_state.started_s + self._settings.config.limits.queue_timeout_s)
        try:
            while True:
                ticket = self._select(admitted, history)
                if ticket is None:
                    if not fleet.routable:
                        history.wait_until_s = await self._replica_wait.wait(
                            request_state, admitted, history.wait_until_s
                        )
                    elif history.spent():
                        _, evidence = history.failed[-1]
                        raise own_answers.failed_everywhere(evidence.why)
                    history.tried = EMPTY  # no replica had begun it, or much may have changed
                    continue
                attempt = Attempt(fleet, self._accounting, ticket, history.tried)
                request_state.ticket = ticket
                try:
                    answer = await self._attempt(request_state, admitted, request, attempt, history)
                except RelocatedError:
                    request_state.attempt_failed("relocated")
                    estimate = admitted.match.estimate(0)
                    paid = await attempt.relocated(estimate)
                    history.paid = _noted(request_state, paid, estimate)
                    history.invited = attempt.invited
                    history.wait_until_s = self._wait_until_s(request_state, admitted, history)
                    admitted.totals.relocations += 1
                    continue
                except FailedAttempt as failed:
                    self._failed(request_state, admitted, attempt, history, failed)
                    continue
                finally:
                    self._unanswered.discard(attempt)
                    # Does nothing after `relocated` and `failed`.
                    attempt.finished(request_state.usage, request_state)
                if answer is not None:
                    return answer
        finally:
            if history.called is not None:
                history.called.leave(NOTHING)
            # The failures of new processes are explained, or never will be.
            for ticket, _ in history.failed:
                fleet.avoid_no_more(ALL, ticket)

    def _failed(  # noqa: PLR0917 - the state of one request, called once
        self,
        request_state: RequestState,
        admitted: AdmittedRequest,
        attempt: Attempt,
        history: _History,
        failed: FailedAttempt,
    ) -> None:
        """An attempt failed before the client was sent anything; raises `Refusal` unless another replica is asked."""
        request_state.attempt_failed("replica_failed")
        ticket, ran = attempt.ticket, False
        if failed.computed:
            estimate = admitted.match.estimate(0)
            ran, paid = attempt.failed(estimate, began=failed.began)
            history.paid = _noted(request_state, paid, estimate)
        else:
            attempt.finished(NOTHING)
        evidence = Evidence(failed.cause.value, str(failed))
        if failed.cause is Cause.SILENT:
            evidence = SILENT
        if ticket.probe:
            self._health.probe_failed(ticket, evidence)
        if failed.cause is not Cause.KNOWN:
            history.failed += ((ticket, evidence),)
            if not ticket.member.standing.begun_s:
                # Other requests would meet the same, until another replica shows whose fault it is.
                self._replicas.fleet.avoid(ALL, ticket)
            if failed.cause is not Cause.REQUEST:
                self._replicas.totals[attempt.replica].failures += 1
        if ticket.probe or (failed.unanswered and not ran):
            history.excused += 1
            history.wait_until_s = self._wait_until_s(request_state, admitted, history)
        goes_on = failed.may_go_on(history.causes) and not self._has_no_attempt_left(history)
        history.causes += (failed.cause,)
        history.tried = ReplicaSet(history.tried | 1 << ticket.slot)
        fleet = self._replicas.fleet
        if failed.refusal is not None and not fleet.takers() & ~history.tried:
            goes_on = False  # it is known what the client gets: no replica is waited for
        if not goes_on:
            request_state.usage = None if failed.computed else NOTHING
            names = {attempt.replica, *(of.member.name for of, _ in history.failed)}
            ours = own_answers.failed(request_state.attempts, len(names), str(failed))
            refusal = failed.refusal or ours
            request_state.outcome = refusal.outcome
            raise refusal from failed
        admitted.totals.retries += 1

    def _select(self, admitted: AdmittedRequest, history: _History) -> Ticket | None:
        fleet = self._replicas.fleet
        if history.invited:
            # For one attempt only: the replica that is idle now may be busy at the next one.
            avoided = history.tried | fleet.avoided_by(admitted.client.identity)
            invited, history.invited = history.invited & ~avoided, EMPTY
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
        request_state.sent_s = now_s
        totals = self._replicas.totals[replica]
        totals.requests += 1
        if totals.packs_tokens:
            request_state.continuous = True
        limits = self._settings.config.limits
        silence_s = limits.first_token_timeout_s if stream else limits.answer_timeout_s
        if history.causes or now_s > request_state.started_s + limits.queue_timeout_s:
            left_s = self._answer_by_s(request_state, history, silence_s) - now_s
            silence_s = max(0.0, min(left_s, silence_s))
        is_overdue = partial(self._is_overdue, admitted, attempt, history, silence_s)
        outgoing = admitted.outgoing(request_state, request, key)
        try:
            reply = await exchange.ask(outgoing, silence_s=silence_s, is_overdue=is_overdue)
            if stream and reply.status == 200 and reply.body is None:
                begun = partial(self._begun, request_state, admitted, attempt, history)
                relay = self._relay(
                    Answered(request_state, admitted, attempt, request, reply, totals, begun)
                )
                return await relay_stream(relay, idle_s=limits.idle_timeout_s, health=self._health)
        except (BrokenError, SilenceError) as error:
            raise self._failure(admitted, attempt, history, error, silence_s=silence_s) from error
        body, read = reply.body, None
        if body is not None and len(body) > LARGE_ANSWER_BYTES:
            read = await read_large(self._large_bodies, admitted, reply, body)
        answer = relay_whole(
            request_state, admitted, request=request, reply=reply, body=body, read=read,
            close=self._is_draining(),
        )  # fmt: skip
        self._begun(request_state, admitted, attempt, history)
        return answer

    def _failure(  # noqa: PLR0917 - the state of one request, called once
        self,
        admitted: AdmittedRequest,
        attempt: Attempt,
        history: _History,
        error: BrokenError | SilenceError,
        *,
        silence_s: float,
    ) -> Exception:
        """What follows an answer that did not begin."""
        if isinstance(error, SilenceError):
            self._health.silent(attempt.ticket, admitted.client.identity, attempt.dispatched_s)
        if isinstance(error, OverdueError):
            history.begin_by_s = attempt.dispatched_s + silence_s
            return FailedAttempt(SILENT.why, cause=Cause.SILENT)
        if isinstance(error, SilenceError):
            return own_answers.silent(f"The replica did not answer within {silence_s:g} s.")
        failed = FailedAttempt.of_break(error)
        if failed.cause is not Cause.KNOWN:
            self._health.broken(attempt.replica, str(error))
        return failed

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

    def _relay(self, answered: Answered) -> Relay:
        """What passes a stream on."""
        qoe = self._settings.config.qoe
        relay = Relay(answered) if qoe is None else relay_of(qoe)(answered)
        if (turn := answered.attempt.turn) is not None:
            turn.produced = relay.scan
        return relay

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
            called=history.called,
        )
        history.called = None
        if request_state.trace is not None:
            request_state.trace.step(Step.QUEUE)
        if turn.admitted is None:
            return True
        request_state.gate_since_s = now_s = self._now()
        try:
            is_admitted = await turn.admission(history.wait_until_s - now_s)
            history.invited, history.called = turn.invited, turn.take_call()
            return is_admitted
        except TimeoutError as error:
            raise own_answers.not_admitted(self._settings.config.limits.queue_timeout_s) from error
        finally:
            request_state.leaves_gate(self._now())

    def _begun(  # noqa: PLR0917 - the state of one request, called once
        self,
        request_state: RequestState,
        admitted: AdmittedRequest,
        attempt: Attempt,
        history: _History,
    ) -> None:
        """The client is being sent the first of its answer."""
        self._unanswered.discard(attempt)
        request_state.first_byte_s = now_s = self._now()
        request_state.status = 200
        if request_state.trace is not None:
            request_state.trace.answered()
        if attempt.turn is not None:
            attempt.turn.begun(request_state.usage)
        standing = attempt.ticket.member.standing
        standing.begun_s = attempt.begun_s = now_s
        standing.answers += 1
        if admitted.inference.stream:
            standing.seen.append(attempt)
        if standing.allowed is not None:
            self._health.begun(attempt.ticket)
        if history.failed:
            # Not before another replica answers: a request that fails everywhere is itself the cause.
            client = admitted.client.identity
            self._health.failed(history.failed, client, answered_by=attempt.replica)

    def _is_overdue(  # noqa: PLR0917 - the state of one request, called now and then
        self,
        admitted: AdmittedRequest,
        attempt: Attempt,
        history: _History,
        silence_s: float,
        silent_s: float,
    ) -> bool:
        """Whether another replica is to be asked, since this one has sent nothing to any client for `silent_s`."""
        longest_s = silence_s / 2
        if silent_s < longest_s and silent_s < self._settings.timing.overdue_s:
            return False
        ticket, attempts = attempt.ticket, self._settings.config.limits.max_attempts
        others = self._replicas.fleet.routable & ~history.tried & ~(1 << ticket.slot)
        left = ticket.probe or history.spent() + 1 < attempts
        if not others or not left or history.begin_by_s is not None:
            return False
        stream = admitted.inference.stream
        return silent_s >= self._health.overdue_s(ticket, longest_s, stream=stream)

    def _silence_s(self, admitted: AdmittedRequest) -> float:
        """How long a replica may take to begin its answer."""
        limits = self._settings.config.limits
        if admitted.inference.stream:
            return limits.first_token_timeout_s
        return limits.answer_timeout_s  # its first byte comes with its last token

    def _answer_by_s(
        self, request_state: RequestState, history: _History, silence_s: float
    ) -> float:
        """When a request must have its first byte, however often it goes to another replica without using an attempt."""
        if history.begin_by_s is not None:
            return history.begin_by_s
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
