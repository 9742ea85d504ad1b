"""What a service level objective counts: first tokens of clients within their share (docs/how-to/monitoring.md)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from evenkeel_contract.routerconfig import LimitsConfig
from evenkeel_router.app import Router

from tests.support.routers import KEY, MODEL, PATIENCE_S, fleet, until

AUTH = {"Authorization": f"Bearer {KEY}"}
NAME = "evenkeel_router_within_share_ttft_seconds"
FLOOD = "ns/anonymous/anonymous"


def client_of(router: Router) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S, limits=limits)


def completion(**changes: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8} | changes


async def scrape(router: Router, client: httpx.AsyncClient) -> str:
    return (await client.get(f"http://127.0.0.1:{router.probe_port}/metrics")).text


@asynccontextmanager
async def flooded(client: httpx.AsyncClient) -> AsyncIterator[None]:
    """One client keeps far more requests waiting than a replica can run, until the end of the context."""

    async def ask(number: int) -> None:
        prompt = f"{number} " + "word " * 2000
        while True:
            await client.post("/v1/completions", json=completion(prompt=prompt, max_tokens=256))

    asking = [asyncio.create_task(ask(number)) for number in range(300)]
    try:
        yield
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def test_first_tokens_are_counted_by_the_objectives_own_threshold() -> None:
    async with fleet(ttft_threshold_s=77.0) as (router, _), client_of(router) as client:
        await client.post("/v1/completions", json=completion(), headers=AUTH)
        wrong = completion(model="other")  # its own fault
        await client.post("/v1/completions", json=wrong, headers=AUTH)
        text = await scrape(router, client)
    assert f'{NAME}_bucket{{le="77.0",model_name="llama"}} 1.0' in text
    assert f'{NAME}_count{{model_name="llama"}} 1.0' in text


async def test_what_failed_without_a_token_is_missed() -> None:
    limits = LimitsConfig(queue_timeout_s=0.05)
    async with fleet(0, limits=limits) as (router, _), client_of(router) as client:
        answer = await client.post("/v1/completions", json=completion(), headers=AUTH)
        assert answer.status_code == 503
        text = await scrape(router, client)
    assert f'{NAME}_bucket{{le="300.0",model_name="llama"}} 0.0' in text
    assert f'{NAME}_bucket{{le="+Inf",model_name="llama"}} 1.0' in text


async def test_who_floods_waits_for_itself_and_burns_no_budget() -> None:
    async with fleet(1) as (router, _), client_of(router) as client, flooded(client):
        seen = router.rooms.totals.within_share_ttft_s

        def answered() -> int:
            own = [one for one in router.rooms.totals.clients() if one.identity == FLOOD]
            return sum(one.answers for one in own)

        await until(
            lambda: FLOOD in router.rooms.service_ledger.fairness.now.beyond_share, "the flood"
        )
        counted, began = sum(seen.counts), answered()
        await client.post("/v1/completions", json=completion(), headers=AUTH)
        await until(lambda: answered() > began + 10, "answers to the flood")
        assert FLOOD in router.rooms.service_ledger.fairness.now.beyond_share
        assert sum(seen.counts) == counted + 1
