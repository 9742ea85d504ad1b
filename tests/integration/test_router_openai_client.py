"""OpenAI's own Python client, unchanged, against the router."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import openai
import pytest
from evenkeel_contract.routerconfig import Anonymous, LimitsConfig, TenantLimits
from evenkeel_router.app import Router

from tests.support.nasty import EVENT, Asked, nasty
from tests.support.routers import (
    KEY,
    MODEL,
    PATIENCE_S,
    config_for,
    fleet,
    routable,
    router_of,
    simulated,
    tenancy,
)


def client_of(router: Router, key: str = KEY) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{router.url}/v1", api_key=key, max_retries=0, timeout=PATIENCE_S
    )


@asynccontextmanager
async def serving(**changes: Any) -> AsyncIterator[tuple[openai.AsyncOpenAI, Router]]:
    async with fleet(2, **changes) as (router, _), client_of(router) as client:
        yield client, router


async def test_completions_and_chat_whole_and_streamed() -> None:
    async with serving() as (client, _):
        completion = await client.completions.create(model=MODEL, prompt="Hi", max_tokens=5)
        assert completion.usage is not None
        assert completion.usage.completion_tokens == 5
        chat = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_tokens=5
        )
        assert chat.choices[0].message.content
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Hi"}],
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 5
        pieces = [
            piece
            async for piece in await client.completions.create(
                model=MODEL, prompt="Hi", max_tokens=5, stream=True
            )
        ]
        assert len(pieces) >= 5
        assert all(piece.choices for piece in pieces)


async def test_models_are_listed_and_retrieved() -> None:
    async with serving() as (client, _):
        assert [model.id async for model in client.models.list()] == [MODEL]
        assert (await client.models.retrieve(MODEL)).id == MODEL
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other")


async def test_refusals_are_its_own_exception_types() -> None:
    once = replace(
        tenancy().tenants[0], limits=TenantLimits(requests_per_minute=3, burst_requests=3)
    )
    people = replace(tenancy(anonymous=Anonymous.REJECT), tenants=(once,))
    async with serving(tenancy=people, limits=LimitsConfig(max_body_bytes=10_000)) as (
        client,
        router,
    ):
        async with client_of(router, "sk-wrong") as stranger:
            with pytest.raises(openai.AuthenticationError) as wrong:
                await stranger.completions.create(model=MODEL, prompt="Hi")
            assert wrong.value.code == "invalid_api_key"
        with pytest.raises(openai.NotFoundError) as missing:
            await client.completions.create(model="gpt-5", prompt="Hi")
        assert missing.value.param == "model"
        with pytest.raises(openai.BadRequestError) as bad:
            await client.completions.create(model=MODEL, prompt="Hi", max_tokens=-1)
        assert (bad.value.param, bad.value.type) == ("max_tokens", "invalid_request_error")
        with pytest.raises(openai.APIStatusError) as large:
            await client.completions.create(model=MODEL, prompt="Hi" * 10_000)
        assert large.value.status_code == 413
        for _ in range(3):
            await client.completions.create(model=MODEL, prompt="Hi", max_tokens=1)
        with pytest.raises(openai.RateLimitError) as limited:
            await client.completions.create(model=MODEL, prompt="Hi", max_tokens=1)
        assert limited.value.response.headers["retry-after"]


async def test_an_untrusted_name_is_forbidden_only_where_a_proxy_is_believed() -> None:
    async with serving(tenancy=tenancy(trusted_proxies=("127.0.0.0/8",), tenants=())) as (
        client,
        _,
    ):
        with pytest.raises(openai.PermissionDeniedError):
            await client.completions.create(
                model=MODEL, prompt="Hi", extra_headers={"x-evenkeel-client": "missing"}
            )


async def test_a_fleet_that_is_not_there_is_an_internal_server_error() -> None:
    async with (
        serving(limits=LimitsConfig(queue_timeout_s=0.1)) as (client, router),
    ):
        for member in router.rooms.replicas.fleet:
            router.rooms.replicas.fleet.unready(member)
            router.rooms.replicas.configured[member.name] = replace(
                router.rooms.replicas.configured[member.name], url="http://127.0.0.1:1"
            )
        await routable(router, 0)
        with pytest.raises(openai.InternalServerError) as down:
            await client.completions.create(model=MODEL, prompt="Hi")
        assert down.value.status_code == 503


async def test_a_stream_that_breaks_off_raises_after_what_came() -> None:
    async def breaks_off(asked: Asked) -> None:
        await asked.begin_stream(EVENT)
        asked.close()

    async with (
        nasty(breaks_off) as replica,
        router_of(config_for(replica.config("r0"))) as router,
        client_of(router) as client,
    ):
        stream = await client.completions.create(model=MODEL, prompt="Hi", stream=True)
        pieces = []
        with pytest.raises(openai.APIError, match="broke off"):
            async for piece in stream:
                pieces.append(piece.choices[0].text)
        assert pieces == ["a"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_is_too_long_is_a_bad_request_with_its_code(stream: bool) -> None:
    async with (
        fleet(1, settings=simulated(context_length=100)) as (router, _),
        client_of(router) as client,
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.completions.create(model=MODEL, prompt="word " * 1000, stream=stream)
        assert refused.value.code == "context_length_exceeded"
        assert refused.value.type == "invalid_request_error"
        assert "longer than the model's context length (100 tokens)" in refused.value.message
