"""The console of a router with several models: all of them together, one of them, and what a tenant sees."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import msgspec
from evenkeel_cli.top.view import View, make_views
from evenkeel_contract.adminstate import STATE_PATH, decode_state
from evenkeel_contract.consolestate import (
    HOUR_PATH,
    NOW_PATH,
    REQUESTS_PATH,
    ConsoleState,
    HourState,
    RequestsState,
)

from tests.integration.test_router_models import ADS, BIG, RESEARCH, SMALL, Stage, stage
from tests.support.routers import PATIENCE_S, QUICK

TIMING = replace(QUICK, console_tick_s=0.02)
NAMED: dict[str, Any] = {"big": {"names": ("smart", "gpt-4o")}}


class Reader:
    """Reads the console at the admin port, or with a tenant's key."""

    def __init__(self, at: Stage, key: str = "") -> None:
        admin = f"http://127.0.0.1:{at.router.admin_port}"
        self._http, self._base = at.http, at.router.url if key else admin
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def answer(self, path: str, **query: str) -> httpx.Response:
        return await self._http.get(self._base + path, params=query, headers=self._headers)

    async def now(self, **query: str) -> ConsoleState:
        answer = await self.answer(NOW_PATH, **query)
        assert answer.status_code == 200, answer.text
        return msgspec.json.decode(answer.content, type=ConsoleState)

    async def hour(self, **query: str) -> HourState:
        answer = await self.answer(HOUR_PATH, **query)
        return msgspec.json.decode(answer.content, type=HourState)

    async def requests(self, **query: str) -> RequestsState:
        answer = await self.answer(REQUESTS_PATH, **query)
        return msgspec.json.decode(answer.content, type=RequestsState)


async def test_all_models_are_shown_together_and_one_alone() -> None:
    async with stage(timing=TIMING, **NAMED) as at:
        for model, key in (("smart", ADS), (SMALL, ADS), (SMALL, RESEARCH)):
            assert (await at.chat(model, key=key)).status_code == 200
        admin = Reader(at)
        every = await admin.now()
        assert (every.service, every.model, every.level) == ("", "", "Fair")
        assert [(one.model, one.service) for one in every.models] == [("smart", "big"), (SMALL, "small")]  # fmt: skip
        assert [(one.routable, one.replicas) for one in every.models] == [(1, 1), (1, 1)]
        assert every.verdict == f"Fair in smart, {SMALL}."
        assert {one.name: one.model for one in every.replicas} == {"big-0": "smart", "small-0": SMALL}  # fmt: skip
        requests = {f"{one.tenant}/{one.client}": one.requests for one in every.clients}
        assert requests == {"ads/app": 2, "research/app": 1}
        assert every.ttft_p50_s is not None
        for named in ({"model": "smart"}, {"model": "gpt-4o"}, {"service": "big"}):
            big = await admin.now(**named)
            assert (big.service, big.model) == ("big", "smart")
            assert [one.model for one in big.models] == ["smart", SMALL]
            assert [one.name for one in big.replicas] == ["big-0"]
            assert {one.tenant: one.requests for one in big.clients} == {"ads": 1, "research": 0}
        unknown = await admin.answer(NOW_PATH, model="smrt")
        assert unknown.status_code == 404
        assert unknown.json()["error"]["message"] == f"model must be one of smart, {SMALL}, not 'smrt'."  # fmt: skip


async def test_the_hour_of_all_models_has_a_line_for_each() -> None:
    async with stage(timing=TIMING, **NAMED) as at:
        admin = Reader(at)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for model in ("smart", SMALL):
                    await at.chat(model)
                hour = await admin.hour()
                served = {one.model: sum(map(bool, one.service_per_s)) for one in hour.series}
                if len(served) == 3 and all(served.values()):
                    break
        assert list(served) == ["", "smart", SMALL]
        total, *models = hour.series
        for at_, value in enumerate(total.service_per_s):
            known = [one.service_per_s[at_] for one in models if one.service_per_s[at_] is not None]
            assert value == (sum(filter(None, known)) if known else None)
        assert {len(one.ttft_s) for one in hour.series} == {len(hour.times_unix_s)}
        client = await admin.hour(client="ns/ads/app")
        assert [one.model for one in client.series] == ["", "smart", SMALL]
        assert {one.model for one in client.replicas} == {"smart", SMALL}
        assert (await Reader(at, RESEARCH).hour(client="ns/ads/app")).series == ()


async def test_requests_of_all_models_are_one_list() -> None:
    async with stage(timing=TIMING, **NAMED) as at:
        ids = {}
        for model in ("smart", SMALL):
            ids[model] = (await at.chat(model)).headers["x-request-id"]
        admin = Reader(at)
        found = await admin.requests()
        assert {one.request_id: one.model for one in found.requests} == {of: name for name, of in ids.items()}  # fmt: skip
        own = await admin.requests(model="smart")
        assert [one.request_id for one in own.requests] == [ids["smart"]]
        told = await admin.requests(id=ids[SMALL])
        assert [one.replica for one in told.requests] == ["small-0"]
        assert told.words[0].startswith("The whole answer came after")


async def test_a_tenant_chooses_among_its_own_models_and_hears_of_no_other() -> None:
    small = {"tenants": ("ads",)}
    async with stage(timing=TIMING, small=small, **NAMED) as at:
        for model in ("smart", SMALL):
            assert (await at.chat(model)).status_code == 200
        ads, research = Reader(at, ADS), Reader(at, RESEARCH)
        every = await ads.now()
        assert [one.model for one in every.models] == ["smart", SMALL]
        assert [one.replicas for one in every.models] == [None, None]
        assert (every.scope, [one.requests for one in every.clients]) == ("tenant", [2])
        assert (await ads.now(model=SMALL)).service == "small"
        alone = await research.now()
        assert (alone.models, alone.service) == ((), "big")
        for query in ({}, {"model": SMALL}, {"service": "small"}, {"model": "no such"}):
            answer = await research.answer(NOW_PATH, **query)
            told = answer.text.replace(f"not '{SMALL}'", "").replace("not 'small'", "")
            assert answer.status_code == (404 if query else 200)
            assert SMALL not in told and "small" not in told


async def test_a_model_without_a_replica_is_named_at_the_head() -> None:
    async with stage(timing=TIMING, **NAMED) as at:
        await at.end(BIG, "big")
        admin = Reader(at)
        async with asyncio.timeout(PATIENCE_S):
            every = await admin.now()
            while every.level != "Out":
                every = await admin.now()
        assert every.verdict.startswith("smart: No client is served: the only replica")
        assert any(one.problem and one.message.startswith("smart: ") for one in every.conditions)
        assert (await admin.now(model=SMALL)).level != "Out"


async def test_top_shows_the_model_that_it_is_asked_for() -> None:
    async with stage(timing=TIMING, **NAMED) as at:
        await at.chat("smart")
        state = decode_state((await at.admin(STATE_PATH)).content)
        for name in ("smart", "gpt-4o", "big", BIG):
            view = make_views(state, None, name)
            assert isinstance(view, View)
            assert view.service == "ns/big"
