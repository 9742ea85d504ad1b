"""The APIs beside OpenAI's first ones, over real sockets in front of a fake engine: what passes and what fails."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from evenkeel_contract.routerconfig import Anonymous, LimitsConfig, TenantConfig, TenantLimits
from evenkeel_router.api.errors import Outcome

from tests.support.apis import (
    ANTHROPIC_USAGE,
    BODIES,
    MESSAGES,
    STREAMS,
    answering,
    behind,
    counted,
    event,
    served,
    streaming,
    tokens_of,
)
from tests.support.nasty import Asked
from tests.support.routers import KEY, MODEL, tenancy, until


@pytest.mark.parametrize(
    ("path", "want"),
    [
        ("/v1/messages", {"type": "error", "error": {"type": "api_error"}}),
        ("/v1/responses", {"type": "error", "code": "replica_failed", "sequence_number": 2}),
    ],
)
async def test_a_stream_that_breaks_off_ends_with_an_error_event_of_its_api(
    path: str, want: dict[str, Any]
) -> None:
    async def behave(asked: Asked) -> None:
        await asked.begin_stream(*STREAMS[path][:2], b"event: half")
        asked.close()

    async with behind(behave) as (router, _, client):
        response = await client.post(path, json=BODIES[path] | {"stream": True})
        name, data = response.content.rstrip().rsplit(b"\n", 2)[-2:]
        assert response.content.startswith(b"".join(STREAMS[path][:2]))
        assert name == b"event: error"
        error = json.loads(data.removeprefix(b"data: "))
        error.get("error", error).pop("message")
        assert error.items() >= want.items()
        assert counted(router) == {Outcome.REPLICA_FAILED: 1}


async def test_an_error_before_the_first_content_has_its_status_and_costs_nothing() -> None:
    empty = event("message_start", message={"usage": {"input_tokens": 0, "output_tokens": 0}})
    failed = event("error", error={"type": "invalid_request_error", "message": "No."})
    stream = [empty, failed, event("message_stop")]
    async with behind(streaming(*stream)) as (router, _, client):
        response = await client.post("/v1/messages", json=MESSAGES | {"stream": True})
        assert response.status_code == 400
        want = {"type": "invalid_request_error", "message": "No."}
        assert response.json() == {"type": "error", "error": want}
        assert counted(router) == {Outcome.INVALID_REQUEST: 1}
        assert served(router) == 0


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_every_error_of_messages_is_anthropics(path: str) -> None:
    rejected = {"type": "error", "error": {"type": "BadRequest", "message": "No such tool."}}
    closed = tenancy(anonymous=Anonymous.REJECT)
    async with behind(
        answering(rejected, status="400 Bad Request"),
        tenancy=closed,
        limits=LimitsConfig(max_body_bytes=1000),
    ) as (_, _, client):
        for sent, headers, want_status, want_type in (
            (MESSAGES, {}, 400, "invalid_request_error"),
            (MESSAGES | {"model": "x"}, {}, 404, "not_found_error"),
            (MESSAGES | {"messages": 5}, {}, 400, "invalid_request_error"),
            (MESSAGES | {"system": "x" * 1000}, {}, 413, "request_too_large"),
            (MESSAGES, {"x-api-key": "sk-unknown"}, 401, "authentication_error"),
        ):
            response = await client.post(path, json=sent, headers=headers)
            assert response.status_code == want_status
            assert response.json()["type"] == "error"
            error = response.json()["error"]
            assert (set(error), error["type"]) == ({"type", "message"}, want_type)
        assert error["message"] == "The API key is unknown to this service."
        unknown = await client.get("/v1/messages/batches")
        assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")


@pytest.mark.parametrize("header", ["x-api-key", "api-key"])
async def test_a_key_counts_in_either_header(header: str) -> None:
    reply = {"content": [], "usage": ANTHROPIC_USAGE}
    async with behind(answering(reply)) as (router, _, client):
        del client.headers["x-api-key"]
        response = await client.post("/v1/messages", json=MESSAGES, headers={header: KEY})
        assert response.status_code == 200
        assert served(router) == 5 + 2 * 3


@pytest.mark.parametrize(
    ("path", "body", "reply"),
    [
        ("/tokenize", {"prompt": "Hi"}, {"tokens": [1], "count": 1}),
        ("/v1/tokenize", {"prompt": "Hi"}, {"tokens": [1], "count": 1}),
        ("/detokenize", {"tokens": [1]}, {"text": "Hi"}),
        ("/v1/detokenize", {"tokens": [1]}, {"text": "Hi"}),
        ("/v1/messages/count_tokens", MESSAGES, {"input_tokens": 7}),
    ],
)
async def test_what_the_model_does_not_compute_is_no_service_but_counts_in_limits(
    path: str, body: dict[str, Any], reply: Any
) -> None:
    plain = tenancy()
    limited = tenancy(
        tenants=(_limited(plain.tenants[0], TenantLimits(tokens_per_minute=600, burst_tokens=60)),)
    )
    async with behind(answering(reply), tenancy=limited) as (router, _, client):
        large = {"tokens": [1] * 400} if "tokens" in body else body | {"prompt": "x" * 4000}
        if "messages" in body:
            large = body | {"system": "x" * 4000}
        assert (await client.post(path, json=large)).json() == reply
        assert served(router) == 0
        refused = await client.post(path, json=body)
        assert refused.status_code == 429
        assert counted(router) == {Outcome.RATE_LIMITED: 1}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("GET", "/v1/responses/resp_1/input_items"),
    ],
)
async def test_a_stored_response_is_refused_with_what_to_do(method: str, path: str) -> None:
    async with behind(answering({})) as (_, replica, client):
        response = await client.request(method, path)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (404, "response_not_stored")
        assert error["param"] == "response_id"
        assert "'input'" in error["message"]
        nobody = await client.request(method, path, headers={"x-api-key": "sk-unknown"})
        assert nobody.status_code == 401
        assert not replica.asked


@pytest.mark.parametrize(
    ("kind", "reply", "want_input"),
    [
        ("application/json", b'{"text":"eight by","usage":{"type":"duration","seconds":3}}', 150),
        ("text/plain; charset=utf-8", b"Hello.", None),
    ],
)
async def test_a_transcription_passes_as_bytes(
    kind: str, reply: bytes, want_input: int | None
) -> None:
    async with behind(answering(reply, kind=kind)) as (router, replica, client):
        sound = bytes(range(256)) * 100
        response = await client.post(
            "/v1/audio/transcriptions", data={"model": MODEL}, files={"file": ("a.wav", sound)}
        )
        assert (response.status_code, response.content) == (200, reply)
        assert response.headers["content-type"] == kind
        (asked,) = replica.asked
        assert sound in asked.body
        assert asked.headers["content-type"].startswith("multipart/form-data; boundary=")
        want = 1 + len(asked.body) // 320 if want_input is None else want_input
        assert tokens_of(router)[0] == want
        assert tokens_of(router)[2] == len("Hello." if want_input is None else "eight by") // 4
        (totals,) = router.rooms.totals.clients()
        assert totals.estimates.model.estimate(1000) == 250  # nothing was learnt from it


async def test_a_transcription_may_stream() -> None:
    chunk = b'data: {"object":"transcription.chunk","choices":[{"delta":{"content":"a"}}]}\n\n'
    done = b"data: [DONE]\n\n"
    async with behind(streaming(chunk, chunk, done)) as (router, _, client):
        response = await client.post(
            "/v1/audio/transcriptions",
            data={"model": MODEL, "stream": "true"},
            files={"file": ("a.wav", b"RIFF")},
        )
        assert response.content == chunk + chunk + done
        await until(lambda: tokens_of(router)[2] == 2, "the stream to be counted")


async def test_limits_hold_on_every_api() -> None:
    limited = tenancy(
        tenants=(
            _limited(tenancy().tenants[0], TenantLimits(requests_per_minute=60, burst_requests=1)),
        )
    )
    reply = {"content": [], "usage": ANTHROPIC_USAGE}
    async with behind(answering(reply), tenancy=limited) as (_, _, client):
        assert (await client.post("/v1/messages", json=MESSAGES)).status_code == 200
        for path, body in BODIES.items():
            refused = await client.post(path, json=body)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert refused.json()["error"]["type"] == "rate_limit_error"


def _limited(tenant: TenantConfig, limits: TenantLimits) -> TenantConfig:
    return replace(tenant, limits=limits)


async def test_a_web_page_of_an_allowed_origin_can_use_the_router() -> None:
    app, evil = {"origin": "https://app.example.com"}, {"origin": "https://evil.example.com"}
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "x-api-key"}
    allowed = "access-control-allow-origin"
    async with behind(streaming(*STREAMS["/v1/messages"]), cors_origins=(app["origin"],)) as (
        router,
        replica,
        client,
    ):
        path, body = "/v1/messages", MESSAGES | {"stream": True}
        preflight = await client.options(path, headers=app | asks)
        assert (preflight.status_code, preflight.headers[allowed]) == (200, app["origin"])
        assert preflight.headers["access-control-allow-headers"] == "authorization, *"
        assert allowed not in (await client.options(path, headers=evil | asks)).headers
        assert not replica.asked
        assert counted(router) == {}
        for headers, want in ((app, app["origin"]), (evil, None), ({}, None)):
            streamed = await client.post(path, json=body, headers=headers)
            refused = await client.post(path, json={}, headers=headers)
            listed = await client.get("/v1/models", headers=headers)
            assert [one.status_code for one in (streamed, refused, listed)] == [200, 400, 200]
            assert {one.headers.get(allowed) for one in (streamed, refused, listed)} == {want}


async def test_without_origins_there_are_no_cors_headers() -> None:
    asks = {"origin": "https://app.example.com", "access-control-request-method": "POST"}
    async with behind(answering({})) as (_, _, client):
        response = await client.options("/v1/messages", headers=asks)
        assert (response.status_code, response.headers["allow"]) == (200, "POST, OPTIONS")
        assert not [name for name in response.headers if name.startswith("access-control")]
