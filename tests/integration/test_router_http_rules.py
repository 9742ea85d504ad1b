"""Targets, methods, codings and framing as RFC 9110 and RFC 9112 have them: what must be accepted is, and the rest gets the status and the
headers that they name. Raw bytes against a real router.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator

import pytest
from evenkeel_contract.routerconfig import Anonymous
from evenkeel_router.app import Router

from tests.support.nasty import OK, Nasty
from tests.support.raw_clients import BODY, behind, connect
from tests.support.routers import PATIENCE_S, tenancy

CONTENT = json.dumps(BODY).encode()
PACKED = gzip.compress(CONTENT, mtime=0)


@pytest.fixture
async def served() -> AsyncIterator[tuple[Router, Nasty]]:
    async with behind(tenancy=tenancy(anonymous=Anonymous.SHARE)) as pair:
        yield pair


async def answer(
    router: Router, sent: bytes, *, head: bool = False
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to these bytes; `head`: it has no body."""
    reader, writer = await connect(router)
    writer.write(sent)
    async with asyncio.timeout(PATIENCE_S):
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = [line.partition(": ") for line in lines[1:] if line]
        headers = {name.lower(): value for name, _, value in fields}
        length = 0 if head else int(headers["content-length"])
        body = await reader.readexactly(length)
    writer.close()
    return int(lines[0].split(" ")[1]), headers, body


def post(
    target: str = "/v1/completions", *lines: str, body: bytes = CONTENT, length: bool = True
) -> bytes:
    given = ["Host: x", *lines, *([f"Content-Length: {len(body)}"] if length else [])]
    return "\r\n".join([f"POST {target} HTTP/1.1", *given, "", ""]).encode() + body


def get(target: str, method: str = "GET", version: str = "1.1", host: str = "Host: x\r\n") -> bytes:
    return f"{method} {target} HTTP/{version}\r\n{host}\r\n".encode()


@pytest.mark.parametrize(
    "target",
    [
        "http://llm.example.com/v1/completions",
        "HTTP://x:8080/v1/completions?a=b",
        "https://x/v1/completions#part",
        "/v1/%63ompletions",
        "/v1/completions/",
        "/v1/completions?x=/",
        "http://x/v1%2Fcompletions/?q",
    ],
)
async def test_a_target_that_names_the_path_in_another_way_is_served(
    served: tuple[Router, Nasty], target: str
) -> None:
    router, replica = served
    status, _, body = await answer(router, post(target))
    assert (status, body) == (200, OK)
    assert [asked.path for asked in replica.asked] == ["/v1/completions"]


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        ("/v1//completions", 404, "unknown_url"),
        ("/v1/./completions", 404, "unknown_url"),
        ("http://x", 404, "unknown_url"),
        ("http://x?a", 404, "unknown_url"),
        ("*", 400, "invalid_http"),
        ("v1/completions", 400, "invalid_http"),
        ("x:80", 400, "invalid_http"),
        ("/" + "a" * 9000, 414, "url_too_long"),
        ("/v1/completions?" + "a" * 9000, 414, "url_too_long"),
    ],
)
async def test_a_target_that_nobody_serves_gets_the_status_of_its_kind(
    served: tuple[Router, Nasty], target: str, status: int, code: str
) -> None:
    router, replica = served
    got, _, body = await answer(router, post(target))
    assert (got, json.loads(body)["error"]["code"]) == (status, code)
    assert not replica.asked


@pytest.mark.parametrize(
    ("method", "target", "allow"),
    [
        ("GET", "/v1/completions", "POST, OPTIONS"),
        ("DELETE", "/v1/messages", "POST, OPTIONS"),
        ("PUT", "/v1/chat/completions", "POST, OPTIONS"),
        ("PATCH", "/generate", "POST, PUT, OPTIONS"),
        ("POST", "/v1/models", "GET, HEAD, OPTIONS"),
        ("DELETE", "/v1/models/llama", "GET, HEAD, OPTIONS"),
        ("TRACE", "/v1/models", "GET, HEAD, OPTIONS"),
        ("POST", "/health", "GET, HEAD, OPTIONS"),
    ],
)
async def test_a_method_that_the_path_does_not_take_is_405_with_allow(
    served: tuple[Router, Nasty], method: str, target: str, allow: str
) -> None:
    router, replica = served
    status, headers, body = await answer(router, get(target, method))
    assert (status, headers["allow"]) == (405, allow)
    assert "method_not_allowed" in body.decode() or target == "/v1/messages"
    assert not replica.asked


async def test_head_of_a_path_that_takes_post_has_no_body(served: tuple[Router, Nasty]) -> None:
    router, _ = served
    reader, writer = await connect(router)
    writer.write(get("/v1/completions", "HEAD") + get("/v1/models"))
    async with asyncio.timeout(PATIENCE_S):
        first = await reader.readuntil(b"\r\n\r\n")
        second = await reader.readuntil(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 405 ")
    assert second.startswith(b"HTTP/1.1 200 "), "nothing between the heads"
    writer.close()


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_an_asterisk_is_a_target_of_options_only(
    served: tuple[Router, Nasty], method: str
) -> None:
    """RFC 9112, section 3.2.4."""
    router, replica = served
    status, headers, _ = await answer(router, get("*", method))
    assert (status, headers["connection"]) == (400, "close")
    assert not replica.asked


@pytest.mark.parametrize("method", ["FOO", "BREW", "CONNECT", "completions"])
async def test_an_unknown_method_is_501(served: tuple[Router, Nasty], method: str) -> None:
    router, replica = served
    target = "x:80" if method == "CONNECT" else "/v1/models"
    status, headers, body = await answer(router, get(target, method))
    assert (status, json.loads(body)["error"]["code"]) == (501, "unsupported_method")
    assert headers["connection"] == "close"
    assert not replica.asked


@pytest.mark.parametrize(
    ("target", "allow"),
    [
        ("*", "GET, HEAD, POST, PUT, OPTIONS"),
        ("http://x", "GET, HEAD, POST, PUT, OPTIONS"),
        ("/v1/completions", "POST, OPTIONS"),
        ("/v1/rerank", "POST, PUT, OPTIONS"),
        ("/v1/models", "GET, HEAD, OPTIONS"),
    ],
)
async def test_options_names_the_methods(
    served: tuple[Router, Nasty], target: str, allow: str
) -> None:
    router, _ = served
    status, headers, body = await answer(router, get(target, "OPTIONS"))
    assert (status, headers["allow"], body) == (200, allow, b"")
    status, _, _ = await answer(router, get("/nowhere", "OPTIONS"))
    assert status == 404


@pytest.mark.parametrize("version", ["2.0", "3.0", "0.9", "1.2"])
async def test_another_version_of_http_is_505(served: tuple[Router, Nasty], version: str) -> None:
    router, _ = served
    status, _, body = await answer(router, get("/v1/models", version=version))
    assert (status, json.loads(body)["error"]["code"]) == (505, "unsupported_http_version")


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ("", 400),
        ("Host: a\r\nHost: b\r\n", 400),
        ("Host: a\r\nHost: a\r\n", 400),
        ("Host: a b\r\n", 400),
        ("Host: a/b\r\n", 400),
        ("Host: a@b\r\n", 400),
        ("Host: a, b\r\n", 400),
        ("Host:\r\n", 200),
        ("Host: [::1]:8080\r\n", 200),
        ("Host: ex_ample.com.:80\r\n", 200),
    ],
)
async def test_a_request_has_one_valid_host(
    served: tuple[Router, Nasty], lines: str, status: int
) -> None:
    router, _ = served
    assert (await answer(router, get("/health", host=lines)))[0] == status
    assert (await answer(router, get("/health", version="1.0", host="")))[0] == 200


@pytest.mark.parametrize("coding", ["br", "zstd", "compress", "gzip, br", "x-br"])
async def test_an_unknown_coding_is_415_with_those_that_are_known(
    served: tuple[Router, Nasty], coding: str
) -> None:
    router, _ = served
    status, headers, body = await answer(
        router, post("/v1/completions", f"Content-Encoding: {coding}")
    )
    assert (status, headers["accept-encoding"]) == (415, "gzip, deflate")
    assert json.loads(body)["error"]["code"] == "unsupported_encoding"


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        (["Content-Encoding: x-gzip"], PACKED),
        (["Content-Encoding: GZIP"], PACKED),
        (["Content-Encoding: identity, gzip"], PACKED),
        (["Content-Encoding: gzip", "Content-Encoding: gzip"], gzip.compress(PACKED, mtime=0)),
        (["Content-Encoding: ,"], CONTENT),
    ],
    ids=["old name", "capitals", "identity", "twice", "none"],
)
async def test_codings_are_undone_in_reverse_order(
    served: tuple[Router, Nasty], lines: list[str], body: bytes
) -> None:
    router, replica = served
    assert (await answer(router, post("/v1/completions", *lines, body=body)))[0] == 200
    assert json.loads(replica.asked[0].body).items() >= BODY.items()


async def test_a_form_of_another_type_is_415_with_the_type_that_is_taken(
    served: tuple[Router, Nasty],
) -> None:
    router, _ = served
    status, headers, _ = await answer(
        router, post("/v1/audio/transcriptions", "Content-Type: application/json")
    )
    assert (status, headers["accept"]) == (415, "multipart/form-data")


async def test_an_expectation_that_cannot_be_met_is_417(served: tuple[Router, Nasty]) -> None:
    router, replica = served
    status, _, body = await answer(router, post("/v1/completions", "Expect: 200-ok"))
    assert (status, json.loads(body)["error"]["code"]) == (417, "unsupported_expectation")
    assert not replica.asked
    status, _, _ = await answer(router, post("/v1/completions", "Expect: 100-Continue"))
    assert status == 200, "the body came with the head"


async def test_http_1_0_has_no_expectations(served: tuple[Router, Nasty]) -> None:
    router, _ = served
    head = f"POST /v1/completions HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: {len(CONTENT)}\r\n\r\n"
    reader, writer = await connect(router)
    writer.write(head.encode())
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.write(CONTENT)
    async with asyncio.timeout(PATIENCE_S):
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    writer.close()


@pytest.mark.parametrize(
    ("lines", "body", "status"),
    [
        (["Content-Length: 5", "Content-Length: 5"], b"", 400),
        (["Content-Length: 5, 5"], b"", 400),
        (["Content-Length: +5"], b"", 400),
        (["Content-Length: -1"], b"", 400),
        (["Transfer-Encoding: chunked", "Content-Length: 5"], b"0\r\n\r\n", 400),
        (["Transfer-Encoding: chunked", "Transfer-Encoding: gzip"], b"0\r\n\r\n", 400),
        (["Transfer-Encoding: gzip, chunked"], b"0\r\n\r\n", 501),
        (["X-Folded: a\r\n b"], b"", 400),
        (["X-Space : a"], b"", 400),
        (["X-Many: a"] * 200, b"", 431),
        (["X-Long: " + "a" * 9000], b"", 431),
    ],
)
async def test_framing_that_is_in_doubt_is_refused_and_ends_the_connection(
    served: tuple[Router, Nasty], lines: list[str], body: bytes, status: int
) -> None:
    router, replica = served
    got, headers, _ = await answer(router, post("/v1/completions", *lines, body=body, length=False))
    assert (got, headers["connection"]) == (status, "close")
    assert not replica.asked


async def test_a_transfer_coding_in_http_1_0_is_faulty_framing(
    served: tuple[Router, Nasty],
) -> None:
    router, replica = served
    sent = post("/v1/completions", "Transfer-Encoding: chunked", body=b"0\r\n\r\n", length=False)
    status, headers, _ = await answer(
        router, sent.replace(b"HTTP/1.1", b"HTTP/1.0\r\nConnection: keep-alive")
    )
    assert (status, headers["connection"]) == (400, "close")
    assert not replica.asked


async def test_chunks_may_have_extensions_and_trailers(served: tuple[Router, Nasty]) -> None:
    router, replica = served
    chunked = b"%x;name=value\r\n%b\r\n0;last\r\nX-Trailer: a\r\n\r\n" % (len(CONTENT), CONTENT)
    sent = post("/v1/completions", "Transfer-Encoding: chunked", body=chunked, length=False)
    assert (await answer(router, sent))[0] == 200
    assert "x-trailer" not in replica.asked[0].headers


@pytest.mark.parametrize("protocol", ["websocket", "h2c", "TLS/1.2"])
async def test_an_upgrade_that_is_offered_is_ignored(
    served: tuple[Router, Nasty], protocol: str
) -> None:
    router, _ = served
    upgrade = ("Connection: Upgrade", f"Upgrade: {protocol}")
    status, headers, body = await answer(router, post("/v1/completions", *upgrade))
    assert (status, body) == (200, OK)
    assert "upgrade" not in headers


async def test_empty_lines_before_a_request_are_ignored(served: tuple[Router, Nasty]) -> None:
    router, _ = served
    assert (await answer(router, b"\r\n\r\n" + get("/health")))[0] == 200


async def test_put_is_taken_where_sglang_takes_it(served: tuple[Router, Nasty]) -> None:
    router, replica = served
    body = b'{"text":"Hi"}'
    sent = post("/generate", body=body).replace(b"POST", b"PUT", 1)
    assert (await answer(router, sent))[0] == 200
    assert replica.asked[0].path == "/generate"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/responses/resp_1", 404, "response_not_stored"),
        ("DELETE", "/v1/responses/resp_1", 404, "response_not_stored"),
        ("POST", "/v1/responses/resp_1/cancel", 404, "response_not_stored"),
        ("GET", "/v1/responses/resp_1/input_items", 404, "response_not_stored"),
        ("POST", "/v1/responses/compact", 404, "unknown_url"),
        ("POST", "/v1/responses/input_tokens", 404, "unknown_url"),
        ("POST", "/v1/responses/render", 404, "unknown_url"),
        ("GET", "/v1/responses/resp_1/other", 404, "unknown_url"),
        ("GET", "/v1/responses/", 405, "method_not_allowed"),
        ("GET", "/v1/responsesx", 404, "unknown_url"),
        ("GET", "/v1/modelsx", 404, "unknown_url"),
    ],
)
async def test_only_a_path_that_asks_for_a_stored_response_is_refused_as_one(
    served: tuple[Router, Nasty], method: str, path: str, status: int, code: str
) -> None:
    router, _ = served
    got, _, body = await answer(router, get(path, method))
    assert (got, json.loads(body)["error"]["code"]) == (status, code)
