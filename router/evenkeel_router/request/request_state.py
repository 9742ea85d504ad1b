"""One request from its head to its end: what the steps find out about it, for totals, metrics and its record (`request_log.py`)."""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final, Protocol

import msgspec
from evenkeel_contract.names import (
    ADAPTER_HEADER,
    CACHE_SALT_HEADER,
    CLIENT_KEY_HEADER,
    REMOVED_HEADER,
    REQUEST_ID_HEADER,
    SESSION_HEADER,
)
from evenkeel_fairshare.fleet.contract import NOTHING, Usage
from evenkeel_fairshare.qoe import AnswerTimeline
from multidict import CIMultiDict, istr

from evenkeel_router.api.cors import Headers
from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.api.errors import Outcome
from evenkeel_router.api.fields import shown
from evenkeel_router.api.identity import Client
from evenkeel_router.api.inference import Inference, with_cache_salt, with_client_key
from evenkeel_router.api.openai_requests import with_continuous_usage
from evenkeel_router.fleet.selection import MatchedRequest, Ticket
from evenkeel_router.ledger.totals import ClientTotals
from evenkeel_router.prefix.tokenised import Tokenised
from evenkeel_router.request.heartbeat import Heartbeat
from evenkeel_router.transport.client_request import Request
from evenkeel_router.transport.upstream import APART_BYTES, Outgoing

REQUEST_ID: Final = istr(REQUEST_ID_HEADER)
_WELL_FORMED_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_TRACEPARENT: Final = istr("traceparent")
_TRACESTATE: Final = istr("tracestate")


class RequestIds:
    """Ids of requests: unique among routers by their prefix, within one by their number.

    A client may send the same id twice, and engines end requests by their id, so a replica is never sent a client's.
    """

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(6)
        self._numbers = itertools.count(1)

    def of(self, request: Request) -> str:
        """The id that the client sent, if it is well-formed, else a new one."""
        given = request.headers.get(REQUEST_ID)
        return given if given is not None and _WELL_FORMED_ID.fullmatch(given) else self.new()

    def new(self) -> str:
        """A new id."""
        return f"{self._prefix}-{next(self._numbers):x}"


class Step(Enum):
    """The numbered steps of the pipeline; the value is the name of the span."""

    IDENTIFY = "identify"
    PARSE = "parse"  # and receive the body
    ADMIT = "admit"
    TOKENISE = "tokenise"
    SELECT = "select"  # match the prefix and choose a replica, or wait for one
    QUEUE = "queue"  # at the gate, where the router orders the replica's queue (R12)
    # Step 6, one attempt at one replica, has a span of another kind: `RequestTrace.forward`.
    ACCOUNT = "account"


class RequestTrace(Protocol):
    """The trace of one request as the pipeline sees it; `telemetry.tracing` makes spans of it.

    The steps follow each other without gaps: a step ends where the next one begins, so their durations add up to the
    request's.
    """

    def step(self, step: Step) -> None:
        """The step before ends, and this one begins."""

    def forward(self, admitted: AdmittedRequest, *, replica: str, url: str) -> None:
        """An attempt begins, at the replica at `url`. Whatever step was before ends."""

    def failed(self, why: str) -> None:
        """The attempt failed, and step `SELECT` begins again; `why` is one of few words."""

    def answered(self) -> None:
        """The client is being sent the first of its answer."""

    def headers(self) -> Sequence[tuple[str, str]]:
        """W3C trace context for the replica: its spans become children of the current step."""

    def log_id(self) -> str:
        """The trace id for the request log, in hexadecimal digits; empty if the trace is not sampled."""

    def ended(self, request_state: RequestState) -> None:
        """The request is over."""


class TraceSource(Protocol):
    """Begins the traces of requests."""

    def begin(self, path: str, method: str, headers: CIMultiDict[str]) -> RequestTrace:
        """The trace of a new request, which continues the client's."""


class RequestTracer(Protocol):
    """Traces as configured."""

    @property
    def spans(self) -> TraceSource | None:
        """The source of traces; None while tracing is off."""


NO_TIME_S: Final = 0.0
"""The encoder leaves out what is the same object as a default."""


@dataclass(slots=True, eq=False)
class RequestState:
    """One request. No `Struct`: an assignment to one takes six times as long, and a request has twenty."""

    request_id: str
    """The id that the client sent, or the router's own: in the answer, the log and the trace."""
    path: str
    started_s: float
    upstream_id: str = ""
    """The id that the next replica gets; empty: `request_id`, which the client did not choose."""
    more_headers: Headers = ()
    """Further headers of its answer: for a page of another origin, and the model that serves in place of another."""
    trace: RequestTrace | None = None
    """Trace of the request; None while tracing is off."""
    # Identify, parse, admit.
    client: Client | None = None
    totals: ClientTotals | None = None
    removed: tuple[str, ...] = ()
    """Fields that were taken out of the body."""
    stream: bool = False
    estimate_tokens: int = 0
    """Input tokens, before the replica reports them: exact where the prompt was tokenised."""
    tokenised: Tokenised | None = None
    task: asyncio.Task[object] | None = None
    """Task that is cancelled to interrupt the request; None unless it is admitted."""
    expired: bool = False
    """Whether the router ends and waits for the request no longer."""
    # Select and forward.
    activation_s: float = 0.0
    """Time that the request waited for the first replica of a service at zero; it counts towards no other limit."""
    ticket: Ticket | None = None
    """Ticket of the current attempt, or of the last one; None before the first."""
    attempts: int = 0
    """Times that the request was sent."""
    replica: str = ""
    """Name of the last replica that the request was sent to; empty before."""
    sent_s: float = 0.0
    """When it was sent there; 0 while no replica has the request."""
    held_s: float = NO_TIME_S
    """Time that the router held it because no replica was routable."""
    holding_since_s: float = 0.0
    """Since when the router holds it for that; 0: it does not."""
    gate_s: float = NO_TIME_S
    """Time at gates, where it waited for its turn."""
    gate_since_s: float = 0.0
    """Since when it waits at a gate; 0: it does not."""
    # The answer.
    heartbeat: Heartbeat | None = None
    """Signs of life for the client while its stream waits; None: it gets none."""
    first_byte_s: float | None = None
    """When the client was sent the first content, or the whole answer (R19)."""
    status: int = 0
    complete: bool = False
    """Whether the client was sent the last event of its stream before it left."""
    delivery: AnswerTimeline | None = None
    """When the tokens of its stream came; None while QoE is not measured."""
    usage: Usage | None = None
    """Usage of the request, estimated where the replica does not report it. `NOTHING`: it refused. None: unknown."""
    usage_reported: bool = False
    """Whether the replica reported `usage`."""
    impossible: str = ""
    """What the replica reported that its request cannot have used (R18); empty: nothing."""
    continuous: bool = False
    """Whether the replica was asked for usage in every event."""
    charged: Usage = NOTHING
    """What the request is charged without content, or by an attempt before (`charges`)."""
    outcome: Outcome | None = None
    """How the request failed; None: success."""

    def reply_headers(self) -> Headers:
        """Headers of every answer to the request."""
        if self.removed:
            removed = (REMOVED_HEADER, shown(self.removed))
            return ((REQUEST_ID_HEADER, self.request_id), *self.more_headers, removed)
        own = (REQUEST_ID_HEADER, self.request_id)
        return (own, *self.more_headers) if self.more_headers else (own,)

    def attempt_failed(self, why: str) -> None:
        """The current attempt failed, and the next one has another id; `why` is one of few words, for the trace."""
        before = (self.upstream_id or self.request_id).removesuffix(f"-try{self.attempts}")
        self.upstream_id = f"{before}-try{self.attempts + 1}"
        self.sent_s = 0.0
        if self.trace is not None:
            self.trace.failed(why)

    def leaves_gate(self, now_s: float) -> None:
        """The request waits for its turn no longer."""
        self.gate_s += now_s - self.gate_since_s
        self.gate_since_s = 0.0

    def interrupt(self) -> None:
        """The router can wait no longer: the request ends with an error."""
        if self.task is not None:
            self.expired = True
            self.task.cancel()

    def client_left(self) -> None:
        """The client went away. Many do so with the last event, before the replica has closed the stream."""
        if not self.complete:
            self.outcome = Outcome.CLIENT_GONE

    def client_leaves(self) -> bool:
        """Whether the request ends now because its client goes away."""
        return self.task is not None and self.task.cancelling() > 0 and not self.expired

    def interrupted(self) -> bool:
        """Whether a cancellation came from `interrupt`, and not from a client that left; takes it back."""
        if self.expired and self.task is not None:
            self.task.uncancel()
        return self.expired


_CHANGED_BYTES: Final = 256
"""Behind the brace that opens a body: longer than a member that the router added and changes again."""


class AdmittedRequest(msgspec.Struct, frozen=True):
    """What an admitted request asks for."""

    client: Client
    totals: ClientTotals
    endpoint: Endpoint
    inference: Inference
    match: MatchedRequest

    def outgoing(self, request_state: RequestState, request: Request, key: str) -> Outgoing:
        """What a replica is sent: the client's body, the client key, the salt of the engine's cache, and the request's origin."""
        inference, api, cache_salt = self.inference, self.endpoint.api, self.client.cache_salt
        body = inference.body
        rest: bytes | memoryview = b""
        if len(body) >= APART_BYTES:
            # All changes are at its beginning. The rest is sent as it is: a copy of many megabytes would stop the event loop.
            cut = body.find(b"{") + _CHANGED_BYTES
            body, rest = body[:cut], memoryview(body)[cut:]
        if request_state.continuous:
            body = with_continuous_usage(body)
        if api.key_in_body:
            body = with_client_key(body, key)
        lines = _client_lines(key, cache_salt)
        request_id = request_state.upstream_id or request_state.request_id
        lines += f"{REQUEST_ID_HEADER}: {request_id}\r\n"
        if cache_salt and api.salt_in_body:
            body = with_cache_salt(body, cache_salt)
        if inference.adapter is not None:
            lines += f"{ADAPTER_HEADER}: {inference.adapter}\r\n"
        if request_state.trace is not None:
            lines += "".join(
                f"{name}: {value}\r\n" for name, value in request_state.trace.headers()
            )
        elif _TRACEPARENT in request.headers or _TRACESTATE in request.headers:
            lines += _trace_lines(request)
        return Outgoing(request_state.path, lines, body, inference.content_type, rest)


@lru_cache(maxsize=4096)
def _client_lines(key: str, cache_salt: str) -> str:
    """The headers that are the same for nearly all requests of a client."""
    lines = f"{CLIENT_KEY_HEADER}: {key}\r\n{SESSION_HEADER}: {key}\r\n"
    return f"{lines}{CACHE_SALT_HEADER}: {cache_salt}\r\n" if cache_salt else lines


def _trace_lines(request: Request) -> str:
    """The headers of the client's own trace."""
    lines = ""
    for name in filter(request.headers.__contains__, (_TRACEPARENT, _TRACESTATE)):
        value = request.headers[name]
        if value.isascii() and value.isprintable():
            lines += f"{name}: {value}\r\n"
    return lines
