"""A sender that holds many connections: others are answered all the same, and the log names who lost connections."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evenkeel_contract.routerconfig import (
    Anonymous,
    ApiKeyConfig,
    ClientConfig,
    LimitsConfig,
    ListenConfig,
    TenancyConfig,
    TenantConfig,
)
from evenkeel_contract.routerdocument import dump_router_config
from evenkeel_router.api.errors import Outcome
from evenkeel_router.request.large_bodies import LargeBodies
from evenkeel_router.telemetry.metrics import metrics
from evenkeel_router.transport import body_rate
from evenkeel_router.transport.connection_shares import NO_KEY, Closing
from evenkeel_router.transport.server import SIDE_CONNECTIONS, connections_for

from tests.integration.test_router_process import process
from tests.support.nasty import fine, nasty
from tests.support.ports import free_ports
from tests.support.raw_clients import BODY, answer_of, behind, counted, error_of
from tests.support.routers import PATIENCE_S, QUICK, config_for, sha256, until

SMALL = LimitsConfig(max_concurrent=32)
BOUND = connections_for(32)
CROWD = BOUND + 20

HEADS = {
    "slow bodies of a tenant": "Authorization: Bearer sk-bad\r\nContent-Length: 100000\r\n\r\n{",
    "slow chunks of a tenant": "Authorization: Bearer sk-bad\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
    "bodies that wait for 100 Continue": "Authorization: Bearer sk-bad\r\nContent-Length: 100000\r\nExpect: 100-continue\r\n\r\n",
    "slow bodies with a wrong key": "Authorization: Bearer sk-none\r\nContent-Length: 100000\r\n\r\n{",
    "slow bodies without a key": "Content-Length: 100000\r\n\r\n{",
    "slow heads": "Authorization: Bearer sk-bad\r\n",
    "heads that have not begun": "",
}


def tenancy(**changes: Any) -> TenancyConfig:
    """Tenants good and bad with a key each; other requests are refused."""
    tenants = tuple(
        TenantConfig(
            namespace="ns",
            name=name,
            clients=(ClientConfig(name="c"),),
            api_keys=(ApiKeyConfig(name="k", client="c", sha256=sha256(f"sk-{name}")),),
        )
        for name in ("good", "bad")
    )
    given: dict[str, Any] = {"anonymous": Anonymous.REJECT, "tenants": tenants}
    return TenancyConfig(**(given | changes))


def request_of(key: str, *headers: str) -> bytes:
    body = json.dumps(BODY).encode()
    lines = [
        "POST /v1/completions HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {key}",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def status_of(port: int, key: str = "sk-good") -> int:
    """The status of one request on a connection of its own; 0 if it got none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request_of(key))
        return (await answer_of(reader))[0]
    except (ConnectionError, asyncio.IncompleteReadError):
        return 0
    finally:
        writer.close()


@asynccontextmanager
async def crowd(
    port: int, head: str, size: int = CROWD
) -> AsyncIterator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    """So many connections that each sent the beginning of a request, and nothing more."""
    ones = []
    try:
        for _ in range(size):
            one = await asyncio.open_connection("127.0.0.1", port)
            if head:
                one[1].write(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{head}".encode())
            ones.append(one)
        yield ones
    finally:
        for _, writer in ones:
            writer.transport.abort()


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
async def test_every_request_of_another_tenant_is_answered(head: str) -> None:
    async with behind(limits=SMALL, tenancy=tenancy()) as (router, _):
        async with crowd(router.traffic_port, head):
            await until(lambda: len(router.traffic.connections) >= BOUND // 4, "the crowd")
            one_by_one = [await status_of(router.traffic_port) for _ in range(60)]
            together = await asyncio.gather(*(status_of(router.traffic_port) for _ in range(12)))
            assert one_by_one + together == [200] * 72
            assert len(router.traffic.connections) <= BOUND
        assert {party for party, _ in router.rooms.connections.closed} <= {"ns/bad", NO_KEY}


async def test_bodies_that_wait_for_their_reader_make_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(LargeBodies, "inference", never)
    body = json.dumps(BODY | {"stop": ["x"] * 10_000})
    head = f"Authorization: Bearer sk-bad\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    async with (
        behind(limits=SMALL, tenancy=tenancy()) as (router, _),
        crowd(router.traffic_port, head),
    ):
        await until(lambda: len(router.traffic.connections) >= BOUND, "the crowd")
        assert [await status_of(router.traffic_port) for _ in range(12)] == [200] * 12


async def test_the_one_that_holds_most_is_named_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with behind(limits=SMALL, tenancy=tenancy()) as (router, _):
        with caplog.at_level(logging.WARNING, "evenkeel_router.request.connection_holders"):
            async with crowd(router.traffic_port, HEADS["slow bodies of a tenant"]):
                assert await status_of(router.traffic_port) == 200
                closed = router.rooms.connections.closed["ns/bad", Closing.FULL]
                assert closed >= CROWD + 1 - BOUND
                await until(lambda: counted(router)[Outcome.RATE_LIMITED] == closed, "429 for each")
        assert "closed a connection of ns/bad/c: full." in caplog.text
        page = "".join(metrics(router.rooms))
        line = (
            f'connections_closed_total{{model_name="llama",reason="full",tenant="bad"}} {closed}.0'
        )
        assert line in page
        assert f'connections_limit{{model_name="llama"}} {BOUND}.0' in page


async def test_a_body_that_makes_room_gets_an_answer_that_says_so() -> None:
    async with (
        behind(limits=SMALL, tenancy=tenancy()) as (router, _),
        crowd(router.traffic_port, HEADS["slow bodies of a tenant"]) as ones,
    ):
        status, body = await answer_of(ones[0][0])
        assert (status, error_of(body)["code"]) == (429, "max_connections")
        assert await ones[0][0].read() == b""


async def test_idle_connections_of_a_load_balancer_stay_open() -> None:
    """All of them come from one address."""
    limits = LimitsConfig(max_concurrent=200)
    trusting = tenancy(trusted_proxies=("127.0.0.1/32",))
    async with behind(limits=limits, tenancy=trusting) as (router, _):
        port = router.traffic_port
        kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(150)]
        for reader, writer in kept:
            writer.write(request_of("sk-good"))
            assert (await answer_of(reader))[0] == 200
        async with crowd(port, HEADS["slow bodies of a tenant"], connections_for(200)):
            assert await status_of(port) == 200
            for reader, writer in kept:
                writer.write(request_of("sk-good"))
                assert (await answer_of(reader))[0] == 200
        assert not router.rooms.connections.closed["ns/good", Closing.FULL]
        for _, writer in kept:
            writer.close()


async def test_behind_a_proxy_the_forwarded_address_holds_a_connection() -> None:
    trusting = tenancy(trusted_proxies=("127.0.0.1/32", "10.0.0.0/8"), anonymous=Anonymous.SHARE)
    async with behind(tenancy=trusting) as (router, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", router.traffic_port)
        await until(lambda: bool(router.traffic.connections), "the connection")
        (connection,) = router.traffic.connections
        assert connection.holder == "proxies/127.0.0.1"
        for authorization, forwarded, holder in (
            ("Bearer sk-none", "6.6.6.6, 1.2.3.4, 10.1.1.1", "/1.2.3.4"),
            ("Bearer sk-none", "2001:db8:1:2:3:4:5:6", "/2001:db8:1:2::"),
            ("Bearer sk-none", "1.2.3.4:5678", "/1.2.3.4"),
            ("Bearer sk-none", "[2001:db8:1:2:3:4:5:6]:7", "/2001:db8:1:2::"),
            ("Bearer sk-none", "who/knows", "/whoknows"),
            ("Bearer sk-good", "1.2.3.4", "ns/good/c"),
            ("", "1.2.3.5", "ns/anonymous/1.2.3.5"),
            ("", "1.2.3.6", "ns/anonymous/1.2.3.6"),
        ):
            key = f"Authorization: {authorization}\r\n" if authorization else ""
            head = (
                f"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: {forwarded}\r\n{key}\r\n"
            )
            writer.write(head.encode())
            await answer_of(reader)
            assert connection.holder == holder
        writer.close()


async def test_without_a_valid_key_a_body_is_refused_at_once_and_not_read() -> None:
    async with behind(tenancy=tenancy()) as (router, _):
        for path, status in (("/v1/completions", b"401"), ("/none", b"404")):
            reader, writer = await asyncio.open_connection("127.0.0.1", router.traffic_port)
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n"
            writer.write(head.encode() + b"Expect: 100-continue\r\n\r\n{")
            async with asyncio.timeout(PATIENCE_S):
                answer = await reader.read()  # the end comes, though the body does not
            assert answer.startswith(b"HTTP/1.1 " + status)
            assert b"connection: close" in answer
            writer.close()


async def test_a_slow_upload_is_served_while_it_keeps_the_least_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes six times as long as one step may."""
    monkeypatch.setattr(body_rate, "STEP_BYTES", 1000)
    body = json.dumps(BODY | {"prompt": "x" * 6000}).encode()
    async with behind(timing=replace(QUICK, body_timeout_s=0.5)) as (router, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", router.traffic_port)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode())
        for start in range(0, len(body), 200):
            writer.write(body[start : start + 200])
            await asyncio.sleep(0.02)
        assert (await answer_of(reader))[0] == 200
        writer.close()


@pytest.mark.parametrize("piece", [b" ", b"1;x=y\r\n \r\n", b"X: y\r\n"])
async def test_a_body_below_the_least_rate_is_cut_off(piece: bytes) -> None:
    """One byte after the other, as a chunk each, or in a trailer that does not end."""
    chunked = piece != b" "
    framing = "Transfer-Encoding: chunked" if chunked else "Content-Length: 100000"
    async with behind(timing=replace(QUICK, body_timeout_s=0.3)) as (router, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", router.traffic_port)
        begin = "0\r\n" if piece == b"X: y\r\n" else ""
        writer.write(
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n{begin}".encode()
        )
        answering = asyncio.create_task(answer_of(reader))
        while not answering.done():
            writer.write(piece)
            await asyncio.sleep(0.02)
        status, body = await answering
        assert (status, error_of(body)["code"]) == (408, "body_timeout")
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
        writer.close()


async def test_answers_that_are_not_read_do_not_pile_up() -> None:
    """Pipelined requests wait until their client reads; a client that never reads is disconnected."""
    async with behind(limits=LimitsConfig(idle_timeout_s=0.3), tenancy=tenancy()) as (router, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", router.traffic_port, limit=1024)
        await until(lambda: bool(router.traffic.connections), "the connection")
        (connection,) = router.traffic.connections
        path = "/" + "a" * 8000
        ask = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-bad\r\n\r\n".encode()
        most_bytes = 0
        with pytest.raises(ConnectionError):
            for _ in range(100_000):
                writer.write(ask)
                await writer.drain()
                if (transport := connection.transport) is not None:
                    most_bytes = max(most_bytes, transport.get_write_buffer_size())
        await until(lambda: not router.traffic.connections, "the end of the connection")
        assert 0 < most_bytes < 1024 * 1024
        assert router.rooms.connections.closed[NO_KEY, Closing.NOT_READING] == 1
        del reader
        writer.close()


@pytest.mark.parametrize("port", ["probe_port", "admin_port"])
async def test_the_other_ports_answer_beside_a_crowd(port: str) -> None:
    async with behind() as (router, _):
        number = getattr(router, port)
        async with crowd(number, "", SIDE_CONNECTIONS + 40):
            for _ in range(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", number)
                path = "/livez" if port == "probe_port" else "/v1/activation"
                writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
                assert (await answer_of(reader))[0] == 200
                writer.close()


@pytest.mark.parametrize("port", ["probe_port", "admin_port"])
async def test_the_other_ports_cut_off_a_slow_head(
    port: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenkeel_router.app.SIDE_HEAD_S", 0.3)
    async with behind() as (router, _):
        for begin in (b"", b"GET /livez HTTP/1.1\r\nHost:"):
            reader, writer = await asyncio.open_connection("127.0.0.1", getattr(router, port))
            writer.write(begin)
            async with asyncio.timeout(PATIENCE_S):
                assert await reader.read() == b""
            writer.close()


async def test_the_other_ports_cut_off_a_slow_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenkeel_router.telemetry.admin.BODY_TIMEOUT_S", 0.2)
    async with behind() as (router, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", router.admin_port)
        writer.write(b"POST /v1/ledger HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{")
        assert (await answer_of(reader))[0] == 408
        writer.transport.abort()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["slow bodies of a tenant", "slow bodies with a wrong key"])
async def test_a_router_process_answers_beside_1300_slow_bodies(kind: str, tmp_path: Path) -> None:
    """As in a report: 640 requests at once, so that 1,296 connections may be open."""
    traffic, probe, admin = free_ports(3)
    listen = ListenConfig(traffic_port=traffic, probe_port=probe, admin_port=admin)
    async with nasty(fine) as replica:
        config = config_for(
            replica.config("r0"),
            listen=listen,
            tenancy=tenancy(),
            limits=LimitsConfig(max_concurrent=640),
        )
        path = tmp_path / "router.json"
        path.write_bytes(dump_router_config(config))
        async with process("evenkeel_router", "--config", str(path)):
            async with asyncio.timeout(3 * PATIENCE_S):
                while not await _is_served(traffic):  # noqa: ASYNC110 - another process starts
                    await asyncio.sleep(0.1)
            async with crowd(traffic, HEADS[kind], 1300):
                one_by_one = [await status_of(traffic) for _ in range(100)]
                together = await asyncio.gather(*(status_of(traffic) for _ in range(100)))
                assert one_by_one + together == [200] * 200


async def _is_served(port: int) -> bool:
    try:
        return await status_of(port) == 200
    except ConnectionError:
        return False
