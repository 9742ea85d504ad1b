"""Requests whose clients leave a live router: which of them were given up."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from evenkeel_fairshare.verdict import Level
from evenkeel_router.api.identity import client_of
from evenkeel_router.ledger import endings
from evenkeel_router.request import abandoned
from evenkeel_router.telemetry import silences
from evenkeel_router.telemetry.recent import seen

from tests.support.nasty import EVENT, Asked, nasty
from tests.support.routers import KEY, MODEL, QUICK, config_for, router_of, tenancy, until
from tests.support.steps import result_of


async def test_a_client_that_leaves_after_a_wait_gave_its_request_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endings, "HELD_S", 0.3)
    monkeypatch.setattr(endings, "SILENT_S", 0.6)

    async def behave(asked: Asked) -> None:
        if b"stops" in asked.body:
            await asked.begin_stream(EVENT)
        if b"whole" in asked.body:
            await asked.whole_stream()
        else:
            await asked.hang()

    async with (
        nasty(behave) as replica,
        router_of(config_for(replica.config("r0"), tenancy=tenancy()), timing=QUICK) as router,
        httpx.AsyncClient(
            base_url=router.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=None
        ) as client,
    ):
        totals = router.rooms.totals.of(client_of(tenancy().tenants[0], "chat"))
        active = router.rooms.intake.active_requests

        async def leaves(prompt: str, after_s: float) -> int:
            """Requests that were given up so far."""
            body = {"model": MODEL, "prompt": prompt, "stream": True}
            task = asyncio.create_task(client.post("/v1/completions", json=body))
            await until(lambda: any(one.sent_s for one in active), "the request is sent")
            await asyncio.sleep(after_s)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await until(lambda: not active, "the request is over")
            return totals.given_up

        body = {"model": MODEL, "prompt": "whole", "stream": True}
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        assert await leaves("hangs", 0.0) == 0
        assert await leaves("hangs", 0.4) == 1
        assert await leaves("stops", 0.0) == 1
        assert await leaves("stops", 1.5) == 2
        counts = totals.endings.counts(asyncio.get_running_loop().time())
        assert counts == {"answered": 2, "client_gone": 1, "given_up": 2}


async def test_an_engine_that_answers_nobody_is_no_fair_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its clients leave sooner than they give up, so that no request is there for long."""
    for module in (abandoned, silences):
        monkeypatch.setattr(module, "SILENT_S", 1.0)
    monkeypatch.setattr(abandoned, "LEAST_S", 0.1)

    async def behave(asked: Asked) -> None:
        await (asked.whole_stream() if b"whole" in asked.body else asked.hang())

    async with (
        nasty(behave) as replica,
        router_of(config_for(replica.config("r0"), tenancy=tenancy()), timing=QUICK) as router,
        httpx.AsyncClient(
            base_url=router.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=0.3
        ) as client,
    ):
        rooms, now = router.rooms, asyncio.get_running_loop().time

        def said() -> tuple[Level, str]:
            verdict = result_of(seen(rooms, now())).verdict
            return verdict.level, verdict.sentence

        async def ask(prompt: str) -> None:
            body = {"model": MODEL, "prompt": prompt, "stream": True}
            await client.post("/v1/completions", json=body)

        for _ in range(2):
            with pytest.raises(httpx.ReadTimeout):
                await ask("hangs")
        await until(lambda: not rooms.intake.active_requests, "the requests are over")
        want = "none of 2 requests of the last minute was answered; their clients left within 2 s."
        assert said()[0] is not Level.FAIR
        assert want in said()[1]
        await ask("whole")
        assert said() == (Level.FAIR, "Fair: no client had to wait for another.")
        while said()[0] is Level.FAIR:
            with pytest.raises(httpx.ReadTimeout):
                await ask("hangs")
        level, sentence = said()
        assert level is Level.HELD_UP
        assert "no token for 1 s" in sentence
