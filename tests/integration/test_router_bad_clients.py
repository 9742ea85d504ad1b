"""Bodies that are nonsense, too large, compressed to deceive, or cut off.

Each gets a named outcome: a status, an OpenAI error body, a count. None gets a traceback or a hung connection.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from evenkeel_contract.routerconfig import LimitsConfig
from evenkeel_fairshare.ledger import tenant_of
from evenkeel_router.api.errors import Outcome
from evenkeel_router.request.intake import MAX_BUFFERED_BYTES

from tests.support.nasty import OK
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
from tests.support.routers import until


@pytest.mark.parametrize(
    ("path", "body", "want_status", "want_code", "want_outcome"),
    [
        ("completions", b"{", 400, "invalid_json", Outcome.INVALID_REQUEST),
        ("completions", b'{"model":"llama","prompt":"\xff"}', 400, "invalid_utf8",
         Outcome.INVALID_REQUEST),
        ("completions", b'{"x":' + b"[" * 200_000, 400, "invalid_json", Outcome.INVALID_REQUEST),
        ("completions", b'{"model":"llama","prompt":7}', 400, "invalid_type",
         Outcome.INVALID_REQUEST),
        ("completions", b'{"model":"llama"}', 400, "missing_required_parameter",
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
        ("gzip, gzip", gzip.compress(GOOD), None),
        (
            "deflate, identity, X-GZIP",
            gzip.compress(zlib.compress(json.dumps(BODY).encode())),
            None,
        ),
        (", ".join(["gzip"] * 5), GOOD, "unsupported_encoding"),
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
        "other names",
        "five encodings",
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
            status, body = await answer_of(reader)
            wrong = 415 if want == "unsupported_encoding" else 400
            assert status == (200 if want is None else wrong)
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
        status, body = await answer_of(reader)
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
        router.rooms.intake.body_memory.of(tenant).reserve(MAX_BUFFERED_BYTES * 9 // 10)
        response = await client.post("/v1/completions", content=b" " * 200_000)
        assert (response.status_code, error_of(response.content)["code"]) == (429, "max_buffered")
        router.rooms.intake.body_memory.of("ns/another").reserve(
            16 * 2**20
        )  # as if nothing had happened
        router.rooms.intake.body_memory.of("ns/another").release(16 * 2**20)
        router.rooms.intake.body_memory.of(tenant).release(MAX_BUFFERED_BYTES * 9 // 10)
        assert router.rooms.intake.body_memory.used_bytes == 0
        assert (await client.post("/v1/completions", json=BODY)).status_code == 200
