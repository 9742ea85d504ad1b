"""From a replica's bytes to a client's answer, and the usage of it (DESIGN section 5, steps 5 and 6).

Most chunks of a stream never come here: once the client was sent something, chunks that need no look inside pass
straight through (`Reply.splice`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from evenkeel_fairshare.fleet.contract import NOTHING, Usage

from evenkeel_router.api.answers import GarbageError, of_reply
from evenkeel_router.api.errors import Outcome, Refusal, of_status, replica_error_body
from evenkeel_router.api.streams import SCANS
from evenkeel_router.fleet.health import Health
from evenkeel_router.fleet.selection import Match
from evenkeel_router.request import refusals
from evenkeel_router.request.request_state import AdmittedRequest, RequestState
from evenkeel_router.transport.client_request import JSON, Answer, CompleteReply, Request, Stream
from evenkeel_router.transport.upstream import BrokenError, Reply, SilenceError

Begun: TypeAlias = Callable[[int], None]
"""The client is about to be sent the first of its answer, with this status."""


class FailedAttempt(Exception):
    """An attempt failed before the client was sent anything."""

    def __init__(self, why: str, *, unanswered: bool = False) -> None:
        """`unanswered`: nothing of an answer came."""
        super().__init__(why)
        self.unanswered = unanswered


class Relay:
    """One request's stream."""

    __slots__ = ("_begun", "_match", "reply", "request_state", "scan", "stream")

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
                    self.reply.splice(scan.passes, client)
        if scan.broken is not None:
            self.reply.hold()

    def usage(self) -> Usage:
        """The usage that the replica reported, or an estimate."""
        scan = self.scan
        if scan.failed and not scan.events:
            return NOTHING
        return scan.usage or estimate(self._match, scan.events)

    def end(self, refusal: Refusal) -> Answer:
        """End a stream that has begun with an error event, if its last event was not sent yet."""
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
        ended = False
        while not ended and scan.broken is None:
            if stream.full:  # perhaps of the connection's last answer
                await _drain(stream, idle_s)
            ended = await relay.reply.relay(relay.feed, idle_s=idle_s)
        scan.close()
    except (BrokenError, SilenceError) as error:
        if not scan.done:
            return _break_off(relay, error, health)
    except asyncio.CancelledError:
        state.complete = scan.done
        if not stream.started or not state.interrupted():
            raise
        return relay.end(refusals.shutting_down())
    finally:
        stream.when_full(None)
        if stream.started:
            state.usage_reported = scan.usage is not None
            state.usage = relay.usage()
    if scan.broken is not None:
        return _break_off(relay, BrokenError(scan.broken), health)
    if scan.failed:
        state.outcome = Outcome.REPLICA_FAILED
    stream.finish()
    return stream


def _break_off(relay: Relay, error: BrokenError | SilenceError, health: Health) -> Answer:
    """The replica failed in the middle of a stream."""
    if isinstance(error, BrokenError):
        health.broken(relay.request_state.replica, str(error))
    if not relay.stream.started:
        if isinstance(error, SilenceError):
            raise refusals.silent("The replica did not finish its first event in time.") from error
        raise FailedAttempt(str(error)) from error
    if isinstance(error, SilenceError):
        return relay.end(refusals.silent("The replica sent nothing more within the idle timeout."))
    return relay.end(refusals.broken_off(str(error)))


def relay_whole(
    state: RequestState,
    admitted: AdmittedRequest,
    request: Request,
    reply: Reply,
    begun: Begun,
    *,
    close: bool,
) -> CompleteReply:
    """What the client gets for a replica's answer that is no stream; raises `FailedAttempt`."""
    status, body, inference = reply.status, reply.body, admitted.inference
    api = admitted.endpoint.api
    content_type = reply.content_type or "application/octet-stream"
    if 400 <= status < 500 and status not in (401, 403) and body is not None:
        state.outcome = of_status(status)
        state.usage = NOTHING
        body, content_type = replica_error_body(status, body, api.dialect), JSON
    elif status == 200 and body is not None and not inference.stream:
        try:
            reported = of_reply(admitted.endpoint, body, content_type)
        except GarbageError as error:
            raise FailedAttempt(str(error)) from error
        state.usage_reported = reported is not None
        state.usage = (reported or estimate(admitted.match, 0)) if api.computes else NOTHING
    else:  # 5xx; 401 and 403 are about the router's own key; a stream where none was asked for
        content = reply.content_type or "no content type"
        raise FailedAttempt(f"the replica answered {status} with {content}")
    begun(status)
    return CompleteReply(
        request,
        status=status,
        body=body,
        content_type=content_type,
        headers=state.reply_headers,
        close=close,
    )


def estimate(match: Match, output_tokens: int) -> Usage:
    """The usage of a request that a replica computed and did not report."""
    dispatch = match.dispatch
    cached = min(dispatch.matched_tokens, dispatch.input_tokens)
    return Usage(dispatch.input_tokens, cached, output_tokens)


async def _drain(stream: Stream, idle_s: float) -> None:
    """Wait for a client that reads slowly; raises `Refusal` for one that does not read at all."""
    try:
        async with asyncio.timeout(idle_s):
            await stream.drain()
    except TimeoutError as error:
        stream.abort()
        raise refusals.not_reading(idle_s) from error
