"""Requests that are old, odd or early, but allowed; and what helps those that are not."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest
from evenkeel_contract.routerconfig import Anonymous, LimitsConfig
from evenkeel_router.api.errors import Outcome
from evenkeel_router.request.relay import Relay

from tests.support.nasty import DONE, EVENT, OK, USAGE, Asked
from tests.support.raw_clients import (
    AUTH,
    BODY,
    answer_of,
    behind,
    connect,
    counted,
    error_of,
    http,
)
from tests.support.routers import KEY, MODEL, PATIENCE_S, tenancy, until

_BODY = json.dumps(BODY | {"stream": True})
STREAMED = (
    f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{AUTH}\r\n"
    f"Content-Length: {len(_BODY)}\r\n\r\n{_BODY}"
).encode()


async def test_a_client_that_leaves_with_the_last_event_has_got_everything() -> None:
    """As OpenAI's client does: it looks for no end of the stream behind `[DONE]`."""

    async def never_ends(asked: Asked) -> None:
        await asked.begin_stream(EVENT, EVENT, USAGE, DONE)
        await asked.hang()

    async with behind(never_ends) as (router, _):
        reader, writer = await connect(router)
        writer.write(STREAMED)
        async with asyncio.timeout(PATIENCE_S):
            await reader.readuntil(DONE)
        writer.close()
        await until(lambda: not router.rooms.intake.admission.running, "the request to be over")
        assert counted(router) == {}
        assert router.rooms.replicas.totals["r0"].output_tokens == 2


async def test_a_stream_that_the_router_breaks_off_does_not_end_like_a_whole_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And no second head is in the middle of it."""

    async def streams(asked: Asked) -> None:
        await asked.begin_stream(EVENT)
        await asked.hang()

    feed = Relay.feed

    def fails(relay: Relay, data: bytes, last: bool) -> None:
        feed(relay, data, last)
        raise RuntimeError("a fault of the router")

    monkeypatch.setattr(Relay, "feed", fails)
    async with behind(streams) as (router, _):
        reader, writer = await connect(router)
        writer.write(STREAMED)
        got = b""
        async with asyncio.timeout(PATIENCE_S):
            with suppress(ConnectionResetError):
                while data := await reader.read(65536):
                    got += data
        writer.close()
        assert got.count(b"HTTP/1.1") == 1
        assert not got.endswith(b"0\r\n\r\n")


async def test_a_whole_answer_that_its_client_reads_late_arrives_whole(
    caplog: pytest.LogCaptureFixture,
) -> None:
    long = OK[:-1] + b',"padding":"' + b"x" * 8_000_000 + b'"}'

    async def answers(asked: Asked) -> None:
        await asked.answer(long)

    async with behind(answers) as (router, replica):
        reader, writer = await connect(router)
        body = json.dumps(BODY).encode()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n%b\r\nContent-Length: %d\r\n\r\n%b"
            % (AUTH.encode(), len(body), body)
        )
        await until(lambda: replica.asked, "the replica to be asked")
        status, got = await answer_of(reader)
        assert (status, got) == (200, long)
        writer.close()
    assert "Traceback" not in caplog.text


async def test_a_client_may_ask_whether_to_send_its_body() -> None:
    async with behind() as (router, _):
        reader, writer = await connect(router)
        body = json.dumps(BODY).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}Expect: 100-continue\r\n\r\n".encode())
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert await answer_of(reader) == (200, OK)
        writer.close()


async def test_http_1_0_gets_bytes_until_the_end_of_the_connection() -> None:
    async with behind() as (router, _):
        reader, writer = await connect(router)
        body = json.dumps(BODY | {"stream": True}).encode()
        writer.write(
            b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        async with asyncio.timeout(PATIENCE_S):
            head, _, events = (await reader.read()).partition(b"\r\n\r\n")
        assert b"connection: close" in head
        assert b"chunked" not in head
        assert events == EVENT + EVENT + DONE
        writer.close()


async def test_requests_may_follow_each_other_on_one_connection_without_waiting() -> None:
    async with behind() as (router, _):
        reader, writer = await connect(router)
        body = json.dumps(BODY).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write((head + body) * 3)
        for _ in range(3):
            assert await answer_of(reader) == (200, OK)
        writer.close()


GOOD_REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (
    len(json.dumps(BODY)),
    json.dumps(BODY).encode(),
)


@pytest.mark.parametrize("garbage", [b"no HTTP\r\n\r\n", b"GET / HTTP/1.1\r\nX B: a\r\n\r\n"])
async def test_good_requests_before_garbage_are_answered_in_order(garbage: bytes) -> None:
    async with behind() as (router, replica):
        reader, writer = await connect(router)
        writer.write(GOOD_REQUEST * 2 + garbage + GOOD_REQUEST)
        assert await answer_of(reader) == (200, OK)
        assert await answer_of(reader) == (200, OK)
        status, body = await answer_of(reader)
        assert (status, error_of(body)["code"]) == (400, "invalid_http")
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b"", "the connection closes after garbage"
        assert len(replica.asked) == 2
        assert counted(router) == {Outcome.INVALID_REQUEST: 1}
        writer.close()


@pytest.mark.parametrize("coding", ["gzip, chunked", "foo", "identity"])
async def test_an_unknown_transfer_coding_is_501(coding: str) -> None:
    async with behind() as (router, replica):
        reader, writer = await connect(router)
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
            + coding.encode()
            + b"\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
        )
        status, body = await answer_of(reader)
        assert (status, error_of(body)["code"]) == (501, "unsupported_transfer_encoding")
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b"", "where its body ends is unknown"
        assert not replica.asked
        assert counted(router) == {Outcome.INVALID_REQUEST: 1}
        writer.close()


async def test_only_the_data_of_chunks_counts_against_the_largest_body() -> None:
    body = json.dumps(BODY).encode()
    chunks = b"".join(b"1;%b\r\n%c\r\n" % (b"x" * 1000, byte) for byte in body)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    trailer = b"0\r\nX-Trailer: ignored\r\n\r\n"
    async with behind(limits=LimitsConfig(max_body_bytes=len(body))) as (router, replica):
        reader, writer = await connect(router)
        writer.write(head + chunks + trailer)
        assert await answer_of(reader) == (200, OK)
        writer.write(GOOD_REQUEST)
        assert await answer_of(reader) == (200, OK)
        sent = json.loads(replica.asked[0].body)
        assert sent.pop("cache_salt")
        assert sent == BODY
        assert "x-trailer" not in replica.asked[0].headers
        writer.close()


async def test_health_says_whether_requests_are_accepted() -> None:
    people = tenancy(anonymous=Anonymous.REJECT)
    async with behind(tenancy=people) as (router, _), http(router) as client:
        healthy = await client.get("/health")
        assert (healthy.status_code, healthy.json()) == (200, {"status": "ok"})
        assert (await client.head("/health")).status_code == 200
        assert (await client.post("/health")).status_code == 405
        router.rooms.replicas.in_sync = False
        starting = await client.get("/health")
        assert (starting.status_code, starting.json()["status"]) == (503, "starting")
        router.rooms.replicas.in_sync = router.rooms.intake.draining = True
        draining = await client.get("/health")
        assert (draining.status_code, draining.json()["status"]) == (503, "draining")
        router.rooms.intake.draining = False


async def test_models_are_listed_for_known_clients() -> None:
    async with (
        behind(tenancy=tenancy(anonymous=Anonymous.REJECT)) as (router, _),
        http(router) as client,
    ):
        assert (await client.get("/v1/models")).status_code == 401
        client.headers["Authorization"] = f"Bearer {KEY}"
        (model,) = (await client.get("/v1/models")).json()["data"]
        assert (await client.get(f"/v1/models/{MODEL}")).json() == model
        missing = await client.get("/v1/models/other")
        assert (missing.status_code, error_of(missing.content)["code"]) == (404, "model_not_found")
        head = await client.head("/v1/models")
        assert (head.status_code, head.content) == (200, b"")
        assert (await client.delete("/v1/models")).status_code == 405
        assert (await client.get("/v1/completions")).status_code == 405


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/chat/completions", " Did you mean /v1/chat/completions? Check the client's base URL."),
        ("/v1/v1/messages", " Did you mean /v1/messages? Check the client's base URL."),
        ("/models", " Did you mean /v1/models? Check the client's base URL."),
        ("/v1/images", ""),
    ],
)
async def test_a_wrong_base_url_gets_a_hint(path: str, hint: str) -> None:
    async with behind() as (router, _), http(router) as client:
        answer = await client.post(path, json={})
        assert answer.status_code == 404
        assert f"Unknown URL: POST {path}.{hint}" in answer.text
