"""Spans of one request, in the words of OpenTelemetry's semantic conventions.

| span                            | kind     | what it covers                          |
|---------------------------------|----------|-----------------------------------------|
| `POST /v1/chat/completions`     | SERVER   | the request, from its head to its end   |
| `identify`, `parse`, `admit`, … | INTERNAL | a step of the pipeline                  |
| `chat llama`                    | CLIENT   | step `forward`: one attempt at one replica |

Attributes `gen_ai.*` follow the conventions for generative AI, status Development
(https://github.com/open-telemetry/semantic-conventions-genai); `evenkeel.*` are our own. No span has text of a prompt or an
answer, an API key, or a header.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final
from urllib.parse import urlsplit

from evenkeel_contract.routerconfig import RouterConfig
from evenkeel_contract.tracingconfig import ClientNames, TracingConfig
from evenkeel_fairshare.fleet.contract import NOTHING
from multidict import CIMultiDict
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    format_trace_id,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.api.errors import OURS, Outcome
from evenkeel_router.request.request_state import AdmittedRequest, RequestState, RequestTrace, Step

MAX_WAITING: Final = 8192
"""Spans in memory; further ones replace the oldest, which the SDK logs."""
BATCH: Final = 256
EXPORT_INTERVAL_MS: Final = 1000
EXPORT_TIMEOUT_S: Final = 5.0
HASH_DIGITS: Final = 16

OPERATIONS: Final = {
    Endpoint.CHAT: "chat",
    Endpoint.RESPONSES: "chat",
    Endpoint.MESSAGES: "chat",
    Endpoint.COMPLETIONS: "text_completion",
    Endpoint.GENERATE: "text_completion",
    Endpoint.EMBEDDINGS: "embeddings",
}
"""`gen_ai.operation.name`; that of other endpoints is the last part of the path, such as `rerank`."""

PROVIDER: Final = "evenkeel"
"""`gen_ai.provider.name`: the router does not know which engine a replica runs."""
_PROPAGATOR: Final = TraceContextTextMapPropagator()


class Spans:
    """Makes spans, and exports them in a thread of the SDK."""

    def __init__(
        self, config: RouterConfig, tracing: TracingConfig, drop: Callable[[int], None]
    ) -> None:
        """`drop` counts spans that no collector received; threads call it.

        Headers and certificates for the collector come from the standard variables `OTEL_EXPORTER_OTLP_*`.
        """
        resource = Resource.create(
            {
                "service.name": "evenkeel-router",
                "service.namespace": config.namespace,
                "service.version": _version(),
                "evenkeel.service": config.service,
            }
        )
        self._provider = TracerProvider(ParentBased(ALWAYS_ON), resource, shutdown_on_exit=False)
        self._provider.add_span_processor(_SpanQueue(_Exporter(tracing.endpoint, drop), drop))
        self._tracer = self._provider.get_tracer("evenkeel_router")
        self._rate = tracing.sampling_rate_per_million / 1_000_000
        self._model = config.model
        self._name = _plain if tracing.client_names is ClientNames.PLAIN else hashed

    def begin(self, path: str, method: str, headers: CIMultiDict[str]) -> RequestTrace:
        """The span of a request and its first step. It is sampled if the client's span is, or else by the rate."""
        context = None
        if "traceparent" in headers:
            context = _PROPAGATOR.extract(headers)
            if not get_current_span(context).get_span_context().is_valid:
                context = None
        if context is None and random.random() >= self._rate:
            return UNSAMPLED
        root = self._tracer.start_span(
            f"{method} {path}",
            context,
            SpanKind.SERVER,
            {"http.request.method": method, "http.route": path},
        )
        return SpanTrace(self._tracer, root, model=self._model, name_of=self._name)

    def close(self) -> None:
        """Export what waits; spans that end later are dropped."""
        self._provider.shutdown()


class _Exporter(OTLPSpanExporter):
    """Counts the spans that it takes, and those that the collector did not receive."""

    def __init__(self, endpoint: str, drop: Callable[[int], None]) -> None:
        super().__init__(
            f"{endpoint.rstrip('/')}/v1/traces",
            timeout=EXPORT_TIMEOUT_S,
            compression=Compression.Gzip,
        )
        self.taken = 0
        self._drop = drop

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        result = SpanExportResult.FAILURE
        try:
            result = super().export(spans)
        finally:
            if result is not SpanExportResult.SUCCESS:
                self._drop(len(spans))
        return result


class _SpanQueue(BatchSpanProcessor):
    """Counts the spans that the SDK drops because too many wait. It has no count of its own that can be read."""

    def __init__(self, exporter: _Exporter, drop: Callable[[int], None]) -> None:
        super().__init__(
            exporter,
            max_queue_size=MAX_WAITING,
            schedule_delay_millis=EXPORT_INTERVAL_MS,
            max_export_batch_size=BATCH,
        )
        self._exporter = exporter
        self._drop = drop
        self._kept = 0
        """Spans that entered the queue and were not dropped from it."""

    def on_end(self, span: ReadableSpan) -> None:
        if self._kept - self._exporter.taken >= MAX_WAITING:
            self._drop(1)
        else:
            self._kept += 1
        super().on_end(span)


class Unsampled:
    """The trace of all requests that are not sampled: a hundredth of the cost of the SDK's own."""

    def step(self, step: Step) -> None:
        """Nothing is recorded, here and below."""

    def forward(self, admitted: AdmittedRequest, *, replica: str, url: str) -> None: ...

    def failed(self, why: str) -> None: ...

    def answered(self) -> None: ...

    def ended(self, request_state: RequestState) -> None: ...

    def headers(self) -> Sequence[tuple[str, str]]:
        """A new trace that is not sampled, so that the replica does not begin one that is."""
        ids = f"{random.getrandbits(128) | 1:032x}-{random.getrandbits(64) | 1:016x}"
        return (("traceparent", f"00-{ids}-00"),)

    def log_id(self) -> str:
        return ""


UNSAMPLED: Final = Unsampled()


class SpanTrace:
    """The spans of one request; implements `RequestTrace`."""

    __slots__ = (
        "_forward", "_forward_began_ns", "_forward_ended_ns", "_model", "_name_of", "_root", "_sampled", "_step", "_tracer",
    )  # fmt: skip

    def __init__(
        self, tracer: Tracer, root: Span, *, model: str, name_of: Callable[[str], str]
    ) -> None:
        self._tracer = tracer
        self._root = root
        self._model = model
        self._name_of = name_of
        self._sampled = root.is_recording()
        self._step = root
        self._forward: Span | None = None
        """The last attempt, if it did not fail. It stays open until its outcome is known."""
        self._forward_began_ns = self._forward_ended_ns = 0
        self.step(Step.IDENTIFY)

    def step(self, step: Step) -> None:
        if self._sampled:
            self._begin(step.value)

    def forward(self, admitted: AdmittedRequest, *, replica: str, url: str) -> None:
        if not self._sampled:
            return
        endpoint, inference = admitted.endpoint, admitted.inference
        operation = OPERATIONS.get(endpoint, endpoint.value.rpartition("/")[2])
        model = inference.adapter or self._model
        address = urlsplit(url)
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": model,
            "gen_ai.request.stream": inference.stream,
            "server.address": address.hostname or "",
            "evenkeel.replica": replica,
        }
        if address.port is not None:
            attributes["server.port"] = address.port
        if inference.max_output_tokens is not None:
            attributes["gen_ai.request.max_tokens"] = inference.max_output_tokens
        self._begin(f"{operation} {model}", SpanKind.CLIENT, attributes)
        self._forward, self._forward_began_ns = self._step, time.time_ns()

    def failed(self, why: str) -> None:
        _mark(self._step, why, is_ours=True)
        self._forward = None
        self.step(Step.SELECT)

    def answered(self) -> None:
        if self._forward is not None:
            waited_s = (time.time_ns() - self._forward_began_ns) / 1e9
            self._forward.set_attribute("gen_ai.response.time_to_first_chunk", waited_s)

    def headers(self) -> Sequence[tuple[str, str]]:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, set_span_in_context(self._step))
        return tuple(carrier.items())

    def log_id(self) -> str:
        return format_trace_id(self._root.get_span_context().trace_id) if self._sampled else ""

    def ended(self, state: RequestState) -> None:
        if not self._sampled:
            return
        if self._step is not self._forward:
            self._step.end()
        if self._forward is not None:
            self._end_forward(self._forward, state)
        self._root.set_attributes(
            {
                "http.response.status_code": state.status,
                "evenkeel.request_id": state.request_id,
                "evenkeel.attempts": state.attempts,
            }
        )
        if state.client is not None:
            self._root.set_attribute("evenkeel.tenant", self._name_of(state.client.tenant_identity))
            self._root.set_attribute("evenkeel.client", self._name_of(state.client.identity))
        _mark_outcome(self._root, state.outcome)
        self._root.end()

    def _begin(
        self,
        name: str,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> None:
        if self._step is self._forward:
            self._forward_ended_ns = time.time_ns()
        elif self._step is not self._root:
            self._step.end()
        parent = set_span_in_context(self._root)
        self._step = self._tracer.start_span(name, parent, kind, attributes)

    def _end_forward(self, span: Span, state: RequestState) -> None:
        usage = state.usage
        if usage is not None and usage != NOTHING:
            span.set_attributes(
                {
                    "gen_ai.usage.input_tokens": usage.input_tokens,
                    "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
                    "gen_ai.usage.output_tokens": usage.output_tokens,
                    "evenkeel.usage.reported": state.usage_reported,
                }
            )
        _mark_outcome(span, state.outcome)
        span.end(self._forward_ended_ns or None)


def _mark_outcome(span: Span, outcome: Outcome | None) -> None:
    if outcome is not None:
        _mark(span, outcome.value, is_ours=outcome in OURS)


def _mark(span: Span, why: str, *, is_ours: bool) -> None:
    """`is_ours`: a fault of the service; that of a client is no error of a server's span."""
    span.set_attribute("error.type", why)
    if is_ours:
        span.set_status(Status(StatusCode.ERROR))


def _version() -> str:
    try:
        return version("evenkeel-llm")
    except PackageNotFoundError:  # run from the source tree
        return "0.0.0"


def _plain(name: str) -> str:
    return name


@lru_cache(4096)
def hashed(name: str) -> str:
    """The first digits of a SHA-256: equal at all routers, so that traces of one client can be found."""
    return hashlib.sha256(name.encode()).hexdigest()[:HASH_DIGITS]
