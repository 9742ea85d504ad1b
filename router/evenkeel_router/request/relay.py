"""A stream on its way from a replica to its client.

A stream begins with its first content (R19). What comes before is held: until then the attempt may fail without a trace. Content that
comes together with the break of its stream is never sent: another replica is asked. Most chunks of a stream never come to `Relay.feed`:
once it has begun, chunks that need no look inside pass straight through (`Reply.splice`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

from evenkeel_fairshare.fleet.contract import Usage
from msgspec import Struct

from evenkeel_router.api.errors import Outcome, Refusal
from evenkeel_router.api.openai import TOO_LARGE
from evenkeel_router.api.streams import SCANS
from evenkeel_router.fleet.health import HealthMonitor
from evenkeel_router.fleet.suspicion import Evidence
from evenkeel_router.ledger.totals import ReplicaTotals
from evenkeel_router.request import own_answers, usage_claims
from evenkeel_router.request.attempt import Attempt
from evenkeel_router.request.failures import Cause, FailedAttempt
from evenkeel_router.request.request_state import AdmittedRequest, RequestState
from evenkeel_router.transport.client_request import Answer, Request, Stream
from evenkeel_router.transport.upstream import (
    BrokenError,
    Passes,
    Reply,
    SilenceError,
    TooLargeError,
)

MAX_OPENING_BYTES: Final = 256 * 1024
"""Bytes before the first content that a stream may have, beside what repeats its request; usual ones have some hundred."""
REPEATS: Final = 4
"""How often they may repeat the request: `response.created` and what follows it have its tools and instructions."""

Begun: TypeAlias = Callable[[], None]
"""The client is about to be sent the first of its answer."""
BROKE_OFF: Final = Evidence("broke_off", "it breaks off answers that have begun")


class Answered(Struct, frozen=True):
    """A replica's answer, and the request that it belongs to."""

    request_state: RequestState
    admitted: AdmittedRequest
    attempt: Attempt
    request: Request
    reply: Reply
    totals: ReplicaTotals
    begun: Begun


class Relay:
    """One request's stream, sent on as it comes once it has begun."""

    __slots__ = (
        "_answered",
        "_opening",
        "_opening_bytes",
        "begun",
        "passes",
        "reply",
        "request_state",
        "scan",
        "stream",
    )

    def __init__(self, answered: Answered) -> None:
        admitted = answered.admitted
        self._answered = answered
        self.request_state = answered.request_state
        self.reply = answered.reply
        self._opening: list[bytes] = []
        """Events before the stream has begun."""
        self._opening_bytes = 0
        self.begun = False
        """Whether the client was sent something of the answer."""
        inference, state = admitted.inference, self.request_state
        # Each sequence has events without a token, and calls of tools may take two events for one.
        most = inference.most_output_tokens + usage_claims.EVENTS_BESIDE * inference.sequences
        if inference.loose_events:
            most *= 2
        scan = self.scan = SCANS[admitted.endpoint.api.dialect](
            drops_usage=not inference.wants_usage,
            continuous=state.continuous,
            most_events=most,
            left=most,
        )
        self.passes: Passes = scan.passes
        if state.heartbeat is None:
            self.stream = Stream(answered.request, headers=state.reply_headers())
        else:
            self.stream = state.heartbeat.stream

    def feed(self, data: bytes, last: bool) -> None:
        """Pass on what is whole."""
        scan = self.scan
        events = scan.feed(data)
        if events:
            if self._opening and self.begun:
                self._opening.append(events)  # behind what is not sent yet
            elif self.begun:
                self.stream.send(events, last and scan.done)
            elif (opening := self._opened(events, last)) is not None:
                if opening:
                    self.stream.send(opening, last and scan.done)
                self._answered.begun()
                client = self.stream.client
                if client is not None:  # from now on most chunks pass without `feed`
                    self.reply.splice(self.passes, client)
        if scan.broken is not None or scan.cut:
            self.reply.hold()

    def _opened(self, events: bytes, last: bool = False) -> bytes | None:
        """What the client is to be sent now, if the stream has begun with these events; None: it has not.

        `last`: no bytes follow.
        """
        scan = self.scan
        if (
            not scan.begun
            or scan.broken is not None
            or (last and not scan.ended)
            or (scan.failure is not None and not scan.cut)
            or not self._is_proved()
        ):
            self._opening.append(events)
            self._opening_bytes += len(events)
            if scan.failure is not None:
                scan.broken = scan.failure.message
            elif self._opening_bytes > MAX_OPENING_BYTES and not scan.begun:
                repeated = REPEATS * len(self._answered.admitted.inference.body)
                if self._opening_bytes > MAX_OPENING_BYTES + repeated:
                    scan.broken = "the replica's stream has no content"
            return None
        self.begun = True
        self.reply.begun()
        return events if not self._opening else self._take_opening(events)

    def _take_opening(self, events: bytes) -> bytes:
        """Join what was held and these events. What would take long to join, or to send, is sent in parts (`room`); empty then."""
        self._opening.append(events)
        held, self._opening = self._opening, []
        if self._opening_bytes <= MAX_OPENING_BYTES:
            return b"".join(held)
        self._opening = held
        self.reply.hold()
        return b""

    def _is_proved(self) -> bool:
        """Whether the replica has shown as much of its answer as it must."""
        attempt, scan = self._answered.attempt, self.scan
        if not attempt.is_unproved:
            return True
        if not scan.ended and scan.output_tokens < attempt.proof_tokens:
            return False
        attempt.ticket.member.standing.breaks_off = False
        return True

    def usage(self) -> Usage:
        """The usage that the replica reported, or an estimate."""
        return usage_claims.of_stream(self.request_state, self._answered.admitted, self.scan)

    def settle(self) -> None:
        """The stream is over: note what it used."""
        state, scan = self.request_state, self.scan
        state.usage_reported = scan.usage is not None
        state.usage = usage_claims.of_stream(state, self._answered.admitted, scan)
        if scan.packed and scan.packs_tokens:  # from now on it is asked for usage in every event
            self._answered.totals.packs_tokens = True
        if scan.cut:
            state.impossible = "an answer beyond the bound of its output"

    async def room(self, idle_s: float) -> None:
        """Wait until the client may be sent more; raises `Refusal` for a client that does not read."""
        if self.stream.full:  # perhaps of the connection's last answer
            await _drain(self.stream, idle_s)
        if self._opening and self.begun:
            await self.send_opening(idle_s)

    async def send_opening(self, idle_s: float) -> None:
        """Send what was held before the first content, in parts."""
        held, self._opening = self._opening, []
        for number, part in enumerate(held):
            self.stream.send(part)
            if self.stream.full:
                await _drain(self.stream, idle_s)
            elif number % 16 == 0:  # 128 KiB
                await asyncio.sleep(0)

    def blame(self, health: HealthMonitor) -> None:
        """The replica broke the answer off."""
        answered = self._answered
        health.broke_off(answered.attempt.ticket, answered.admitted.client.identity, BROKE_OFF)

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

    def open_late(self) -> None:
        """The replica's stream is over: what is held of an answer that has begun goes to the client."""
        if not self.scan.begun or self.scan.broken is not None:
            return
        if (opening := self._opened(b"")) is not None:
            if opening:
                self.stream.send(opening)
            self._answered.begun()

    def end(self, refusal: Refusal) -> Answer:
        """End a stream that has begun with an error event, if its last event was not sent yet."""
        self.send_now()
        if not self.scan.done:
            self.request_state.outcome = refusal.outcome
            end = b"\n\n" if self.scan.is_within else b""  # of an event that was sent in part
            self.stream.send(end + self.scan.error_event(refusal))
        self.stream.finish()
        return self.stream


async def relay_stream(relay: Relay, *, idle_s: float, health: HealthMonitor) -> Answer:
    """Pass a stream on; raises `FailedAttempt` or `SilenceError` until it has begun, `Refusal` if its client does not read."""
    state, scan, stream = relay.request_state, relay.scan, relay.stream
    stream.when_full(relay.reply.hold)
    try:
        error = await _receive(relay, idle_s)
        stream.when_full(None)
        if not relay.begun:
            raise _failure(relay, error, health)
        if error is not None:
            return _break_off(relay, error, health)
        if not relay.all_sent:
            await relay.send_rest()
    except asyncio.CancelledError:
        state.complete = scan.done and relay.all_sent
        if not relay.begun or not state.interrupted():
            raise
        return relay.end(own_answers.shutting_down())
    finally:
        relay.close()
        stream.when_full(None)
        if relay.begun:
            relay.settle()
    if scan.failure is not None:
        state.outcome = Outcome.REPLICA_FAILED
        if not scan.cut:
            relay.blame(health)
    elif not scan.done and (last := scan.last_event()):
        stream.send(last)
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
        if not relay.begun:
            relay.open_late()
        if relay.begun:
            await relay.send_opening(idle_s)
    except (BrokenError, SilenceError) as error:
        if not scan.done:
            return error
    if scan.broken is None:
        return None
    return (TooLargeError if scan.broken is TOO_LARGE else BrokenError)(scan.broken)


def _failure(
    relay: Relay, error: BrokenError | SilenceError | None, health: HealthMonitor
) -> FailedAttempt | SilenceError:
    """Why a stream did not begin."""
    scan = relay.scan
    if isinstance(error, SilenceError):
        return error
    if scan.failure is not None:
        return FailedAttempt.of_refusal(scan.failure)
    if error is None:
        return FailedAttempt("the replica's stream was empty", cause=Cause.UNREADABLE)
    if scan.broken is None:
        health.broken(relay.request_state.replica, str(error))
    return FailedAttempt.of_break(error, began=scan.begun)


def _break_off(relay: Relay, error: BrokenError | SilenceError, health: HealthMonitor) -> Answer:
    """The replica failed in the middle of a stream."""
    relay.blame(health)
    if isinstance(error, SilenceError):
        return relay.end(
            own_answers.silent("The replica sent nothing more within the idle timeout.")
        )
    health.broken(relay.request_state.replica, str(error))
    return relay.end(own_answers.broken_off(str(error)))


async def _drain(stream: Stream, idle_s: float) -> None:
    """Wait for a client that reads slowly; raises `Refusal` for one that does not read at all."""
    try:
        async with asyncio.timeout(idle_s):
            await stream.drain()
    except TimeoutError as error:
        stream.abort()
        raise own_answers.not_reading(idle_s) from error
