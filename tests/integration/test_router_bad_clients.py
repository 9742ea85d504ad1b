"""Clients that send nonsense, too much, too slowly, or under another client's name; and clients that do not read.

Each gets a named outcome: a status, an OpenAI error body, a count. None gets a traceback or a hung connection.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from evenkeel_contract.key import decode
from evenkeel_contract.routerconfig import (
    Anonymous,
    LimitsConfig,
    RouterConfig,
    TenantLimits,
)
from evenkeel_fairshare.ledger import tenant_of
from evenkeel_router.api.errors import Outcome
from evenkeel_router.app import Router
from evenkeel_router.request.intake import MAX_BUFFERED_BYTES
from evenkeel_router.transport.server import connections_for

from tests.support.nasty import DONE, EVENT, OK, USAGE, Asked, Behaviour, Nasty, fine, nasty
from tests.support.routers import (
    KEY,
    MODEL,
    PATIENCE_S,
    QUICK,
    config_for,
    router_of,
    tenancy,
    until,
)

BODY = {"model": MODEL, "prompt": "x"}
AUTH = f"Authorization: Bearer {KEY}"


@asynccontextmanager
async def behind(
    behaviour: Behaviour = fine, *, timing: Any = QUICK, **changes: Any
) -> AsyncIterator[tuple[Router, Nasty]]:
    """A router in front of one replica."""
    async with nasty(behaviour) as replica:
        config: RouterConfig = config_for(replica.config("r0"), **changes)
        async with router_of(config, timing=timing) as router:
            yield router, replica


def http(router: Router) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S)


async def connect(router: Router) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", router.traffic_port)


async def raw(router: Router, *lines: str | bytes, body: bytes | None = None) -> tuple[int, bytes]:
    """Send bytes as they are; status and body of the answer."""
    reader, writer = await connect(router)
    content = json.dumps(BODY).encode() if body is None else body
    given = [line.encode("latin-1") if isinstance(line, str) else line for line in lines]
    head = [b"POST /v1/completions HTTP/1.1", b"Host: x", b"Content-Length: %d" % len(content)]
    writer.write(b"\r\n".join([*head, *given]) + b"\r\n\r\n" + content)
    answer = await _answer(reader)
    writer.close()
    return answer


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    async with asyncio.timeout(PATIENCE_S):
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        return int(head.split(b" ")[1]), await reader.readexactly(length)


def error_of(body: bytes) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in error["message"]
    return error


def counted(router: Router) -> dict[Outcome, int]:
    total = router.rooms.totals.refused.copy()
    for totals in router.rooms.totals.clients():
        total += totals.errors
    return dict(total)


# What is sent.


@pytest.mark.parametrize(
    ("path", "body", "want_status", "want_code", "want_outcome"),
    [
        ("completions", b"{", 400, "invalid_json", Outcome.INVALID_REQUEST),
        ("completions", b'{"model":"llama","prompt":"\xff"}', 400, "invalid_utf8",
         Outcome.INVALID_REQUEST),
        ("completions", b'{"x":' + b"[" * 200_000, 400, "invalid_json", Outcome.INVALID_REQUEST),
        ("completions", b'{"model":"llama","prompt":7}', 400, "invalid_type",
         Outcome.INVALID_REQUEST),
        ("completions", b'{"prompt":"a"}', 400, "missing_required_parameter",
         Outcome.INVALID_REQUEST),
        ("completions", b'{"model":"llama","prompt":"a","max_tokens":-1}', 400, "invalid_value",
         Outcome.INVALID_REQUEST),
        ("completions", b'{"model":"llama","prompt":"a","max_tokens":1' + b"0" * 4000 + b"}", 400,
         "invalid_value", Outcome.INVALID_REQUEST),
        ("chat/completions", b'{"model":"gpt-5","messages":[{"role":"user"}]}', 404,
         "model_not_found", Outcome.NOT_FOUND),
        ("images", b"{}", 404, "unknown_url", Outcome.NOT_FOUND),
        ("completions", b"x" * 1001, 413, "body_too_large", Outcome.TOO_LARGE),
    ],
)  # fmt: skip
async def test_a_bad_body_has_a_named_outcome(
    path: str, body: bytes, want_status: int, want_code: str, want_outcome: Outcome
) -> None:
    limit = 1000 if want_status == 413 else 1_000_000
    async with (
        behind(limits=LimitsConfig(max_body_bytes=limit)) as (router, replica),
        http(router) as client,
    ):
        response = await client.post(f"/v1/{path}", content=body)
        assert response.status_code == want_status
        assert error_of(response.content)["code"] == want_code
        assert counted(router) == {want_outcome: 1}
        assert not replica.asked
        text = (await client.get(f"http://127.0.0.1:{router.probe_port}/metrics")).text
        assert f'error_code="{want_outcome.value}"' in text


async def test_a_body_over_the_limit_is_refused_however_it_is_sent() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 10_000

    async with (
        behind(limits=LimitsConfig(max_body_bytes=100_000)) as (router, _),
        http(router) as client,
    ):
        for content in (b"x" * 100_001, chunks()):
            assert (await client.post("/v1/completions", content=content)).status_code == 413
        bomb = gzip.compress(b" " * 10_000_000)
        assert len(bomb) < 100_000
        packed = {"content-encoding": "gzip"}
        response = await client.post("/v1/completions", content=bomb, headers=packed)
        assert response.status_code == 413
        small = gzip.compress(json.dumps(BODY).encode())
        response = await client.post("/v1/completions", content=small, headers=packed)
        assert response.content == OK


GOOD = gzip.compress(json.dumps(BODY).encode(), mtime=0)


@pytest.mark.parametrize(
    ("encoding", "content", "want"),
    [
        ("gzip", GOOD, None),
        ("deflate", zlib.compress(json.dumps(BODY).encode()), None),
        ("identity", json.dumps(BODY).encode(), None),
        ("gzip", b"not gzip", "invalid_body"),
        ("gzip", GOOD[:-9], "invalid_body"),
        ("gzip", GOOD + b"more", "invalid_body"),
        ("gzip", b"", "invalid_body"),
        ("br", b"x", "unsupported_encoding"),
        ("gzip, gzip", gzip.compress(GOOD), "unsupported_encoding"),
    ],
    ids=[
        "gzip",
        "deflate",
        "identity",
        "not gzip",
        "cut off",
        "more than gzip",
        "nothing",
        "another encoding",
        "two encodings",
    ],
)
async def test_a_compressed_body_is_what_its_head_says_or_refused(
    encoding: str, content: bytes, want: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with behind() as (router, _):
        for late in (False, True):  # with its head, and after it
            reader, writer = await connect(router)
            head = (
                f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{AUTH}\r\n"
                f"Content-Encoding: {encoding}\r\nContent-Length: {len(content)}\r\n\r\n"
            )
            writer.write(head.encode())
            if late:
                await writer.drain()
                await asyncio.sleep(0.01)
            writer.write(content)
            status, body = await _answer(reader)
            assert status == (200 if want is None else 400)
            assert want is None or error_of(body)["code"] == want
            writer.close()
        await until(
            lambda: router.rooms.intake.body_memory.used_bytes == 0, "all bytes to be given back"
        )
    assert "Traceback" not in caplog.text


async def test_a_bomb_is_not_unpacked_beyond_the_limit_and_delays_no_other_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unpacked_bytes = 0

    class Counting:
        def __init__(self, wbits: int) -> None:
            self._real = decompressobj(wbits)

        def decompress(self, data: bytes, most: int) -> bytes:
            nonlocal unpacked_bytes
            piece = self._real.decompress(data, most)
            unpacked_bytes += len(piece)
            return piece

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

    decompressobj = zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", Counting)
    bomb = gzip.compress(bytes(100_000_000))
    async with behind() as (router, _), http(router) as client:
        packed = {"content-encoding": "gzip"}
        response = await client.post("/v1/completions", content=bomb, headers=packed)
        assert response.status_code == 413
        assert (await client.post("/v1/completions", json=BODY)).status_code == 200
        assert unpacked_bytes <= 16 * 2**20 + 256 * 1024


async def test_a_body_that_stops_being_one_is_refused_at_once() -> None:
    async with behind() as (router, _):
        reader, writer = await connect(router)
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{ \r\n"
        )
        await until(lambda: router.rooms.intake.body_memory.used_bytes == 2, "the first chunk")
        writer.write(b"no number\r\n")
        status, body = await _answer(reader)
        assert (status, error_of(body)["code"]) == (400, "invalid_body")
        assert await reader.read() == b"", "nothing after it can be trusted"
        writer.close()
        assert counted(router) == {Outcome.INVALID_REQUEST: 1}
        assert router.rooms.intake.body_memory.used_bytes == 0


async def test_all_bodies_together_are_bounded() -> None:
    async with behind() as (router, _), http(router) as client:
        router.rooms.intake.body_memory.used_bytes = MAX_BUFFERED_BYTES - 100_000
        response = await client.post("/v1/completions", content=b" " * 200_000)
        assert (response.status_code, error_of(response.content)["code"]) == (503, "overloaded")
        assert response.headers["retry-after"] == "1"
        assert router.rooms.intake.body_memory.used_bytes == MAX_BUFFERED_BYTES - 100_000
        router.rooms.intake.body_memory.used_bytes = 0
        tenant = tenant_of(next(router.rooms.totals.clients()).identity)
        router.rooms.intake.body_memory.reserve(tenant, MAX_BUFFERED_BYTES * 9 // 10)
        response = await client.post("/v1/completions", content=b" " * 200_000)
        assert (response.status_code, error_of(response.content)["code"]) == (429, "max_buffered")
        router.rooms.intake.body_memory.reserve(
            "ns/another", 16 * 2**20
        )  # as if nothing had happened
        router.rooms.intake.body_memory.release("ns/another", 16 * 2**20)
        router.rooms.intake.body_memory.release(tenant, MAX_BUFFERED_BYTES * 9 // 10)
        assert router.rooms.intake.body_memory.used_bytes == 0
        assert (await client.post("/v1/completions", json=BODY)).status_code == 200


# Headers.


@pytest.mark.parametrize(
    "line",
    [
        b"X-Bad: a\x01b",
        b"X-Bad: a\x00b",
        b"X-Bad: a\rX-Injected: b",
        b"X-Bad : a",
        b"X B: a",
        b"X-Long: " + b"x" * 10_000,
        b"Content-Length: 7",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: chunked, chunked",
    ],
)
async def test_an_invalid_header_is_refused_with_openais_error(line: bytes) -> None:
    async with behind() as (router, replica):
        status, body = await raw(router, line)
        assert status == 400
        assert error_of(body)["code"] == "invalid_http"
        assert counted(router) == {Outcome.INVALID_REQUEST: 1}
        assert not replica.asked


@pytest.mark.parametrize(
    "lines",
    [
        (AUTH, AUTH),
        ("x-evenkeel-client: acme", "X-Evenkeel-Client: acme/batch"),
        ("x-evenkeel-client: acme", "x-llm-d-inference-fairness-id: acme"),
    ],
)
async def test_two_identity_headers_are_refused(lines: tuple[str, ...]) -> None:
    async with behind() as (router, replica):
        status, body = await raw(router, *lines)
        assert (status, error_of(body)["code"]) == (400, "duplicate_header")
        assert not replica.asked


async def test_an_identity_header_of_an_untrusted_peer_is_ignored_and_counted() -> None:
    async with behind() as (router, (replica)):
        status, _ = await raw(router, "x-evenkeel-client: acme/chat")
        assert status == 200
        key = decode(replica.asked[0].headers["x-smg-routing-key"])
        assert key.identity == "ns/anonymous/anonymous"
        assert "x-evenkeel-client" not in replica.asked[0].headers
        assert router.rooms.totals.stripped == {"identity-header": 1}


async def test_an_identity_header_of_a_trusted_proxy_is_believed_if_it_makes_sense() -> None:
    async with behind(tenancy=tenancy(trusted_proxies=("127.0.0.0/8",))) as (router, replica):
        assert (await raw(router, "x-evenkeel-client: acme/batch"))[0] == 200
        assert decode(replica.asked[0].headers["x-smg-routing-key"]).identity == "ns/acme/batch"
        status, body = await raw(router, "x-evenkeel-client: missing")
        assert (status, error_of(body)["code"]) == (403, "unknown_tenant")
        status, body = await raw(router, "x-evenkeel-client: acme/b\xe4tch")
        assert (status, error_of(body)["code"]) == (400, "invalid_header")
        status, body = await raw(router, "x-evenkeel-client: acme\x01")
        assert (status, error_of(body)["code"]) == (400, "invalid_http")


async def test_without_an_identity_or_with_a_wrong_key_there_is_401() -> None:
    async with behind(tenancy=tenancy(anonymous=Anonymous.REJECT)) as (router, replica):
        status, body = await raw(router)
        assert (status, error_of(body)["code"]) == (401, "missing_api_key")
        status, body = await raw(router, "Authorization: Bearer wrong")
        assert (status, error_of(body)["code"]) == (401, "invalid_api_key")
        assert counted(router) == {Outcome.UNAUTHENTICATED: 2}
        assert not replica.asked


async def test_a_401_names_the_scheme_to_use() -> None:
    async with (
        behind(tenancy=tenancy(anonymous=Anonymous.REJECT)) as (router, _),
        http(router) as client,
    ):
        missing = await client.post("/v1/completions", json=BODY)
        wrong = await client.get("/v1/models", headers={"Authorization": "Bearer wrong"})
        assert [missing.status_code, wrong.status_code] == [401, 401]
        assert missing.headers["www-authenticate"] == "Bearer"
        assert wrong.headers["www-authenticate"] == 'Bearer error="invalid_token"'
        unknown = await client.get("/nowhere")
        assert (unknown.status_code, "www-authenticate" in unknown.headers) == (404, False)
        state = await client.get(f"http://127.0.0.1:{router.admin_port}/v1/state")
        assert state.status_code == 200, "no admin token is configured here"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
async def test_what_would_steer_the_engine_never_reaches_it(path: str) -> None:
    smuggled = {
        "routing_key": "ek1;a/b/c;w=999,999",
        "rid": "HEALTH_CHECK_1",
        "priority": -100,
        "extra_key": "x",
        "custom_params": {},
        "cache_salt": "s",
    }
    body = {"model": MODEL, "prompt": "x", "text": "x", "messages": [{"role": "user"}]} | smuggled
    async with behind() as (router, replica), http(router) as client:
        headers = {"x-smg-routing-key": smuggled["routing_key"], "x-custom-labels": "client=other"}
        response = await client.post(path, json=body, headers=headers)
        assert response.status_code == 200
        (asked,) = replica.asked
        sent = json.loads(asked.body)
        key = sent.pop("routing_key", None) or asked.headers["x-smg-routing-key"]
        assert decode(key).identity == "ns/anonymous/anonymous"
        assert not smuggled.keys() & sent.keys()
        assert "x-custom-labels" not in asked.headers
        counted_fields = router.rooms.totals.stripped
        assert counted_fields == dict.fromkeys(
            [*smuggled, "x-smg-routing-key", "x-custom-labels"], 1
        )


async def test_a_request_id_is_kept_if_it_is_well_formed_and_made_otherwise() -> None:
    async with behind() as (router, replica), http(router) as client:
        ids = []
        for given in ("trace-7.a:b_c", "bad id", "x" * 200, "", "é"):
            header = {"x-request-id": given.encode()}
            ids.append((await client.post("/v1/completions", json=BODY, headers=header)).headers)
        got = [headers["x-request-id"] for headers in ids]
        assert got[0] == "trace-7.a:b_c"
        assert [asked.headers["x-request-id"] for asked in replica.asked] == got
        assert len(set(got)) == 5
        assert all(len(made) < 40 and made.isascii() for made in got[1:])
        refused = await client.post("/v1/completions", content=b"{")
        assert refused.headers["x-request-id"]


# Limits.


async def test_a_tenants_rate_limit_is_429_with_the_time_to_wait() -> None:
    limited = tenancy()
    acme = replace(limited.tenants[0], limits=TenantLimits(requests_per_minute=1))
    async with (
        behind(tenancy=replace(limited, tenants=(acme,))) as (router, _),
        http(router) as client,
    ):
        headers = {"Authorization": f"Bearer {KEY}"}
        assert (await client.post("/v1/completions", json=BODY, headers=headers)).status_code == 200
        response = await client.post("/v1/completions", json=BODY, headers=headers)
        assert response.status_code == 429
        assert error_of(response.content)["code"] == "requests_per_minute"
        assert 50 <= int(response.headers["retry-after"]) <= 60
        assert (await client.post("/v1/completions", json=BODY)).status_code == 200  # another one
        assert counted(router) == {Outcome.RATE_LIMITED: 1}


# Slowness.


async def test_a_head_that_comes_too_slowly_is_cut_off() -> None:
    async with behind(timing=replace(QUICK, keep_alive_s=0.2)) as (router, _):
        reader, writer = await connect(router)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost:")
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
        writer.close()


async def test_the_longest_idle_connections_close_to_make_room() -> None:
    limits = LimitsConfig(max_concurrent=4)
    async with behind(limits=limits) as (router, _):
        crowd = [await connect(router) for _ in range(connections_for(4))]
        crowd[0][1].write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await _answer(crowd[0][0]))[0] == 200
        crowd[1][1].write(b"POST /v1/completions HTTP/1.1\r\nHost:")  # half a head
        assert (await raw(router, AUTH))[0] == 200
        async with asyncio.timeout(PATIENCE_S):
            assert await crowd[2][0].read() == b"", "the longest silent was closed"
        for one in (0, 1):  # heard of since
            crowd[one][1].write(b"\r\n" if one else b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await _answer(crowd[0][0]))[0] == 200
        for _, writer in crowd:
            writer.close()


async def test_connections_with_requests_are_never_closed_for_others() -> None:
    let = asyncio.Event()

    async def waits(asked: Asked) -> None:
        await let.wait()
        await asked.answer()

    async with behind(waits, limits=LimitsConfig(max_concurrent=4)) as (router, replica):
        busy = asyncio.create_task(raw(router, AUTH))
        await until(lambda: replica.asked, "the request to run")
        crowd = [await connect(router) for _ in range(2 * connections_for(4))]
        let.set()
        assert (await busy)[0] == 200
        for _, writer in crowd:
            writer.close()


async def test_a_body_that_comes_too_slowly_is_refused() -> None:
    async with behind(timing=replace(QUICK, body_timeout_s=0.1)) as (router, _):
        reader, writer = await connect(router)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        status, body = await _answer(reader)
        assert (status, error_of(body)["code"]) == (400, "body_timeout")
        assert router.rooms.intake.body_memory.used_bytes == 0
        writer.close()


async def test_a_client_that_leaves_while_it_sends_is_counted() -> None:
    async with behind() as (router, replica):
        _, writer = await connect(router)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        await until(
            lambda: router.rooms.intake.body_memory.used_bytes == 1, "the beginning of the body"
        )
        writer.close()
        await until(lambda: counted(router) == {Outcome.CLIENT_GONE: 1}, "the client to be missed")
        assert router.rooms.intake.body_memory.used_bytes == 0
        assert not replica.asked


async def test_a_client_that_does_not_read_is_dropped_and_its_work_aborted() -> None:
    sent_bytes = 0

    async def floods(asked: Asked) -> None:
        nonlocal sent_bytes
        await asked.begin_stream()
        event = EVENT.replace(b'"a"', b'"' + b"a" * 10_000 + b'"')
        while True:
            await asked.chunk(event)
            sent_bytes += len(event)

    limits = LimitsConfig(idle_timeout_s=0.5)
    async with behind(floods, limits=limits) as (router, replica):
        reader, writer = await connect(router)
        body = json.dumps(BODY | {"stream": True}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % len(body) + body)
        await until(lambda: counted(router) == {Outcome.CLIENT_GONE: 1}, "it to be given up")
        await until(lambda: replica.gone == 1, "the replica to notice")
        # Socket buffers of four ends, and 64 KiB in the router: bounded, whatever the replica sends.
        assert sent_bytes < 64 * 1024 * 1024
        del reader
        writer.close()


@pytest.mark.parametrize("size_bytes", [50_000, 500])
async def test_a_client_that_reads_slowly_gets_everything(size_bytes: int) -> None:
    event = EVENT.replace(b'"a"', b'"' + b"a" * size_bytes + b'"')
    count = 10_000_000 // size_bytes

    async def sends_much(asked: Asked) -> None:
        await asked.begin_stream()
        for _ in range(count):
            await asked.chunk(event)
        await asked.chunk(DONE)
        await asked.send(b"0\r\n\r\n")

    async with (
        behind(sends_much) as (router, _),
        http(router) as client,
        client.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as response,
    ):
        size = 0
        async for piece in response.aiter_bytes():
            size += len(piece)
            await asyncio.sleep(0)
        assert size == count * len(event) + len(DONE)


# Old and odd, but allowed.


async def test_a_client_that_leaves_with_the_last_event_has_got_everything() -> None:
    """As OpenAI's client does: it looks for no end of the stream behind `[DONE]`."""

    async def never_ends(asked: Asked) -> None:
        await asked.begin_stream(EVENT, EVENT, USAGE, DONE)
        await asked.hang()

    async with behind(never_ends) as (router, _):
        reader, writer = await connect(router)
        body = json.dumps(BODY | {"stream": True}).encode()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n%b\r\nContent-Length: %d\r\n\r\n%b"
            % (AUTH.encode(), len(body), body)
        )
        async with asyncio.timeout(PATIENCE_S):
            await reader.readuntil(DONE)
        writer.close()
        await until(lambda: not router.rooms.intake.admission.running, "the request to be over")
        assert counted(router) == {}
        assert router.rooms.replicas.totals["r0"].output_tokens == 2


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
        status, got = await _answer(reader)
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
        assert await _answer(reader) == (200, OK)
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
            assert await _answer(reader) == (200, OK)
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
        assert await _answer(reader) == (200, OK)
        assert await _answer(reader) == (200, OK)
        status, body = await _answer(reader)
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
        status, body = await _answer(reader)
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
        assert await _answer(reader) == (200, OK)
        writer.write(GOOD_REQUEST)
        assert await _answer(reader) == (200, OK)
        assert replica.asked[0].body == body
        assert "x-trailer" not in replica.asked[0].headers
        writer.close()


async def test_health_says_whether_requests_are_accepted() -> None:
    people = tenancy(anonymous=Anonymous.REJECT)
    async with behind(tenancy=people) as (router, _), http(router) as client:
        healthy = await client.get("/health")
        assert (healthy.status_code, healthy.json()) == (200, {"status": "ok"})
        assert (await client.head("/health")).status_code == 200
        assert (await client.post("/health")).status_code == 404
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
        assert (await client.delete("/v1/models")).status_code == 404
        assert (await client.get("/v1/completions")).status_code == 404


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
