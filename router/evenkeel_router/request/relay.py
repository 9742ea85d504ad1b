"""Passing one stream on, from the replica's bytes to the client's.

Most chunks of a stream never come to `Relay.feed`: once the client was sent something, chunks that need no look inside
pass straight through (`Reply.splice`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from evenkeel_fairshare.fleet.contract import NOTHING, Usage

from evenkeel_router.api.errors import Outcome, Refusal
from evenkeel_router.api.streams import SCANS
from evenkeel_router.fleet.health import Health
from evenkeel_router.request import own_answers
from evenkeel_router.request.request_state import AdmittedRequest, RequestState
from evenkeel_router.transport.client_request import Answer, Request, Stream
from evenkeel_router.transport.upstream import BrokenError, Passes, Reply, SilenceError

Begun: TypeAlias = Callable[[int], None]
"""The client is about to be sent the first of its answer, with this status."""


class FailedAttempt(Exception):
    """An attempt failed before the client was sent anything."""

    def __init__(self, why: str, *, unanswered: bool = False) -> None:
        """`unanswered`: nothing of an answer came."""
        super().__init__(why)
        self.unanswered = unanswered


class Relay:
    """One request's stream, sent on as it comes."""

    __slots__ = ("_begun", "_match", "passes", "reply", "request_state", "scan", "stream")

    def __init__(
        self,
        request_state: RequestState,
        admitted: AdmittedRequest,
        request: Request,
        reply: Reply,
        begun: Begun,
    ) -> None:
        self.request_state = request_state
        self.reply = reply
        self._match = admitted.match
        self._begun = begun
        scan = SCANS[admitted.endpoint.api.dialect]
        self.scan = scan(drops_usage=not admitted.inference.wants_usage)
        self.passes: Passes = self.scan.passes
        self.stream = Stream(request, headers=request_state.reply_headers)

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
        if scan.broken is not None:
            self.reply.hold()

    def usage(self) -> Usage:
        """The usage that the replica reported, or an estimate."""
        scan = self.scan
        if scan.failed and not scan.events:
            return NOTHING
        return scan.usage or self._match.estimate(scan.output_tokens)

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


async def relay_stream(relay: Relay, *, idle_s: float, health: Health) -> Answer:
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
    if scan.failed:
        state.outcome = Outcome.REPLICA_FAILED
    stream.finish()
    return stream


async def _receive(relay: Relay, idle_s: float) -> BrokenError | SilenceError | None:
    """Pass on what the replica sends. Returns why the stream broke before its last event; None if it did not."""
    scan = relay.scan
    try:
        ended = False
        while not ended and scan.broken is None:
            await relay.room(idle_s)
            ended = await relay.reply.relay(relay.feed, idle_s=idle_s)
        scan.close()
    except (BrokenError, SilenceError) as error:
        if not scan.done:
            return error
    return None if scan.broken is None else BrokenError(scan.broken)


def _break_off(relay: Relay, error: BrokenError | SilenceError, health: Health) -> Answer:
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
