"""QoE of streams, and streams that are sent on no faster than they are read: an hour a token holds back all but the first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest
from evenkeel_contract.adminstate import STATE_PATH, decode_state
from evenkeel_contract.qoeconfig import Delivery, QoeConfig
from evenkeel_router.api.errors import Outcome
from evenkeel_router.app import Router, running
from evenkeel_router.request.pacing import MAX_HELD_BYTES
from evenkeel_router.transport.upstream import BrokenError, UpstreamError

from tests.support.fakes import FakeProber, FakeReply, FakeUpstream, replicas
from tests.support.nasty import DONE, EVENT, USAGE
from tests.support.routers import KEY, MODEL, PATIENCE_S, QUICK, config_for, fleet, routable, until

HOUR = QoeConfig(expected_itl_s=3600, delivery=Delivery.PACED)
AUTHORIZED = {"authorization": f"Bearer {KEY}"}
STREAM = {"model": MODEL, "prompt": "x", "stream": True}
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}],"usage":null}\n\n'
TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}],"usage":null}\n\n'
BIG = EVENT.replace(b'"a"', b'"%s"' % (b"a" * 4000))


@dataclass
class Stage:
    """A router in front of one replica with one answer."""

    router: Router
    upstream: FakeUpstream
    client: httpx.AsyncClient

    def errors(self, outcome: Outcome) -> int:
        return sum(one.errors[outcome] for one in self.router.rooms.totals.clients())

    async def is_over(self) -> None:
        await until(lambda: not self.router.rooms.intake.active_requests, "the end of the request")


@asynccontextmanager
async def stage(
    *parts: bytes | UpstreamError, qoe: QoeConfig = HOUR, drain_timeout_s: float = 30.0
) -> AsyncIterator[Stage]:
    upstream = FakeUpstream(lambda *_: FakeReply(parts, content_type="text/event-stream"))
    config = config_for(*replicas(1), qoe=qoe, drain_timeout_s=drain_timeout_s)
    async with (
        running(config, upstream=upstream, prober=FakeProber(), timing=QUICK) as router,
        http() as client,
    ):
        client.base_url = httpx.URL(router.url)
        await routable(router, 1)
        yield Stage(router, upstream, client)


def http() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=PATIENCE_S, headers=AUTHORIZED)


async def read_until(answer: httpx.Response, end: bytes) -> bytes:
    got = b""
    async for data in answer.aiter_raw():
        got += data
        if got.endswith(end):
            return got
    raise AssertionError(f"the stream ended after {got[-200:]!r}")


@pytest.mark.parametrize(
    ("qoe", "tokens", "bucket"),
    [
        (QoeConfig(expected_ttft_s=3600), 8, "1.0"),  # every token comes before it is due
        (QoeConfig(expected_ttft_s=1e-9), 1, "0.1"),  # the only token is late
    ],
)
async def test_the_qoe_of_a_stream_is_in_the_metrics_of_its_tenant(
    qoe: QoeConfig, tokens: int, bucket: str
) -> None:
    async with fleet(1, qoe=qoe) as (router, _), http() as client:
        body = STREAM | {"max_tokens": tokens, "ignore_eos": True}
        answer = await client.post(f"{router.url}/v1/completions", json=body)
        assert answer.content.endswith(DONE)
        await client.post(f"{router.url}/v1/completions", json=body | {"stream": False})
        (tenant,) = router.rooms.totals.distributions()
        await until(lambda: sum(tenant.duration_s.counts) == 2, "the end of both requests")
        scrape = await client.get(f"http://127.0.0.1:{router.probe_port}/metrics")
        answer = await client.get(f"http://127.0.0.1:{router.admin_port}{STATE_PATH}")
    (shown,) = [one for one in decode_state(answer.content).tenants if one.qoe_streams]
    assert (shown.qoe_streams, shown.qoe) == (1, tenant.qoe.total)
    lines = [line for line in scrape.text.splitlines() if "request_qoe_ratio_bucket" in line]
    counted = [
        line.partition('le="')[2].partition('"')[0] for line in lines if line.endswith(" 1.0")
    ]
    assert counted[0] == bucket
    assert all(line.endswith((" 0.0", " 1.0")) for line in lines)


async def test_a_paced_stream_of_a_real_replica_is_whole() -> None:
    qoe = QoeConfig(expected_itl_s=0.001, delivery=Delivery.PACED)
    async with fleet(1, qoe=qoe) as (router, _), http() as client:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": True}
        body |= {"max_tokens": 40, "ignore_eos": True, "stream_options": {"include_usage": True}}
        answer = await client.post(f"{router.url}/v1/chat/completions", json=body)
    assert answer.text.count('"content":') >= 40
    assert '"completion_tokens":40' in answer.text.replace(" ", "")
    assert answer.content.endswith(DONE)


async def test_the_first_token_comes_with_the_role_before_it() -> None:
    async with stage(ROLE + TOKEN + TOKEN + DONE) as on:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": True}
        async with on.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert await read_until(answer, TOKEN) == ROLE + TOKEN
        await on.is_over()


async def test_the_replica_is_free_while_tokens_are_held_and_a_drain_sends_them() -> None:
    async with stage(EVENT * 50 + USAGE, DONE, drain_timeout_s=0.05) as on:
        reading = asyncio.create_task(on.client.post("/v1/completions", json=STREAM))
        await until(lambda: on.upstream.closed == 1, "the end at the replica")
        assert not any(on.router.rooms.replicas.fleet.outstanding)
        assert on.router.rooms.intake.active_requests
        await on.router.drain()
        assert (await reading).content == EVENT * 50 + DONE
        assert on.errors(Outcome.UNAVAILABLE) == 0


async def test_a_client_may_leave_while_tokens_are_held() -> None:
    async with stage(EVENT, EVENT, DONE) as on:
        async with on.client.stream("POST", "/v1/completions", json=STREAM) as answer:
            assert await read_until(answer, EVENT) == EVENT
        await on.is_over()
        await until(lambda: on.errors(Outcome.CLIENT_GONE) == 1, "the count")
        assert not any(on.router.rooms.replicas.fleet.outstanding)


async def test_a_stream_broken_by_its_replica_ends_with_held_events_and_an_error() -> None:
    async with stage(EVENT * 5, BrokenError("reset")) as on:
        answer = await on.client.post("/v1/completions", json=STREAM)
        assert answer.content.startswith(EVENT * 5 + b'data: {"error"')
        assert on.errors(Outcome.REPLICA_FAILED) == 1


async def test_beyond_the_buffer_the_replica_is_not_read() -> None:
    parts = [BIG] * 200
    reply = FakeReply(parts, content_type="text/event-stream")
    async with stage() as on:
        on.upstream.answer = lambda *_: reply
        async with on.client.stream("POST", "/v1/completions", json=STREAM) as answer:
            await read_until(answer, BIG)
            await until(lambda: reply._held, "the end of reading")
            held = (reply._position - 1) * len(BIG)
            assert MAX_HELD_BYTES < held <= MAX_HELD_BYTES + len(BIG)
        await on.is_over()


async def test_a_stream_that_waits_for_room_in_the_buffer_is_whole() -> None:
    qoe = QoeConfig(expected_itl_s=0.001, delivery=Delivery.PACED)
    parts = [BIG] * 150
    async with stage(*parts, DONE, qoe=qoe) as on:
        answer = await on.client.post("/v1/completions", json=STREAM)
        assert answer.content == b"".join(parts) + DONE
