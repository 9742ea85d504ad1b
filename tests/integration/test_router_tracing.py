"""Traces of requests: what reaches a collector, and what replicas get of the trace context."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from dataclasses import replace
from itertools import pairwise

import httpx
import pytest
from evenkeel_contract.routerconfig import ReplicaConfig
from evenkeel_contract.tracingconfig import ClientNames, TracingConfig
from evenkeel_router.request.request_state import RequestTrace, Step
from evenkeel_router.telemetry import spans
from evenkeel_router.telemetry.tracing import Tracing
from evenkeel_router.transport.upstream import BrokenError, Outgoing, UpstreamError
from multidict import CIMultiDict

from tests.support.fakes import Answer, FakeProber, FakeReply, FakeUpstream, headers_of, replicas
from tests.support.nasty import OK
from tests.support.otlp import Collector, attributes, collector
from tests.support.ports import free_ports
from tests.support.routers import KEY, MODEL, QUICK, config_for, fleet, running, until

CLIENT_TRACE = "0af7651916cd43dd8448eb211c80319c"
CLIENT_SPAN = "b7ad6b7169203331"
BODY = {"model": MODEL, "prompt": "word " * 40, "max_tokens": 3, "ignore_eos": True}
BEARER = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(autouse=True)
def exports_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "EXPORT_INTERVAL_MS", 20)


def every_request(collected: Collector, **changes: object) -> TracingConfig:
    return replace(
        TracingConfig(endpoint=collected.url, sampling_rate_per_million=1_000_000), **changes
    )


def traceparent(*, sampled: bool) -> dict[str, str]:
    return {"traceparent": f"00-{CLIENT_TRACE}-{CLIENT_SPAN}-0{int(sampled)}"}


def begun(tracing: Tracing) -> RequestTrace | None:
    return tracing.spans and tracing.spans.begin("/v1/completions", "POST", CIMultiDict())


async def arrived(collected: Collector, root: str = "POST /v1/completions") -> None:
    await until(lambda: bool(collected.of(root)), f"the span {root}")


async def test_a_streamed_request_has_a_span_for_each_step_in_order() -> None:
    async with (
        collector() as collected,
        fleet(1, tracing=every_request(collected)) as (router, _),
        httpx.AsyncClient(base_url=router.url) as client,
    ):
        headers = BEARER | traceparent(sampled=True) | {"x-request-id": "mine"}
        answer = await client.post("/v1/completions", json=BODY | {"stream": True}, headers=headers)
        assert answer.status_code == 200
        await arrived(collected)
    (root,) = collected.of("POST /v1/completions")
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (CLIENT_TRACE, CLIENT_SPAN)
    steps = sorted(
        (span for span in collected.spans if span is not root),
        key=lambda span: span.start_time_unix_nano,
    )
    named = ["identify", "parse", "admit", "select", f"text_completion {MODEL}", "account"]
    assert [span.name for span in steps] == named
    assert all(span.parent_span_id == root.span_id for span in steps)
    assert all(
        before.end_time_unix_nano <= after.start_time_unix_nano for before, after in pairwise(steps)
    )
    assert collected.resources[0]["service.name"] == "evenkeel-router"
    shown = attributes(root)
    assert shown["http.response.status_code"] == 200
    assert shown["evenkeel.request_id"] == "mine"
    assert shown["evenkeel.client"] == hashlib.sha256(b"ns/acme/chat").hexdigest()[:16]
    forward = attributes(steps[4])
    assert forward["gen_ai.usage.output_tokens"] == 3
    assert forward["gen_ai.usage.input_tokens"] > 0
    assert forward["gen_ai.request.max_tokens"] == 3
    assert 0 < forward["gen_ai.response.time_to_first_chunk"] < 60
    assert (forward["evenkeel.replica"], forward["evenkeel.usage.reported"]) == ("r0", True)


async def test_names_of_clients_are_plain_only_if_that_is_allowed() -> None:
    async with collector() as collected:
        tracing = every_request(collected, client_names=ClientNames.PLAIN)
        async with (
            fleet(1, tracing=tracing) as (router, _),
            httpx.AsyncClient(base_url=router.url) as client,
        ):
            await client.post("/v1/completions", json=BODY, headers=BEARER)
            await arrived(collected)
    (root,) = collected.of("POST /v1/completions")
    assert attributes(root)["evenkeel.client"] == "ns/acme/chat"
    assert attributes(root)["evenkeel.tenant"] == "ns/acme"


async def traced(
    answer: Answer, collected: Collector, headers: dict[str, str], count: int = 2
) -> tuple[httpx.Response, FakeUpstream]:
    """One request through a router in front of replicas without sockets."""
    upstream = FakeUpstream(answer)
    config = config_for(*replicas(count), tracing=every_request(collected))
    async with (
        running(config, upstream=upstream, prober=FakeProber(), timing=QUICK) as router,
        httpx.AsyncClient(base_url=router.url) as client,
    ):
        await until(
            lambda: router.rooms.replicas.fleet.routable.bit_count() == count, "the replicas"
        )
        return await client.post("/v1/completions", json=BODY, headers=headers), upstream


async def test_each_attempt_is_a_span_and_the_replica_gets_it_as_the_parent() -> None:
    def answer(_: ReplicaConfig, request: Outgoing) -> FakeReply | UpstreamError:
        sent.append(headers_of(request))
        return BrokenError("cut off") if len(sent) == 1 else FakeReply([OK])

    sent: list[dict[str, str]] = []
    headers = traceparent(sampled=True) | {"tracestate": "vendor=1"}
    async with collector() as collected:
        reply, _ = await traced(answer, collected, headers)
        assert reply.status_code == 200
        await arrived(collected)
    attempts = collected.of(f"text_completion {MODEL}")
    attempts.sort(key=lambda span: span.start_time_unix_nano)
    assert [attributes(span).get("error.type") for span in attempts] == ["replica_failed", None]
    assert [one["traceparent"] for one in sent] == [
        f"00-{CLIENT_TRACE}-{span.span_id.hex()}-01" for span in attempts
    ]
    assert {one["tracestate"] for one in sent} == {"vendor=1"}


async def test_a_refused_request_names_the_reason_and_is_no_error_of_the_service() -> None:
    async with collector() as collected:
        unknown = {"Authorization": "Bearer wrong"}
        reply, _ = await traced(lambda *_: FakeReply([OK]), collected, unknown)
        assert reply.status_code == 401
        await arrived(collected)
    assert [span.name for span in collected.spans] == ["identify", "POST /v1/completions"]
    root = collected.spans[1]
    assert attributes(root)["error.type"] == "unauthenticated"
    assert "evenkeel.client" not in attributes(root)
    assert root.status.code == 0


async def test_a_client_that_does_not_sample_gets_no_spans_at_router_and_replica() -> None:
    async with collector() as collected:
        reply, upstream = await traced(
            lambda *_: FakeReply([OK]), collected, traceparent(sampled=False)
        )
    assert reply.status_code == 200
    assert collected.spans == []
    sent = headers_of(upstream.asked[0][1])
    assert sent["traceparent"].startswith(f"00-{CLIENT_TRACE}-")
    assert sent["traceparent"].endswith("-00")


async def test_tracing_begins_and_ends_with_a_changed_configuration() -> None:
    async with collector() as collected:
        off = config_for()
        on = replace(off, tracing=every_request(collected))
        tracing = Tracing(off)
        assert begun(tracing) is None
        tracing.apply(on)
        trace = begun(tracing)
        assert trace is not None
        assert trace.log_id()
        tracing.apply(on)
        assert begun(tracing) is not None
        tracing.apply(off)
        assert begun(tracing) is None
        await tracing.close()


async def test_neither_requests_nor_the_router_s_end_wait_for_a_gone_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("evenkeel_router.telemetry.tracing.LAST_EXPORT_S", 0.1)
    nowhere = Collector()
    nowhere.url = f"http://127.0.0.1:{free_ports(1)[0]}"
    async with asyncio.timeout(10):
        reply, _ = await traced(lambda *_: FakeReply([OK]), nowhere, BEARER)
    assert reply.status_code == 200


async def test_spans_beyond_the_queue_are_counted_as_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spans, "MAX_WAITING", 4)
    monkeypatch.setattr(spans, "BATCH", 1)
    monkeypatch.setattr(spans, "EXPORT_TIMEOUT_S", 60.0)
    async with collector() as collected:
        collected.answers.clear()
        tracing = Tracing(replace(config_for(), tracing=every_request(collected)))
        trace = begun(tracing)
        assert trace is not None
        trace.step(Step.PARSE)
        await until(lambda: collected.requests == 1, "the first export")
        for _ in range(6):  # four wait, and two of them are replaced
            trace.step(Step.PARSE)
        assert tracing.dropped.total == 2
        collected.answers.set()
        await until(lambda: len(collected.spans) == 5, "the spans that were kept")
        await tracing.close()
        assert tracing.dropped.total == 2


async def test_spans_that_no_collector_receives_are_counted_as_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spans, "EXPORT_TIMEOUT_S", 0.1)
    nowhere = Collector()
    nowhere.url = f"http://127.0.0.1:{free_ports(1)[0]}"
    tracing = Tracing(replace(config_for(), tracing=every_request(nowhere)))
    trace = begun(tracing)
    assert trace is not None
    trace.step(Step.PARSE)
    trace.step(Step.ADMIT)
    await until(lambda: tracing.dropped.total == 2, "two dropped spans")
    await tracing.close()


async def test_a_router_without_tracing_does_not_import_the_sdk() -> None:
    program = (
        "import sys, evenkeel_router.app, evenkeel_cli.main; "
        "sys.exit(any(name.startswith('opentelemetry.sdk') for name in sys.modules))"
    )
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    assert await child.wait() == 0


def test_without_the_packages_the_router_runs_and_reports_the_remedy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "evenkeel_router.telemetry.spans", None)
    config = config_for(tracing=TracingConfig(endpoint="http://collector:4318"))
    assert begun(Tracing(config)) is None
    assert "pip install 'evenkeel-llm[tracing]'" in caplog.text
