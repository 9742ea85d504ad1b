"""An answer has begun with its first content (R19), in each dialect that the router serves.

Until then another replica is asked, the first-token time-out runs, no time to first token is measured, and a gate keeps the place.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import anthropic
import httpx
import openai
import pytest
from evenkeel_contract.queueorder import QueueOwner
from evenkeel_contract.routerconfig import LimitsConfig, SchedulingConfig
from evenkeel_router.api.errors import Outcome
from evenkeel_router.app import Router

from tests.support.nasty import Asked, Behaviour, Nasty, nasty
from tests.support.routers import KEY, MODEL, PATIENCE_S, config_for, router_of, until


def data(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def named(name: str, **fields: Any) -> bytes:
    return b"event: " + name.encode() + b"\n" + data(type=name, **fields)


DONE = b"data: [DONE]\n\n"
MESSAGES = [{"role": "user", "content": "x"}]
CHOICE = {"index": 0, "finish_reason": None}
CHAT = (
    "/v1/chat/completions",
    {"messages": MESSAGES},
    [data(choices=[CHOICE | {"delta": {"role": "assistant", "content": ""}}]), data(choices=[CHOICE | {"delta": {"content": ""}}])],
    [data(choices=[CHOICE | {"delta": {"content": "a"}}]), data(choices=[], usage={"prompt_tokens": 5, "completion_tokens": 1}), DONE],
)  # fmt: skip
COMPLETIONS = (
    "/v1/completions",
    {"prompt": "x"},
    [data(choices=[CHOICE | {"text": ""}])],
    [data(choices=[CHOICE | {"text": "a"}]), data(choices=[], usage={"prompt_tokens": 5, "completion_tokens": 1}), DONE],
)  # fmt: skip
RESPONSES = (
    "/v1/responses",
    {"input": "x"},
    [named("response.created", response={"id": "r"}), named("response.in_progress", response={"id": "r"}),
     named("response.output_item.added", item={"type": "message", "content": []})],
    [named("response.output_text.delta", delta="a"),
     named("response.completed", response={"usage": {"input_tokens": 5, "output_tokens": 1}})],
)  # fmt: skip
ANTHROPIC = (
    "/v1/messages",
    {"messages": MESSAGES, "max_tokens": 9},
    [named("message_start", message={"usage": {"input_tokens": 5, "output_tokens": 0}}), named("ping"),
     named("content_block_start", index=0, content_block={"type": "text", "text": ""})],
    [named("content_block_delta", index=0, delta={"type": "text_delta", "text": "a"}),
     named("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 1}), named("message_stop")],
)  # fmt: skip
GENERATE = (
    "/generate",
    {"text": "x"},
    [data(text="", meta_info={"prompt_tokens": 5, "completion_tokens": 0, "finish_reason": None})],
    [data(text="a", meta_info={"prompt_tokens": 5, "completion_tokens": 1, "finish_reason": {"type": "stop"}}), DONE],
)  # fmt: skip
ALL = [CHAT, COMPLETIONS, RESPONSES, ANTHROPIC, GENERATE]
every_dialect = pytest.mark.parametrize(
    ("path", "body", "opening", "content"), ALL, ids=[path for path, *_ in ALL]
)
LIMITS = LimitsConfig(first_token_timeout_s=0.5)


@asynccontextmanager
async def behind(
    *behaviours: Behaviour, **changes: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, Router, list[Nasty]]]:
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(nasty(one)) for one in behaviours]
        named_ = [replica.config(f"r{i}") for i, replica in enumerate(replicas)]
        router = await stack.enter_async_context(router_of(config_for(*named_, **changes)))
        headers = {"Authorization": f"Bearer {KEY}"}
        client = httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S, headers=headers)
        yield await stack.enter_async_context(client), router, replicas


def opens_and(then: Behaviour, opening: list[bytes]) -> Behaviour:
    async def behave(asked: Asked) -> None:
        await asked.begin_stream(b": comment\n\n", *opening)
        await then(asked)

    return behave


def answers(opening: list[bytes], content: list[bytes]) -> Behaviour:
    async def behave(asked: Asked) -> None:
        await asked.begin_stream(*opening, *content)
        await asked.send(b"0\r\n\r\n")

    return behave


async def closes(asked: Asked) -> None:
    await asyncio.sleep(0.05)  # so that the events before it arrive alone
    asked.close()


async def keeps_commenting(asked: Asked) -> None:
    while True:
        await asked.chunk(b": comment\n\n")
        await asyncio.sleep(0.02)


@every_dialect
async def test_a_stream_that_breaks_before_its_content_is_answered_elsewhere(
    path: str, body: dict[str, Any], opening: list[bytes], content: list[bytes]
) -> None:
    good = answers(opening, content)
    async with behind(opens_and(closes, opening), good) as (client, router, replicas):
        response = await client.post(path, json=body | {"model": MODEL, "stream": True})
        assert response.status_code == 200
        assert b"".join(content).split(b"\n\n")[0] in response.content
        assert b"comment" not in response.content  # nothing of the broken one
        assert [len(replica.asked) for replica in replicas] == [1, 1]
        (totals,) = router.rooms.totals.clients()
        await until(lambda: totals.answers == 1, "the end of the request")
        assert (totals.retries, totals.errors.total()) == (1, 0)


@pytest.mark.parametrize("repeats", [3, 9])
async def test_what_repeats_a_large_request_may_come_before_the_content(repeats: int) -> None:
    """`response.created` and `response.in_progress` have the tools and instructions of the request."""
    path, body, _, content = RESPONSES
    body = body | {"instructions": "be good " * 30_000, "model": MODEL, "stream": True}
    created = {"response": {"id": "r", "instructions": body["instructions"]}}
    opening = [named("response.created", **created)] * repeats
    async with behind(answers(opening, content)) as (client, router, (replica,)):
        response = await client.post(path, json=body)
        if repeats == 3:
            assert response.content == b"".join([*opening, *content])
        else:  # it opens without end
            assert (response.status_code, len(replica.asked)) == (502, 1)
        await until(lambda: not router.rooms.intake.active_requests, "the end of the request")


@every_dialect
async def test_comments_and_empty_events_extend_no_timeout(
    path: str, body: dict[str, Any], opening: list[bytes], content: list[bytes]
) -> None:
    async with behind(opens_and(keeps_commenting, opening), limits=LIMITS) as (client, router, _):
        response = await client.post(path, json=body | {"model": MODEL, "stream": True})
        assert response.status_code == 504
        (totals,) = router.rooms.totals.clients()
        assert totals.errors == {Outcome.TIMEOUT: 1}


@every_dialect
async def test_a_stream_asks_proxies_not_to_collect_it(
    path: str, body: dict[str, Any], opening: list[bytes], content: list[bytes]
) -> None:
    """nginx sends an answer on in buffers of 32 KiB otherwise: 1.17 s until the first byte."""
    async with behind(answers(opening, content)) as (client, _, _):
        response = await client.post(path, json=body | {"model": MODEL, "stream": True})
        assert response.headers["x-accel-buffering"] == "no"
        assert response.headers["cache-control"] == "no-cache"


@every_dialect
async def test_the_time_to_first_token_is_that_of_the_content(
    path: str, body: dict[str, Any], opening: list[bytes], content: list[bytes]
) -> None:
    let = asyncio.Event()

    async def waits(asked: Asked) -> None:
        await let.wait()
        for event in content:
            await asked.chunk(event)
        await asked.send(b"0\r\n\r\n")

    async with behind(opens_and(waits, opening)) as (client, router, (replica,)):
        asking = asyncio.create_task(
            client.post(path, json=body | {"model": MODEL, "stream": True})
        )
        await until(lambda: len(replica.asked) == 1, "the replica to be asked")
        await asyncio.sleep(0.05)
        (state,) = router.rooms.intake.active_requests
        assert state.first_byte_s is None
        assert len(router.rooms.intake.unanswered) == 1
        let.set()
        response = await asking
        assert response.content.startswith(b": comment\n\n" + b"".join(opening))
        assert state.first_byte_s is not None


@every_dialect
async def test_a_gate_keeps_the_place_of_a_request_without_content(
    path: str, body: dict[str, Any], opening: list[bytes], content: list[bytes]
) -> None:
    """A place is free again with the first content: so no more streams are at the replica than its window has."""
    let = asyncio.Event()

    async def waits(asked: Asked) -> None:
        await let.wait()
        for event in content:
            await asked.chunk(event)
        await asked.send(b"0\r\n\r\n")

    gated = SchedulingConfig(queue=QueueOwner.ROUTER)
    async with behind(opens_and(waits, opening), scheduling=gated) as (client, router, (replica,)):
        asking = [
            asyncio.create_task(client.post(path, json=body | {"model": MODEL, "stream": True}))
            for _ in range(24)
        ]
        await until(lambda: len(router.rooms.gates) > 0, "requests to wait at the gate")
        gate = router.rooms.gates.gate("r0")
        assert gate is not None
        await asyncio.sleep(0.1)
        at_replica = len(replica.asked)
        assert at_replica == gate.unanswered == 24 - len(gate)
        let.set()
        assert {one.status_code for one in await asyncio.gather(*asking)} == {200}


# Signs of life (`limits.heartbeat`).

BEATS = replace(LIMITS, first_token_timeout_s=PATIENCE_S, heartbeat_s=0.05)


def beat_of(path: str) -> bytes:
    if path == "/v1/messages":
        return b'event: ping\ndata: {"type":"ping"}\n\n'
    return b": waiting\n\n"


@every_dialect
async def test_a_waiting_client_gets_signs_of_life_if_it_asked_for_them(
    path: str, body: dict[str, Any], opening: list[bytes], content: list[bytes]
) -> None:
    let = asyncio.Event()

    async def waits(asked: Asked) -> None:
        await let.wait()
        await answers(opening, content)(asked)

    async with behind(waits, limits=BEATS) as (client, router, _):
        body = body | {"model": MODEL, "stream": True}
        async with client.stream("POST", path, json=body) as response:
            assert response.status_code == 200
            pieces = response.aiter_bytes()
            beat = beat_of(path)
            assert await anext(pieces) == beat
            assert await anext(pieces) == beat
            (state,) = router.rooms.intake.active_requests
            assert state.first_byte_s is None  # no token came
            let.set()
            rest = b"".join([piece async for piece in pieces])
        while rest.startswith(beat):
            rest = rest.removeprefix(beat)
        assert rest.startswith(b"".join(opening) + content[0])
        assert beat not in rest.removeprefix(b"".join(opening))
        (totals,) = router.rooms.totals.clients()
        assert totals.errors.total() == 0


@every_dialect
async def test_an_error_after_a_sign_of_life_is_an_event_of_the_dialect(
    path: str, body: dict[str, Any], opening: list[bytes], content: list[bytes]
) -> None:
    async def refuses(asked: Asked) -> None:
        await asyncio.sleep(0.3)
        await asked.answer(b'{"error":{"message":"bad schema"}}', status="400 Bad Request")

    async with behind(refuses, limits=BEATS) as (client, router, _):
        response = await client.post(path, json=body | {"model": MODEL, "stream": True})
        assert response.status_code == 200
        last = response.content.split(b"\n\n")[-2]
        event = json.loads(last[last.index(b"data: ") + 6 :])
        assert "bad schema" in (
            event["message"] if path == "/v1/responses" else event["error"]["message"]
        )
        if path in ("/v1/responses", "/v1/messages"):
            assert last.startswith(b"event: error\n")
        (totals,) = router.rooms.totals.clients()
        assert totals.errors == {Outcome.INVALID_REQUEST: 1}


async def test_an_error_before_the_first_sign_of_life_has_its_status() -> None:
    async def refuses(asked: Asked) -> None:
        await asked.answer(b'{"error":{"message":"bad"}}', status="400 Bad Request")

    limits = replace(BEATS, heartbeat_s=PATIENCE_S)
    async with behind(refuses, limits=limits) as (client, _, _):
        for stream in (True, False):
            body = {"model": MODEL, "prompt": "x", "stream": stream}
            assert (await client.post("/v1/completions", json=body)).status_code == 400


async def test_whole_answers_get_no_signs_of_life() -> None:
    async def waits(asked: Asked) -> None:
        await asyncio.sleep(0.2)
        await asked.answer()

    async with behind(waits, limits=BEATS) as (client, _, _):
        response = await client.post("/v1/completions", json={"model": MODEL, "prompt": "x"})
        assert (response.status_code, response.json()["usage"]["prompt_tokens"]) == (200, 5)


async def test_stock_clients_read_past_signs_of_life() -> None:
    async def late(asked: Asked) -> None:
        await asyncio.sleep(0.3)
        chosen = ANTHROPIC if asked.path == "/v1/messages" else CHAT
        if chosen is CHAT:
            opening = [event.replace(b'{"choices"', b'{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices"') for event in CHAT[2]]  # fmt: skip
            await answers(opening, CHAT[3])(asked)
        else:
            start = named("message_start", message={"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": {"input_tokens": 5, "output_tokens": 0}})  # fmt: skip
            await answers([start, *ANTHROPIC[2][1:]], ANTHROPIC[3])(asked)

    async with behind(late, limits=BEATS) as (_, router, _):
        async with openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key=KEY) as client:
            chunks = await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "x"}], stream=True
            )
            texts = [one.choices[0].delta.content or "" async for one in chunks if one.choices]
            assert "".join(texts) == "a"
        async with (
            anthropic.AsyncAnthropic(base_url=router.url, api_key=KEY) as claude,
            claude.messages.stream(
                model=MODEL, max_tokens=9, messages=[{"role": "user", "content": "x"}]
            ) as stream,
        ):
            assert "".join([text async for text in stream.text_stream]) == "a"
