"""Attempts over the fake at the network seam: what is retried where, and what a fault of ours looks like."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import msgspec
import pytest
from evenkeel_contract.key import decode
from evenkeel_contract.routerconfig import (
    SIMULATOR_TOKENIZER,
    PrefixConfig,
    PrefixMode,
    ReplicaConfig,
    SchedulingConfig,
    TenantLimits,
)
from evenkeel_router.api.identity import other_clients
from evenkeel_router.app import Router, running
from evenkeel_router.transport.upstream import (
    BrokenError,
    ConnectError,
    ConnectionLimitError,
    Outgoing,
    SilenceError,
    UnansweredError,
    UpstreamError,
)

from tests.support.fakes import Answer, FakeProber, FakeReply, FakeUpstream, headers_of, replicas
from tests.support.nasty import DONE, EVENT, OK
from tests.support.routers import KEY, MODEL, QUICK, config_for, routable, tenancy, until

BODY = {"model": MODEL, "prompt": "x"}
STREAM = BODY | {"stream": True}


@asynccontextmanager
async def behind(
    answer: Answer, count: int = 3, **changes: object
) -> AsyncIterator[tuple[httpx.AsyncClient, Router, FakeUpstream]]:
    upstream = FakeUpstream(answer)
    config = config_for(*replicas(count), **changes)
    async with (
        running(config, upstream=upstream, prober=FakeProber(), timing=QUICK) as router,
        httpx.AsyncClient(base_url=router.url) as client,
    ):
        await routable(router, count)
        yield client, router, upstream


def events(*parts: bytes | UpstreamError) -> FakeReply:
    return FakeReply(parts, content_type="text/event-stream")


@pytest.mark.parametrize(("beyond_share", "counted"), [((), 1), (("ns/acme/chat",), 0)])
async def test_the_objective_counts_a_client_without_own_totals_by_its_own_share(
    monkeypatch: pytest.MonkeyPatch, beyond_share: tuple[str, ...], counted: int
) -> None:
    async with behind(lambda *_: FakeReply([OK])) as (client, router, _):
        totals, fairness = router.rooms.totals, router.rooms.service_ledger.fairness
        monkeypatch.setattr(totals, "_max_clients", 0)
        monkeypatch.setattr(fairness, "steps", lambda *_: iter(()))
        fairness.now = msgspec.structs.replace(fairness.now, beyond_share=frozenset(beyond_share))
        headers = {"authorization": f"Bearer {KEY}"}
        assert (await client.post("/v1/completions", json=BODY, headers=headers)).content == OK
        await until(lambda: not router.rooms.intake.active_requests, "the end")
        assert [one.identity for one in totals.clients()] == [other_clients("ns/acme")]
        assert sum(totals.within_share_ttft_s.counts) == counted


async def test_the_second_attempt_goes_elsewhere_with_the_flag_of_r11() -> None:
    def answer(replica: ReplicaConfig, request: Outgoing) -> FakeReply | UpstreamError:
        return BrokenError("reset") if replica.name == "r0" else FakeReply([OK])

    async with behind(answer) as (client, router, upstream):
        assert (await client.post("/v1/completions", json=BODY)).content == OK
        keys = [headers_of(request)["x-smg-routing-key"] for _, request in upstream.asked]
        assert [name for name, _ in upstream.asked] == ["r0", "r1"]
        assert [decode(key).retried_by_fleet for key in keys] == [False, True]
        assert upstream.closed == 2
        assert not any(router.rooms.replicas.fleet.outstanding)


async def test_on_generate_the_flag_travels_in_the_body() -> None:
    def answer(replica: ReplicaConfig, request: Outgoing) -> FakeReply | UpstreamError:
        return BrokenError("reset") if replica.name == "r0" else FakeReply([b'{"text":"a"}'])

    async with behind(answer) as (client, _, upstream):
        assert (await client.post("/generate", json={"text": "x"})).status_code == 200
        keys = [decode(json.loads(request.body)["routing_key"]) for _, request in upstream.asked]
        assert [key.retried_by_fleet for key in keys] == [False, True]


async def test_a_refused_connection_is_no_attempt_and_charges_no_client() -> None:
    class Refusing(FakeUpstream):
        async def connect(self, replica: ReplicaConfig):  # type: ignore[no-untyped-def]
            if replica.name != "r2":
                raise ConnectError("refused")
            return await FakeUpstream.connect(self, replica)

    upstream = Refusing(lambda replica, request: FakeReply([OK]))
    async with (
        running(
            config_for(*replicas(3)), upstream=upstream, prober=FakeProber(), timing=QUICK
        ) as router,
        httpx.AsyncClient(base_url=router.url) as client,
    ):
        await routable(router, 3)
        assert (await client.post("/v1/completions", json=BODY)).content == OK
        ((name, request),) = upstream.asked
        assert name == "r2"
        assert not decode(headers_of(request)["x-smg-routing-key"]).retried_by_fleet


async def test_without_room_for_a_connection_it_answers_503_and_blames_no_replica() -> None:
    class Full(FakeUpstream):
        async def connect(self, replica: ReplicaConfig):  # type: ignore[no-untyped-def]
            raise ConnectionLimitError("too many open files")

    upstream = Full(lambda replica, request: FakeReply([OK]))
    async with (
        running(
            config_for(*replicas(2)), upstream=upstream, prober=FakeProber(), timing=QUICK
        ) as router,
        httpx.AsyncClient(base_url=router.url) as client,
    ):
        await routable(router, 2)
        response = await client.post("/v1/completions", json=BODY)
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert response.json()["error"]["code"] == "overloaded"
        assert router.rooms.replicas.fleet.routable.bit_count() == 2
        assert not any(router.rooms.replicas.fleet.outstanding)


async def test_silence_is_never_tried_again() -> None:
    async with behind(lambda *_: SilenceError("silent")) as (client, _, upstream):
        assert (await client.post("/v1/completions", json=BODY)).status_code == 504
        assert len(upstream.asked) == 1
    async with behind(lambda *_: events(SilenceError("silent"))) as (client, _, upstream):
        assert (await client.post("/v1/completions", json=STREAM)).status_code == 504
        assert len(upstream.asked) == 1


@pytest.mark.parametrize("error", [BrokenError, UnansweredError])  # it may have run unanswered
async def test_attempts_are_bounded(error: type[BrokenError]) -> None:
    async with behind(lambda *_: error("reset"), count=6) as (client, _, upstream):
        response = await client.post("/v1/completions", json=BODY)
        assert response.status_code == 502
        assert "3 replicas" in response.json()["error"]["message"]
        assert len({name for name, _ in upstream.asked}) == len(upstream.asked) == 3


async def test_after_the_first_event_there_is_one_error_event() -> None:
    async with behind(lambda *_: events(EVENT, EVENT, BrokenError("reset"))) as (
        client,
        _,
        upstream,
    ):
        body = (await client.post("/v1/completions", json=STREAM)).content
        assert body.startswith(EVENT + EVENT + b'data: {"error"')
        assert body.count(b"\n\n") == 3
        assert len(upstream.asked) == 1


@pytest.mark.parametrize("breaks_off", [True, False])
async def test_a_replica_that_broke_off_an_answer_shows_two_tokens_first(
    breaks_off: bool,
) -> None:
    """R20: a client that has no token of it yet gets its answer elsewhere."""

    def answer(replica: ReplicaConfig, request: Outgoing) -> FakeReply:
        if replica.name == "r0":
            return events(EVENT, BrokenError("reset"))
        return events(EVENT, EVENT, DONE)

    async with behind(answer, count=2) as (client, router, upstream):
        for member in router.rooms.replicas.fleet:
            member.standing.begun_s = 1.0
            member.standing.breaks_off = breaks_off
        body = (await client.post("/v1/completions", json=STREAM)).content
        if breaks_off:
            assert body == EVENT + EVENT + DONE
        else:
            assert body.startswith(EVENT + b'data: {"error"')
        names = [name for name, _ in upstream.asked]
        assert names == (["r0", "r1"] if breaks_off else ["r0"])
        assert next(iter(router.rooms.replicas.fleet)).standing.breaks_off, "it goes on doing so"


async def test_a_replica_that_shows_two_tokens_breaks_off_no_more() -> None:
    async with behind(lambda *_: events(EVENT, EVENT, DONE), count=2) as (client, router, upstream):
        for member in router.rooms.replicas.fleet:
            member.standing.begun_s, member.standing.breaks_off = 1.0, True
        body = (await client.post("/v1/completions", json=STREAM)).content
        assert body == EVENT + EVENT + DONE
        assert len(upstream.asked) == 1
        marks = [one.standing.breaks_off for one in router.rooms.replicas.fleet]
        assert marks == [False, True]


async def test_what_was_seen_of_a_broken_answer_uses_an_attempt_and_is_paid_once() -> None:
    """R11, R20: the first token of new processes is held, and shows that they computed the input."""
    breaks = lambda *_: events(EVENT, UnansweredError("closed"))
    async with behind(breaks, count=6) as (client, _, upstream):
        assert (await client.post("/v1/completions", json=STREAM)).status_code == 502
        keys = [decode(headers_of(request)["x-smg-routing-key"]) for _, request in upstream.asked]
        assert [key.retried_by_fleet for key in keys] == [False, True, True]


async def test_a_whole_stream_passes_untouched() -> None:
    async with behind(lambda *_: events(EVENT, EVENT + DONE)) as (client, _, _upstream):
        assert (await client.post("/v1/completions", json=STREAM)).content == EVENT + EVENT + DONE


async def test_a_trace_context_travels_on_if_it_is_printable() -> None:
    async with behind(lambda *_: FakeReply([OK])) as (client, _, upstream):
        headers = {"traceparent": b"00-ab-cd-01", "tracestate": "é".encode(), "x-other": b"y"}
        await client.post("/v1/completions", json=BODY, headers=headers)
        sent = headers_of(upstream.asked[0][1])
        assert sent.keys() == {
            "x-request-id",
            "x-smg-routing-key",
            "x-evenkeel-cache-salt",
            "x-session-id",
            "traceparent",
        }
        assert sent["x-session-id"] == sent["x-smg-routing-key"], "vLLM reads the first"
        assert sent["traceparent"] == "00-ab-cd-01"


async def test_a_fault_of_the_router_is_a_500_a_count_and_a_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def answer(replica: ReplicaConfig, request: Outgoing) -> FakeReply:
        raise LookupError("a fault planted by a test")

    with caplog.at_level(logging.ERROR):
        async with behind(answer) as (client, router, _):
            response = await client.post("/v1/completions", json=BODY)
            assert response.status_code == 500
            assert response.json()["error"]["code"] == "internal"
            assert "planted" not in response.text
            url = f"http://127.0.0.1:{router.probe_port}/metrics"
            assert 'error_code="internal"' in (await client.get(url)).text
            assert not router.rooms.intake.admission.running
            assert not any(router.rooms.replicas.fleet.outstanding)
    assert "planted" in caplog.text


ERROR = b'data: {"error":{"message":"too long","code":400}}\n\n'
FIRST_CREDIT = 20_000
CONSTANT = SchedulingConfig(worker_quantum=FIRST_CREDIT)


@pytest.mark.parametrize(
    ("answer", "body", "want_charge"),
    [
        (lambda: FakeReply([OK]), BODY, 5 + 2 * 1),  # what the replica counted, not the estimate
        (lambda: events(EVENT, EVENT, DONE), STREAM, 50 + 2 * 2),  # it did not say: the estimate
        (lambda: FakeReply([b"{}"]), BODY, 50),
        (lambda: FakeReply([b"{}"], status=400), BODY, 0),
        (lambda: events(ERROR, DONE), STREAM, 0),
        (lambda: events(EVENT, ERROR, DONE), STREAM, 50 + 2 * 1),
        (lambda: events(EVENT, BrokenError("reset")), STREAM, 50 + 2 * 1),
        (lambda: SilenceError("silent"), BODY, 50),  # the replica may still be at it
    ],
)
async def test_the_charge_is_settled_or_taken_back(
    answer: Callable[[], FakeReply | UpstreamError], body: dict[str, object], want_charge: int
) -> None:
    """Design §5.6; a prompt of 50 tokens, so that the estimate is known."""
    refused = want_charge == 0
    async with behind(lambda *_: answer(), count=1, scheduling=CONSTANT) as (client, router, _):
        await client.post("/v1/completions", json=body | {"prompt": list(range(50))})
        await until(lambda: not router.rooms.intake.active_requests, "the end")
        (totals,) = router.rooms.totals.clients()
        credit = router.rooms.replicas.fleet.policy.credit(totals.identity)
        assert credit == {0: FIRST_CREDIT - want_charge}
        if refused:
            assert totals.input_tokens == sum(totals.distributions.duration_s.counts) == 0


@pytest.mark.parametrize(
    ("answer", "body", "want"),
    [
        (lambda: FakeReply([OK]), BODY, 1),
        (lambda: FakeReply([b"{}"]), BODY, 0),
        (lambda: events(EVENT, EVENT, DONE), STREAM, 0),
        (lambda: FakeReply([b"{}"], status=400), BODY, 0),
    ],
)
async def test_a_prediction_is_compared_with_a_replica_s_report_not_an_estimate(
    answer: Callable[[], FakeReply | UpstreamError], body: dict[str, object], want: int
) -> None:
    async with behind(lambda *_: answer(), count=1) as (client, router, _):
        await client.post("/v1/completions", json=body)
        await until(lambda: not router.rooms.intake.active_requests, "the end")
        counts = [sum(one.error_tokens.counts) for one in router.rooms.totals.predictions.values()]
        assert sum(counts) == want


async def test_a_failed_attempt_gives_its_charge_to_the_next() -> None:
    """R11: what the fleet fails to do is not charged twice."""

    def answer(replica: ReplicaConfig, request: Outgoing) -> FakeReply | UpstreamError:
        return BrokenError("reset") if replica.name == "r0" else FakeReply([OK])

    async with behind(answer, count=2, scheduling=CONSTANT) as (client, router, _):
        assert (await client.post("/v1/completions", json=BODY)).content == OK
        (totals,) = router.rooms.totals.clients()
        credit = router.rooms.replicas.fleet.policy.credit(totals.identity)
        assert sorted(credit.values()) == [FIRST_CREDIT - 7, FIRST_CREDIT]


async def test_a_client_spreads_once_its_credit_where_its_prefix_is_is_spent() -> None:
    """Algorithm 2, through the whole router: Q^w holds three of these requests."""
    ok = OK.replace(b'"prompt_tokens":5', b'"prompt_tokens":100')
    upstream = FakeUpstream(lambda *_: FakeReply([ok]))
    config = config_for(*replicas(2), scheduling=SchedulingConfig(worker_quantum=300))
    async with (
        running(config, upstream=upstream, prober=FakeProber(), timing=QUICK) as router,
        httpx.AsyncClient(base_url=router.url) as client,
    ):
        await routable(router, 2)
        body = BODY | {"prompt": list(range(100))}
        for _ in range(12):
            assert (await client.post("/v1/completions", json=body)).status_code == 200
        names = [name for name, _ in upstream.asked]
        assert names[:3] == ["r0"] * 3
        assert 4 <= names.count("r1") <= 8


@pytest.mark.parametrize("mode", list(PrefixMode))
async def test_a_tenants_limit_is_charged_what_was_used_whatever_was_estimated(
    mode: PrefixMode,
) -> None:
    """OK reports 6 tokens; the estimate, by bytes or by tokens, is of a prompt of hundreds."""
    limits, (acme,) = TenantLimits(tokens_per_minute=1, burst_tokens=10_000), tenancy().tenants
    changes = {
        "tenancy": tenancy(tenants=(replace(acme, limits=limits),)),
        "prefix": PrefixConfig(mode=mode, tokenizer=SIMULATOR_TOKENIZER),
    }
    async with behind(lambda *_: FakeReply([OK]), count=1, **changes) as (client, router, _):
        headers = {"authorization": f"Bearer {KEY}"}
        body = BODY | {"prompt": "a few words " * 200}
        assert (await client.post("/v1/completions", json=body, headers=headers)).content == OK
        await until(lambda: not router.rooms.intake.active_requests, "the end")
        left = router.rooms.intake.limit_parts._limits["tokens ns/acme"]
        assert left.free(0.0) == pytest.approx(10_000 - 6, abs=1)
