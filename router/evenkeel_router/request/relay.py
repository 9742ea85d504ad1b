"""From a replica's bytes to a client's stream, and what that used (design §5.5, §5.6).

Place in the flow: forward → **relay** → account. The surprising thing: most chunks never come here; once the client was
sent something, those that need no look inside go by (`Reply.splice`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from aiohttp import web
from evenkeel_contract.names import REQUEST_ID_HEADER
from evenkeel_fairshare.fleet.contract import NOTHING, Usage

from evenkeel_router.api.errors import Refusal, error_event
from evenkeel_router.api.event_stream import EventScan
from evenkeel_router.api.inference import Endpoint
from evenkeel_router.fleet.selection import Plan
from evenkeel_router.request.request_state import AdmittedRequest, RequestState
from evenkeel_router.transport.replies import Stream
from evenkeel_router.transport.upstream import Reply

Begun: TypeAlias = Callable[[RequestState, int], None]
"""A request is being answered, with this status."""


class Relay:
    """One request's stream."""

    __slots__ = ("_begun", "_flight", "_plan", "_reply", "scan", "stream")

    def __init__(
        self,
        request_state: RequestState,
        order: AdmittedRequest,
        request: web.BaseRequest,
        reply: Reply,
        begun: Begun,
    ) -> None:
        self._flight = request_state
        self._plan = order.plan
        self._reply = reply
        self._begun = begun
        inference = order.inference
        self.scan = EventScan(
            cumulative=inference.endpoint is Endpoint.GENERATE,
            drops_usage=not inference.wants_usage,
        )
        self.stream = Stream(request, headers=((REQUEST_ID_HEADER, request_state.request_id),))

    def feed(self, data: bytes, last: bool) -> None:
        """Pass on what is whole."""
        scan = self.scan
        events = scan.feed(data)
        if events:
            self.stream.send(events, last and scan.done)
            if self._flight.first_byte_s is None:
                self._begun(self._flight, 200)
                client = self.stream.client
                if client is not None:  # from now on most chunks go by without `feed`
                    self._reply.splice(scan.passes, client)
        if scan.broken is not None:
            self._reply.hold()

    def usage(self) -> Usage:
        """What the replica said, or as good an estimate as there is."""
        scan = self.scan
        if scan.failed and not scan.events:
            return NOTHING
        return scan.usage or estimate(self._plan, scan.events)

    def end(self, refusal: Refusal) -> None:
        """End a stream that has begun with an error event, if its last event was not sent yet."""
        if not self.scan.done:
            self._flight.outcome = refusal.outcome
            self.stream.send(error_event(refusal))
        self.stream.finish()


def estimate(plan: Plan, output_tokens: int) -> Usage:
    """What a request used that a replica computed and did not account for."""
    dispatch = plan.dispatch
    cached = min(dispatch.matched_tokens, dispatch.input_tokens)
    return Usage(dispatch.input_tokens, cached, output_tokens)
