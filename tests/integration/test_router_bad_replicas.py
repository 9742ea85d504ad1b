"""Replicas that send garbage, half of something, or nothing: what their clients get instead.

Each way of failing has a named outcome. Before the first byte a request is tried elsewhere, once per replica
and with the flag of R11 where the failed replica may have charged it; after it, the stream ends with exactly
one error event.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from evenkeel_contract.key import decode
from evenkeel_contract.routerconfig import LimitsConfig
from evenkeel_router.api import openai
from evenkeel_router.api.errors import Outcome
from evenkeel_router.app import Router
from evenkeel_router.transport import replica_connection

from tests.support import nasty as bad
from tests.support.nasty import DONE, EVENT, OK, Asked, Behaviour, Nasty, fine, nasty
from tests.support.routers import KEY, MODEL, PATIENCE_S, config_for, routable, router_of, until

BODY = {"model": MODEL, "prompt": "x"}


@asynccontextmanager
async def behind(
    *behaviours: Behaviour, limits: LimitsConfig | None = None
) -> AsyncIterator[tuple[httpx.AsyncClient, Router, list[Nasty]]]:
    """A router in front of such replicas, r0, r1, …; ties in load go to r0."""
    async with all_of(behaviours) as replicas:
        named = [replica.config(f"r{i}") for i, replica in enumerate(replicas)]
        config = config_for(*named, limits=limits or LimitsConfig())
        async with (
            router_of(config) as router,
            httpx.AsyncClient(
                base_url=router.url,
                timeout=PATIENCE_S,
                headers={"Authorization": f"Bearer {KEY}"},
            ) as client,
        ):
            yield client, router, replicas


@asynccontextmanager
async def all_of(behaviours: tuple[Behaviour, ...]) -> AsyncIterator[list[Nasty]]:
    if not behaviours:
        yield []
        return
    async with nasty(behaviours[0]) as first, all_of(behaviours[1:]) as rest:
        yield [first, *rest]


def outcomes(router: Router) -> Counter[Outcome]:
    total: Counter[Outcome] = Counter(router.rooms.totals.refused)
    for totals in router.rooms.totals.clients():
        total += totals.errors
    return total


async def settled(router: Router) -> None:
    """Wait until nothing is in flight, and check that nothing is left behind."""
    await until(lambda: not router.rooms.intake.admission.running, "the end of all requests")
    assert not router.rooms.intake.active_requests
    assert router.rooms.intake.body_memory.used_bytes == 0
    await until(
        lambda: not any(router.rooms.replicas.fleet.outstanding), "all tickets to be given back"
    )


async def stream_of(client: httpx.AsyncClient, **changes: Any) -> tuple[int, bytes]:
    """Status and body of a streamed completion."""
    response = await client.post("/v1/completions", json=BODY | {"stream": True} | changes)
    return response.status_code, response.content


def error_of(body: bytes) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(body)["error"]
    return error


def last_event(body: bytes) -> dict[str, Any]:
    assert body.endswith(b"\n\n")
    event: dict[str, Any] = json.loads(body.split(b"\n\n")[-2].removeprefix(b"data: "))
    return event


# Before the first byte.


async def sends_garbage(asked: Asked) -> None:
    await asked.send(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
    asked.close()


async def says_200_and_no_json(asked: Asked) -> None:
    await asked.answer(b"<html>welcome</html>", kind="text/html")


async def fails(asked: Asked) -> None:
    await asked.answer(b'{"message":"CUDA error"}', status="500 Internal Server Error")


async def does_not_know_its_own_router(asked: Asked) -> None:
    await asked.answer(b"{}", status="401 Unauthorized")


async def closes(asked: Asked) -> None:
    asked.close()


async def resets(asked: Asked) -> None:
    asked.reset()


async def answers_half(asked: Asked) -> None:
    await asked.send(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"
    )
    asked.close()


async def streams_garbage(asked: Asked) -> None:
    await asked.begin_stream(b"<html>\n\n")
    await asked.hang()


async def streams_half_an_event(asked: Asked) -> None:
    await asked.begin_stream(EVENT[:20])
    asked.close()


async def streams_to_who_asked_for_none(asked: Asked) -> None:
    await asked.whole_stream()


async def sends_an_endless_head(asked: Asked) -> None:
    await asked.send(b"HTTP/1.1 200 OK\r\nx-endless: ")
    while True:
        await asked.send(b"x" * 4096)


BEFORE_THE_FIRST_BYTE = [
    (sends_garbage, {}),
    (says_200_and_no_json, {}),
    (fails, {}),
    (does_not_know_its_own_router, {}),
    (closes, {}),
    (resets, {}),
    (answers_half, {}),
    (streams_to_who_asked_for_none, {}),
    (sends_an_endless_head, {}),
    (streams_garbage, {"stream": True}),
    (streams_half_an_event, {"stream": True}),
    (says_200_and_no_json, {"stream": True}),
    (closes, {"stream": True}),
]


@pytest.mark.parametrize(("behaviour", "changes"), BEFORE_THE_FIRST_BYTE)
async def test_a_request_is_answered_by_another_replica_and_flagged(
    behaviour: Behaviour, changes: dict[str, Any]
) -> None:
    async with behind(behaviour, fine) as (client, router, replicas):
        response = await client.post("/v1/completions", json=BODY | changes)
        await settled(router)
        assert response.status_code == 200
        assert response.content == (EVENT + EVENT + DONE if changes else OK)
        (first,), (second,) = replicas[0].asked, replicas[1].asked
        keys = [decode(asked.headers["x-smg-routing-key"]) for asked in (first, second)]
        assert [key.retried_by_fleet for key in keys] == [False, True]
        (totals,) = router.rooms.totals.clients()
        assert (totals.retries, totals.input_tokens) == (1, 5)
        assert not outcomes(router)


@pytest.mark.parametrize(("behaviour", "changes"), BEFORE_THE_FIRST_BYTE)
async def test_where_every_replica_fails_the_answer_is_502(
    behaviour: Behaviour, changes: dict[str, Any]
) -> None:
    limits = LimitsConfig(max_attempts=2)
    async with behind(behaviour, behaviour, behaviour, limits=limits) as (client, router, replicas):
        response = await client.post("/v1/completions", json=BODY | changes)
        await settled(router)
        assert response.status_code == 502
        error = error_of(response.content)
        assert (error["type"], error["code"]) == ("server_error", "replica_failed")
        assert outcomes(router) == {Outcome.REPLICA_FAILED: 1}
        assert sum(len(replica.asked) for replica in replicas) == 2


async def test_the_only_replica_that_is_up_is_not_asked_twice() -> None:
    async with behind(fails) as (client, router, (replica,)):
        response = await client.post("/v1/completions", json=BODY)
        assert (response.status_code, len(replica.asked)) == (502, 1)
        message = error_of(response.content)["message"]
        assert "the replica answered 500" in message
        await settled(router)


async def test_a_refused_connection_is_tried_elsewhere_and_uses_no_attempt() -> None:
    async with nasty(fine) as gone, nasty(fine) as there:
        config = config_for(
            gone.config("r0"), there.config("r1"), limits=LimitsConfig(max_attempts=1)
        )
        async with router_of(config) as router, httpx.AsyncClient(base_url=router.url) as client:
            rooms = router.rooms
            dead = rooms.replicas.configured["r0"]
            rooms.replicas.configured["r0"] = type(dead)(name="r0", url="http://127.0.0.1:1")
            response = await client.post("/v1/completions", json=BODY)
            assert response.status_code == 200
            assert not decode(there.asked[0].headers["x-smg-routing-key"]).retried_by_fleet
            await settled(router)


async def test_silence_of_the_last_replica_is_504() -> None:
    limits = LimitsConfig(first_token_timeout_s=0.1, answer_timeout_s=0.1)
    async with behind(Asked.hang, limits=limits) as (client, router, _):
        for changes in ({}, {"stream": True}):
            response = await client.post("/v1/completions", json=BODY | changes)
            await settled(router)
            assert response.status_code == 504
            error = error_of(response.content)
            assert (error["type"], error["code"]) == ("timeout_error", "replica_timeout")
        assert outcomes(router) == {Outcome.TIMEOUT: 2}


async def test_another_replica_is_asked_within_the_time_of_a_silent_one() -> None:
    limits = LimitsConfig(first_token_timeout_s=1.0, answer_timeout_s=1.0)
    async with behind(Asked.hang, fine, limits=limits) as (client, router, replicas):
        for changes in ({}, {"stream": True}):
            response = await client.post("/v1/completions", json=BODY | changes)
            await settled(router)
            assert response.status_code == 200
        # Its client avoids the silent one, which is suspect, too.
        assert [len(replica.asked) for replica in replicas] == [1, 2]
        assert not outcomes(router)


async def test_a_busy_replica_is_no_silent_one() -> None:
    """What it sends to another client shows that it works: the request only waits there."""
    let = asyncio.Event()

    async def serves_one_at_a_time(asked: Asked) -> None:
        if b'"user": "first"' in asked.body or b'"user":"first"' in asked.body:
            await asked.begin_stream(EVENT, EVENT)
            while not let.is_set():
                await asked.chunk(EVENT)
                await asyncio.sleep(0.02)
            await asked.chunk(bad.USAGE + DONE)
            await asked.send(b"0\r\n\r\n")
        else:
            await let.wait()
            await fine(asked)

    limits = LimitsConfig(first_token_timeout_s=1.0)
    async with behind(serves_one_at_a_time, fine, limits=limits) as (client, router, replicas):
        first = asyncio.create_task(stream_of(client, user="first"))
        await until(lambda: len(replicas[0].asked) == 1, "the first one to be asked")
        (member, other) = router.rooms.replicas.fleet
        router.rooms.replicas.fleet.unready(other)
        second = asyncio.create_task(stream_of(client))
        await until(lambda: len(replicas[0].asked) == 2, "the second one to wait")
        router.rooms.replicas.fleet.ready(other)
        await asyncio.sleep(0.8)
        assert not second.done()
        let.set()
        assert (await second)[0] == (await first)[0] == 200
        assert not replicas[1].asked
        assert member.standing.allowed is None


TOO_LONG = "The input (300 tokens) is longer than the model's context length (200 tokens)."


@pytest.mark.parametrize(
    ("sent", "message", "param", "code"),
    [
        # SGLang on OpenAI's endpoints, and on /generate
        ({"object": "error", "message": "bad regex", "type": "BadRequest", "param": None, "code": 400},
         "bad regex", None, "rejected_by_engine"),
        ({"object": "error", "message": TOO_LONG, "type": "BadRequest", "param": None, "code": 400},
         TOO_LONG, None, "context_length_exceeded"),
        ({"error": {"message": TOO_LONG}}, TOO_LONG, None, "context_length_exceeded"),
        # OpenAI's own format
        ({"error": {"message": "no", "type": "invalid_request_error", "param": "top_p", "code": "invalid_top_p"}},
         "no", "top_p", "invalid_top_p"),
        # FastAPI
        ({"detail": "Bad Request"}, "Bad Request", None, "rejected_by_engine"),
        ([], "The replica rejected the request with status 400.", None, "rejected_by_engine"),
    ],
)  # fmt: skip
async def test_a_replicas_4xx_reaches_the_client_in_the_format_of_openai(
    sent: object, message: str, param: str | None, code: str
) -> None:
    async def refuses(asked: Asked) -> None:
        await asked.answer(json.dumps(sent).encode(), status="400 Bad Request")

    async with behind(refuses, refuses) as (client, router, replicas):
        for changes in ({}, {"stream": True}):
            response = await client.post("/v1/completions", json=BODY | changes)
            assert response.status_code == 400
            assert response.json() == {
                "error": {
                    "message": message,
                    "type": "invalid_request_error",
                    "param": param,
                    "code": code,
                }
            }
        assert outcomes(router) == {Outcome.INVALID_REQUEST: 2}
        # What the engine names as the request's own fault is asked of no other replica.
        others = 0 if code == "context_length_exceeded" else 2
        assert len(replicas[0].asked) + len(replicas[1].asked) == 2 + others
        assert router.rooms.replicas.fleet.routable.bit_count() == 2
        await settled(router)


async def test_a_replicas_4xx_that_is_not_json_has_the_format_of_openai_too() -> None:
    async def refuses(asked: Asked) -> None:
        await asked.answer(b"<html>\xff", status="422 Unprocessable Entity", kind="text/html")

    async with behind(refuses) as (client, router, _):
        response = await client.post("/v1/completions", json=BODY)
        assert (response.status_code, response.headers["content-type"]) == (422, "application/json")
        assert error_of(response.content)["code"] == "rejected_by_engine"
        await settled(router)


async def breaks_with_its_first_content(asked: Asked) -> None:
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    await asked.send(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(EVENT), EVENT))


async def sends_no_http_behind_its_first_content(asked: Asked) -> None:
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    await asked.send(head + b"%x\r\n%b\r\nthis is no size" % (len(EVENT), EVENT))
    asked.close()


async def sends_no_event_behind_its_first_content(asked: Asked) -> None:
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    await asked.send(head + b"%x\r\n%b<html>\n\n\r\n" % (len(EVENT) + 8, EVENT))
    await asked.hang()


@pytest.mark.parametrize(
    "behaviour",
    [
        breaks_with_its_first_content,
        sends_no_http_behind_its_first_content,
        sends_no_event_behind_its_first_content,
    ],
)
async def test_content_that_comes_with_its_break_is_answered_elsewhere(
    behaviour: Behaviour,
) -> None:
    """R20: no client has a token of it, so a replica that was trusted costs none its answer."""
    async with behind(behaviour, fine) as (client, router, replicas):
        for member in router.rooms.replicas.fleet:
            member.standing.begun_s = 1.0
        assert await stream_of(client) == (200, EVENT + EVENT + DONE)
        await settled(router)
        (first,), (second,) = replicas[0].asked, replicas[1].asked
        keys = [decode(asked.headers["x-smg-routing-key"]) for asked in (first, second)]
        assert [key.retried_by_fleet for key in keys] == [False, True]
        assert not outcomes(router)


# After the first byte.


async def rest_of_stream(
    client: httpx.AsyncClient, came: asyncio.Event, first: bytes = EVENT
) -> bytes:
    """What follows the first content of a streamed completion. The client has that before it sets `came`."""
    async with client.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as response:
        assert response.status_code == 200
        pieces, seen = response.aiter_bytes(), b""
        while len(seen) < len(first):
            seen += await anext(pieces)
        assert seen == first
        came.set()
        return b"".join([piece async for piece in pieces])


async def test_garbage_in_a_stream_ends_it_with_one_error_event() -> None:
    came = asyncio.Event()

    async def behaves(asked: Asked) -> None:
        await asked.begin_stream(EVENT, EVENT)
        await came.wait()
        await asked.chunk(b"\x00\xff not an event")
        await asked.hang()

    async with behind(behaves, fine) as (client, router, replicas):
        replicas_ = router.rooms.replicas.fleet
        for member in replicas_:
            member.standing.begun_s = 1.0  # it has answered before
        body = await rest_of_stream(client, came, EVENT + EVENT)
        assert body.startswith(b'data: {"error"')
        assert body.count(b"\n\n") == 1
        assert last_event(body)["error"]["code"] == "replica_failed"
        await settled(router)
        assert outcomes(router) == {Outcome.REPLICA_FAILED: 1}
        assert not replicas[1].asked


@pytest.mark.parametrize("rest", [b"", EVENT[:-1], b"data: {"])
@pytest.mark.parametrize("reset", [True, False])
async def test_a_stream_that_breaks_off_ends_with_one_error_event(rest: bytes, reset: bool) -> None:
    came = asyncio.Event()

    async def behaves(asked: Asked) -> None:
        await asked.begin_stream(EVENT)
        await came.wait()
        if rest:
            await asked.chunk(rest)
        (asked.reset if reset else asked.close)()

    async with (
        behind(behaves) as (client, router, _),
        client.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as response,
    ):
        pieces = response.aiter_bytes()
        assert await anext(pieces) == EVENT  # passed on when it came, not when the next one did
        came.set()
        body = b"".join([piece async for piece in pieces])
        assert body.count(b"\n\n") == 1
        assert last_event(body)["error"]["type"] == "server_error"
        await settled(router)
        assert outcomes(router) == {Outcome.REPLICA_FAILED: 1}


async def test_a_stream_without_its_last_event_ends_with_an_error_event() -> None:
    came = asyncio.Event()

    async def behaves(asked: Asked) -> None:
        await asked.begin_stream(EVENT)
        await came.wait()
        await asked.send(b"0\r\n\r\n")

    async with behind(behaves) as (client, router, _):
        body = await rest_of_stream(client, came)
        assert last_event(body)["error"]["message"].endswith("ended before its last event.")
        await settled(router)


async def test_a_stream_that_falls_silent_ends_with_an_error_event() -> None:
    async def behaves(asked: Asked) -> None:
        await asked.begin_stream(EVENT)
        await asked.hang()

    async with behind(behaves, limits=LimitsConfig(idle_timeout_s=0.1)) as (client, router, _):
        status, body = await stream_of(client)
        assert (status, body.count(b"\n\n")) == (200, 2)
        assert last_event(body)["error"]["code"] == "replica_timeout"
        await settled(router)
        assert outcomes(router) == {Outcome.TIMEOUT: 1}


async def test_an_error_event_of_the_replica_is_passed_on_and_counted() -> None:
    own = b'data: {"error":{"message":"out of memory"}}\n\n'
    came = asyncio.Event()

    async def behaves(asked: Asked) -> None:
        await asked.begin_stream(EVENT)
        await came.wait()
        await asked.chunk(own + DONE)
        await asked.send(b"0\r\n\r\n")

    async with (
        behind(behaves) as (client, router, _),
        client.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as response,
    ):
        pieces = response.aiter_bytes()
        assert await anext(pieces) == EVENT
        came.set()
        assert b"".join([piece async for piece in pieces]) == own + DONE
        await settled(router)
        assert outcomes(router) == {Outcome.REPLICA_FAILED: 1}


ERRORS_IN_A_200 = [
    ({"error": {"message": "no room", "code": 503}}, 503, "overloaded", "no room"),
    ({"error": "CUDA error", "error_type": "generation"}, 502, "replica_failed", "CUDA error"),
    ({"object": "error", "message": "bad regex", "type": "BadRequestError", "code": 400},
     400, "rejected_by_engine", "bad regex"),
    ({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, 503, "overloaded", "busy"),
    ({"detail": "Not Found"}, 502, "replica_failed", "Not Found"),
    ({"message": "aborted", "code": 500}, 502, "replica_failed", "aborted"),
]  # fmt: skip


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("sent", "status", "code", "message"), ERRORS_IN_A_200)
async def test_an_error_inside_a_200_is_an_error_for_the_client_and_costs_nothing(
    sent: dict[str, Any], status: int, code: str, message: str, stream: bool
) -> None:
    async def behaves(asked: Asked) -> None:
        if stream:
            await asked.begin_stream(b"data: " + json.dumps(sent).encode() + b"\n\n")
            await asked.send(b"0\r\n\r\n")
        else:
            await asked.answer(json.dumps(sent).encode())

    async with behind(behaves) as (client, router, _):
        response = await client.post("/v1/completions", json=BODY | {"stream": stream})
        assert response.status_code == status
        error = error_of(response.content)
        assert (error["code"], error["message"]) == (code, message)
        await settled(router)
        (totals,) = router.rooms.totals.clients()
        assert (totals.errors.total(), totals.input_tokens, totals.output_tokens) == (1, 0, 0)


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
async def test_what_all_engines_say_about_load_reaches_the_client(status: str) -> None:
    async def is_full(asked: Asked) -> None:
        body = b'{"error":{"message":"queue full"}}'
        head = f"HTTP/1.1 {status}\r\nretry-after: 7\r\ncontent-length: {len(body)}\r\n\r\n"
        await asked.send(head.encode() + body)

    async with behind(is_full, is_full) as (client, router, replicas):
        response = await client.post("/v1/completions", json=BODY)
        assert f"{response.status_code}" == status[:3]
        assert response.headers["retry-after"] == "7"
        assert error_of(response.content)["message"] == "queue full"
        assert [len(replica.asked) for replica in replicas] == [1, 1]
        await settled(router)


async def test_an_answer_that_cannot_be_read_is_computed_twice_at_most() -> None:
    behaviours = [says_200_and_no_json] * 3
    async with behind(*behaviours) as (client, router, replicas):
        response = await client.post("/v1/completions", json=BODY)
        assert response.status_code == 502
        assert sum(len(replica.asked) for replica in replicas) == 2
        await settled(router)


async def test_an_answer_of_an_unknown_shape_reaches_the_client() -> None:
    odd = b'{"choices":[{"text":"a"}],"usage":{"prompt_tokens":1.5}}'

    async def answers(asked: Asked) -> None:
        await asked.answer(odd)

    async with behind(answers, answers) as (client, router, replicas):
        response = await client.post("/v1/completions", json=BODY)
        assert (response.status_code, response.content) == (200, odd)
        assert sum(len(replica.asked) for replica in replicas) == 1
        await settled(router)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_is_too_large_is_computed_once(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_connection, "MAX_REPLY_BYTES", 1000)
    monkeypatch.setattr(openai, "MAX_ANSWER_BYTES", 1000)

    async def answers(asked: Asked) -> None:
        if stream:
            await asked.begin_stream(b'data: {"choices":[{"text":"' + b"x" * 2000)
            await asked.hang()
        else:
            await asked.send(b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n" + b"x" * 2000)
            await asked.hang()

    async with behind(answers, answers) as (client, router, replicas):
        response = await client.post("/v1/completions", json=BODY | {"stream": stream})
        assert response.status_code == 502
        assert sum(len(replica.asked) for replica in replicas) == 1
        assert router.rooms.replicas.fleet.routable.bit_count() == 2
        await settled(router)


async def test_a_stream_with_its_reason_and_usage_needs_no_last_event() -> None:
    finish = b'data: {"choices":[{"text":"","finish_reason":"stop"}],"usage":null}\n\n'

    async def behaves(asked: Asked) -> None:
        await asked.begin_stream(EVENT, finish, bad.USAGE)
        await asked.send(b"0\r\n\r\n")

    async with behind(behaves) as (client, router, _):
        assert await stream_of(client) == (200, EVENT + finish + DONE)
        await settled(router)
        assert not outcomes(router)
        (totals,) = router.rooms.totals.clients()
        assert (totals.input_tokens, totals.output_tokens) == (5, 2)


async def test_a_stream_that_said_it_is_done_is_whole_however_it_ends() -> None:
    async def behaves(asked: Asked) -> None:
        await asked.begin_stream(EVENT, bad.USAGE, DONE)
        asked.reset()

    async with behind(behaves) as (client, router, _):
        assert await stream_of(client) == (200, EVENT + DONE)
        await settled(router)
        assert not outcomes(router)


# Odd, but HTTP.


async def test_an_answer_may_end_with_its_connection() -> None:
    async def behaves(asked: Asked) -> None:
        if b"stream" in asked.body:
            await asked.send(b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
            await asked.send(EVENT + DONE)
        else:
            await asked.send(b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n" + OK)
        asked.close()

    async with behind(behaves) as (client, router, (replica,)):
        assert (await client.post("/v1/completions", json=BODY)).content == OK
        assert await stream_of(client) == (200, EVENT + DONE)
        assert len(replica.asked) == 2
        await settled(router)


async def test_an_interim_answer_is_not_the_answer() -> None:
    async def behaves(asked: Asked) -> None:
        await asked.send(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n")
        await asked.answer()

    async with behind(behaves) as (client, router, _):
        assert (await client.post("/v1/completions", json=BODY)).content == OK
        await settled(router)


async def test_connections_are_used_again_and_a_stale_one_costs_no_attempt() -> None:
    async def closes_afterwards(asked: Asked) -> None:
        await asked.answer()
        if asked.body.endswith(b'"last"}'):
            asked.close()

    async with behind(closes_afterwards, limits=LimitsConfig(max_attempts=1)) as (
        client,
        router,
        rs,
    ):
        before = rs[0].connections
        for last in ("", "last", ""):
            response = await client.post("/v1/completions", json=BODY | {"user": last})
            assert response.status_code == 200
        await settled(router)
        (totals,) = router.rooms.totals.clients()
        assert totals.retries == 0
        assert rs[0].connections - before <= 2 + 1  # two for requests; a probe may have come


async def test_a_closing_or_chatting_replica_is_not_kept() -> None:
    async def chats(asked: Asked) -> None:
        await asked.answer()
        await asked.send(b"and another thing")

    async def says_close(asked: Asked) -> None:
        head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        await asked.send(head % len(OK) + OK)

    for behaviour in (chats, says_close):
        async with behind(behaviour) as (client, router, _):
            for _ in range(3):
                assert (await client.post("/v1/completions", json=BODY)).content == OK
            await settled(router)
            assert not outcomes(router)


# Nobody there.


async def test_a_request_waits_while_no_replica_is_routable_and_then_is_503() -> None:
    async with behind(fine, limits=LimitsConfig(queue_timeout_s=0.2)) as (
        client,
        router,
        (replica,),
    ):
        replica.ready = False
        await routable(router, 0)
        response = await client.post("/v1/completions", json=BODY)
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        error = error_of(response.content)
        assert error["code"] == "no_replica"
        assert (
            error["message"]
            == "No replica was ready within 0.2 s: 0 of 1 replicas can take requests: 1 not ready."
        )
        assert outcomes(router) == {Outcome.UNAVAILABLE: 1}
        await settled(router)


async def test_requests_that_wait_are_served_when_a_replica_comes() -> None:
    async with behind(fine) as (client, router, (replica,)):
        replica.ready = False
        await routable(router, 0)
        waiting = [
            asyncio.create_task(client.post("/v1/completions", json=BODY | {"user": str(n)}))
            for n in range(5)
        ]
        await until(lambda: len(router.rooms.replicas.wait_queue) == 5, "five requests to wait")
        replica.ready = True
        assert {response.status_code for response in await asyncio.gather(*waiting)} == {200}
        await settled(router)


async def test_a_client_that_leaves_the_waiting_room_is_forgotten() -> None:
    async with behind(fine) as (client, router, (replica,)):
        replica.ready = False
        await routable(router, 0)
        waiting = asyncio.create_task(client.post("/v1/completions", json=BODY))
        await until(lambda: len(router.rooms.replicas.wait_queue) == 1, "a request to wait")
        waiting.cancel()
        await until(lambda: len(router.rooms.replicas.wait_queue) == 0, "it to leave")
        await settled(router)
        assert outcomes(router) == {Outcome.CLIENT_GONE: 1}


async def test_a_client_that_leaves_closes_its_connection_to_the_replica() -> None:
    async with behind(Asked.hang) as (client, router, (replica,)):
        asking = asyncio.create_task(client.post("/v1/completions", json=BODY))
        await until(lambda: len(replica.asked) == 1, "the replica to be asked")
        asking.cancel()
        reader = replica.asked[0].reader
        await until(reader.at_eof, "the replica to see the connection close")
        await settled(router)
        assert outcomes(router) == {Outcome.CLIENT_GONE: 1}


async def test_the_replica_gets_its_own_key_and_never_the_clients() -> None:
    async with behind(fine) as (client, router, (replica,)):
        await client.post("/v1/completions", json=BODY, headers={"x-custom-labels": "evil"})
        headers = replica.asked[0].headers
        assert headers["authorization"] == "Bearer sk-replica"
        assert KEY not in str(headers)
        assert "x-custom-labels" not in headers
        assert router.rooms.totals.stripped == {"x-custom-labels": 1}
        await settled(router)
