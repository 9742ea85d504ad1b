"""What engines report and tenants send moves no other tenant's account, and costs what the request can have used (R18).

Over real sockets in front of a fake engine that reports what a test wants.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from evenkeel_contract.names import CLIENT_HEADERS
from evenkeel_contract.routerconfig import TenancyConfig, TenantConfig, TenantLimits
from evenkeel_router.api.endpoints import ENDPOINTS
from evenkeel_router.app import Router

from tests.support.apis import BODIES, CHAT_TEXT, DONE, STREAMS, chunk
from tests.support.nasty import Asked, Behaviour, Nasty, nasty
from tests.support.routers import MODEL, PATIENCE_S, config_for, router_of, until

CHAT_PATH = "/v1/chat/completions"
PIXELS = "data:image/png;base64," + "A" * 3_000_000
TEXT_40KB = "word " * 8000
EVENT = chunk(choices=[{"index": 0, "text": "a"}])


@asynccontextmanager
async def in_front_of(
    behave: Behaviour, **limits: TenantLimits
) -> AsyncIterator[tuple[Router, Nasty, httpx.AsyncClient]]:
    """A router with tenants a and b, named by a header."""
    tenants = tuple(
        TenantConfig(namespace="ns", name=name, limits=limits.get(name, TenantLimits()))
        for name in ("a", "b")
    )
    tenancy = TenancyConfig(tenants=tenants, trusted_proxies=("127.0.0.1/32",))
    async with (
        nasty(behave) as replica,
        router_of(config_for(replica.config("r0"), tenancy=tenancy)) as router,
        httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S) as client,
    ):
        yield router, replica, client


def named(tenant: str) -> dict[str, str]:
    return {CLIENT_HEADERS[0]: f"ns/{tenant}/c"}


def chat(*content: Any, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": list(content)}], **fields}


def words(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def usage(given: int, output: int = 1, cached: int = 0) -> dict[str, Any]:
    details = {"cached_tokens": cached}
    return {"prompt_tokens": given, "completion_tokens": output, "prompt_tokens_details": details}


def tokens(router: Router, tenant: str) -> tuple[int, int, int]:
    (totals,) = [one for one in router.rooms.totals.clients() if one.identity == f"ns/{tenant}/c"]
    return totals.input_tokens, totals.cached_tokens, totals.output_tokens


def served(router: Router, tenant: str) -> float:
    return router.rooms.service_ledger.ledger.served(f"ns/{tenant}/c")


def rejected(router: Router) -> int:
    return router.rooms.replicas.totals["r0"].rejected_usage


async def multimodal(asked: Asked) -> None:
    """An engine that counts 1500 tokens for an image and one for 4 bytes of text; its streams never end."""
    body = json.loads(asked.body)
    if body.get("stream"):
        await asked.begin_stream(CHAT_TEXT, CHAT_TEXT, CHAT_TEXT)
        await asked.hang()
    parts = body["messages"][0]["content"]
    given = sum(1500 if "image_url" in part else len(part["text"]) // 4 for part in parts)
    await asked.answer(json.dumps({"choices": [], "usage": usage(given)}).encode())


async def left_after_the_first_events(
    client: httpx.AsyncClient, router: Router, text: str
) -> tuple[int, int, int]:
    """Tokens that tenant b pays for a stream that it leaves after three events."""
    body = chat(words(text), stream=True)
    async with client.stream("POST", CHAT_PATH, json=body, headers=named("b")) as answer:
        got = b""
        async for piece in answer.aiter_raw():
            got += piece
            if got.count(b"data:") == 3:
                break
    await until(lambda: tokens(router, "b")[2] > 0, "the client to be gone")
    return tokens(router, "b")


@pytest.mark.parametrize(
    ("images", "times"), [([PIXELS], 1), ([f"https://a.test/{n}" for n in range(200)], 5)]
)
@pytest.mark.parametrize(("text", "want"), [(TEXT_40KB, 10_002), ("word " * 39 + "ends.ab", 52)])
async def test_images_of_one_tenant_do_not_change_the_price_of_anothers_text(
    images: list[str], times: int, text: str, want: int
) -> None:
    async with in_front_of(multimodal) as (router, _, client):
        for _ in range(times):
            body = chat(words("What is this?"), *map(image, images))
            assert (await client.post(CHAT_PATH, json=body, headers=named("a"))).status_code == 200
        assert await left_after_the_first_events(client, router, text) == (want, 0, 3)


async def test_images_of_one_tenant_change_no_limit_of_another() -> None:
    limits = TenantLimits(tokens_per_minute=20_000, burst_tokens=20_000)
    async with in_front_of(multimodal, b=limits) as (_, _, client):

        async def statuses(count: int, text: str) -> list[int]:
            body = chat(words(text))
            return [
                (await client.post(CHAT_PATH, json=body, headers=named("b"))).status_code
                for _ in range(count)
            ]

        for url in (PIXELS, "https://a.test/1"):
            body = chat(words("?"), *[image(url)] * (1 if url is PIXELS else 200))
            await client.post(CHAT_PATH, json=body, headers=named("a"))
        # 8 requests of 100 tokens, and then one of 10,000 after the other: the third finds less than a token.
        assert await statuses(8, "word " * 80) == [200] * 8
        assert await statuses(3, TEXT_40KB) == [200, 200, 429]


async def test_an_image_teaches_the_price_of_images_and_not_of_text() -> None:
    async with in_front_of(multimodal) as (router, replica, client):
        body = chat(words("word " * 200), image(PIXELS))
        for _ in range(60):
            await client.post(CHAT_PATH, json=body, headers=named("a"))
        (totals,) = router.rooms.totals.clients()
        assert totals.estimates.model.estimate(40_000) == 10_000
        inference = ENDPOINTS[CHAT_PATH].api.parse(
            replica.asked[0].body, router.rooms.intake.limits, "application/json"
        )
        assert totals.estimates.model.of(inference) == pytest.approx(250 + 1500, rel=0.05)


def answering(**counts: Any) -> Behaviour:
    async def behave(asked: Asked) -> None:
        await asked.answer(
            json.dumps({"choices": [{"text": "a" * 40}], "usage": usage(**counts)}).encode()
        )

    return behave


@pytest.mark.parametrize(
    ("counts", "want"),
    [
        ({"given": 10**15}, (51, 0, 1)),
        ({"given": 10**9, "cached": 10**9}, (51, 0, 1)),
        ({"given": -5}, (0, 0, 1)),
        ({"given": 60, "output": 10**15}, (60, 0, 10)),
        ({"given": 60, "output": 33}, (60, 0, 10)),
        ({"given": 60, "output": 32}, (60, 0, 32)),
        ({"given": 60, "cached": 10**12}, (60, 60, 1)),
        ({"given": 1024}, (1024, 0, 1)),  # what a template may add
    ],
)
async def test_a_claim_is_charged_within_what_its_request_can_have_used(
    counts: dict[str, Any], want: tuple[int, int, int], caplog: pytest.LogCaptureFixture
) -> None:
    body = {"model": MODEL, "prompt": "word " * 40 + "end.", "max_tokens": 16, "n": 2}
    async with in_front_of(answering(**counts)) as (router, _, client):
        assert (await client.post("/v1/completions", json=body, headers=named("a"))).is_success
        assert tokens(router, "a") == want
        assert served(router, "a") == want[0] - want[1] + 2 * want[2]
        is_claim = counts.get("given", 0) > 2048 or counts.get("output", 1) > 32
        assert rejected(router) == is_claim
        assert ("replica r0 reported" in caplog.text) == is_claim
        estimate = router.rooms.totals.estimates(_client(router)).model.estimate(40_000)
        assert estimate <= 10_000 + 2048


def _client(router: Router) -> Any:
    (found,) = [one for one in router.rooms.intake.directory._by_name.values() if one.tenant == "a"]
    return found


async def test_a_text_without_usage_costs_its_bytes() -> None:
    async def behave(asked: Asked) -> None:
        await asked.answer(json.dumps({"choices": [{"text": "word " * 400}]}).encode())

    async with in_front_of(behave) as (router, _, client):
        body = {"model": MODEL, "prompt": "Hi", "max_tokens": 900}
        await client.post("/v1/completions", json=body, headers=named("a"))
        assert tokens(router, "a") == (1, 0, 500)


def streaming(*events: bytes, ends: bool = True) -> Behaviour:
    async def behave(asked: Asked) -> None:
        await asked.begin_stream()
        for one in events:
            await asked.chunk(one)
            await asyncio.sleep(0)
        if ends:
            await asked.send(b"0\r\n\r\n")
        else:
            await asked.hang()

    return behave


def used(given: int, output: int) -> bytes:
    return chunk(choices=[], usage=usage(given, output))


PACKED = chunk(choices=[{"index": 0, "text": "word " * 40}])


@pytest.mark.parametrize(
    ("events", "want", "is_claim"),
    [
        ([EVENT] * 50 + [used(1, 50)], 50, False),
        ([EVENT] * 50 + [used(1, 48)], 48, False),  # events that end a sequence carry no token
        ([EVENT] * 50 + [used(1, 1)], 50, True),
        ([EVENT] * 50 + [used(1, 0)], 50, True),
        ([used(1, 0)] + [EVENT] * 50, 50, True),
        ([EVENT] * 50 + [used(1, 10**15)], 50, True),
        ([EVENT] * 50, 50, False),
        ([EVENT] + [PACKED] * 20 + [used(1, 801)], 801, False),
        ([EVENT] + [PACKED] * 20 + [used(1, 20)], 1001, True),  # 4000 bytes are no 20 tokens
        ([EVENT] + [PACKED] * 20, 1001, False),
    ],
)
async def test_a_stream_costs_at_least_what_was_streamed(
    events: list[bytes], want: int, is_claim: bool
) -> None:
    body = {"model": MODEL, "prompt": "Hi", "max_tokens": 2000, "stream": True}
    async with in_front_of(streaming(*events, DONE)) as (router, _, client):
        answer = await client.post("/v1/completions", json=body, headers=named("a"))
        assert answer.content.count(b'"text"') == len([one for one in events if b"text" in one])
        await until(lambda: tokens(router, "a")[2] > 0, "the stream to be counted")
        assert tokens(router, "a")[2] == want
        assert rejected(router) == is_claim


async def test_an_engine_that_goes_on_beyond_max_tokens_is_cut() -> None:
    async def behave(asked: Asked) -> None:
        await asked.begin_stream()
        while True:
            await asked.chunk(EVENT)
            await asyncio.sleep(0)

    body = {"model": MODEL, "prompt": "Hi", "max_tokens": 20, "stream": True}
    async with in_front_of(behave) as (router, replica, client):
        answer = await client.post("/v1/completions", json=body, headers=named("a"))
        events = [json.loads(one[6:]) for one in answer.text.split("\n\n")[:-2]]
        assert answer.text.endswith("data: [DONE]\n\n")
        assert 20 <= sum(bool(one["choices"][0].get("text")) for one in events) <= 22
        assert events[-1]["choices"][0]["finish_reason"] == "length"
        await until(lambda: replica.gone == 1, "the replica to be left")
        assert tokens(router, "a")[2] == 20
        assert (rejected(router), router.rooms.replicas.fleet.outstanding) == (1, [0])


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/generate"])
@pytest.mark.parametrize("at_once", [False, True])
async def test_every_dialect_cuts_what_goes_on_beyond_its_bound(path: str, at_once: bool) -> None:
    begun, piece, _, _, *_ = STREAMS[path]

    async def behave(asked: Asked) -> None:
        await asked.begin_stream()
        await asked.chunk(begun + piece * 20 if at_once else begun)
        while True:
            await asked.chunk(piece)
            await asyncio.sleep(0)

    bound = {"max_tokens": 9, "max_output_tokens": 9}
    body = BODIES[path] | bound | {"stream": True}
    async with in_front_of(behave) as (router, replica, client):
        answer = await client.post(path, json=body, headers=named("a"))
        assert 9 <= answer.content.count(piece) <= 11
        if path != "/generate":
            assert "went on beyond max" in answer.text
        await until(lambda: replica.gone == 1, "the replica to be left")
        assert tokens(router, "a")[2] <= 9
        assert rejected(router) == 1
        (member,) = router.rooms.replicas.fleet
        assert (len(replica.asked), member.standing.failures) == (1, 0)  # it broke nothing off


async def test_sequences_of_generate_add_up() -> None:
    def one(index: int, output: int) -> bytes:
        facts = {"prompt_tokens": 5, "cached_tokens": 1, "completion_tokens": output}
        return chunk(text="a" * output, index=index, meta_info=facts)

    events = [one(0, 1), one(1, 1), one(0, 2), one(1, 2), one(1, 3)]
    body = {"text": ["a", "b"], "sampling_params": {"max_new_tokens": 9}, "stream": True}
    async with in_front_of(streaming(*events, DONE)) as (router, _, client):
        await client.post("/generate", json=body, headers=named("a"))
        await until(lambda: tokens(router, "a")[2] > 0, "the stream to be counted")
        assert tokens(router, "a") == (10, 2, 5)


async def test_an_engine_that_packs_tokens_is_asked_for_usage_in_every_event() -> None:
    async def behave(asked: Asked) -> None:
        options = json.loads(asked.body).get("stream_options", {})
        now = usage(1, 0) if options.get("continuous_usage_stats") else None
        await asked.begin_stream()
        for n in range(10):
            if now is not None:
                now = usage(1, 30 * (n + 1))
            await asked.chunk(
                chunk(choices=[{"index": 0, "text": "word " * 40 * (n > 0) or "a"}], usage=now)
            )
        await asked.hang()

    body = {"model": MODEL, "prompt": "Hi", "max_tokens": 2000, "stream": True}
    async with in_front_of(behave) as (router, replica, client):
        for want in (1 + 9 * 50, 300):  # by its text, and as the engine counts
            before = tokens(router, "a")[2] if replica.asked else 0
            async with client.stream(
                "POST", "/v1/completions", json=body, headers=named("a")
            ) as answer:
                got = b""
                async for piece in answer.aiter_raw():
                    got += piece
                    if got.count(b"\n\n") == 10:
                        break
            # Its client did not ask for usage.
            assert got.count(b'"usage":null') + got.count(b'"usage": null') == 10
            await until(lambda: tokens(router, "a")[2] > before, "the client to be gone")  # noqa: B023
            assert tokens(router, "a")[2] - before == want
