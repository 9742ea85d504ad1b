"""The trace of a request as the pipeline sees it; `telemetry.tracing` makes spans of it.

The steps follow each other without gaps: a step ends where the next one begins, so their durations add up to the
request's.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from multidict import CIMultiDict

if TYPE_CHECKING:
    from evenkeel_router.request.request_state import AdmittedRequest, RequestState


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
    """The trace of one request."""

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
        """None while tracing is off."""
