"""Clients that send, read or leave too slowly, or hold connections."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from dataclasses import replace

import pytest
from evenkeel_contract.routerconfig import LimitsConfig
from evenkeel_router.api.errors import Outcome
from evenkeel_router.transport import peer_watch
from evenkeel_router.transport.server import connections_for

from tests.support.nasty import DONE, EVENT, Asked
from tests.support.raw_clients import (
    AUTH,
    BODY,
    answer_of,
    behind,
    connect,
    counted,
    error_of,
    http,
    raw,
)
from tests.support.routers import PATIENCE_S, QUICK, until


async def test_a_head_that_comes_too_slowly_is_cut_off() -> None:
    async with behind(timing=replace(QUICK, head_timeout_s=0.2)) as (router, _):
        reader, writer = await connect(router)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost:")
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
        writer.close()


async def test_a_connection_that_was_served_may_be_idle_for_as_long_as_is_set() -> None:
    """Load balancers keep connections to their backends for minutes; the one that closes first loses a request."""
    limits = LimitsConfig(keep_alive_timeout_s=0.6)
    async with behind(timing=replace(QUICK, head_timeout_s=0.1), limits=limits) as (router, _):
        reader, writer = await connect(router)
        for _ in range(2):
            writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + AUTH.encode() + b"\r\n\r\n")
            assert (await answer_of(reader))[0] == 200
            await asyncio.sleep(0.3)  # longer than for a head
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
        writer.close()


async def test_a_later_head_that_comes_too_slowly_is_cut_off_as_soon() -> None:
    limits = LimitsConfig(keep_alive_timeout_s=10 * PATIENCE_S)
    async with behind(timing=replace(QUICK, head_timeout_s=0.1), limits=limits) as (router, _):
        reader, writer = await connect(router)
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + AUTH.encode() + b"\r\n\r\n")
        assert (await answer_of(reader))[0] == 200
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost:")
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
        writer.close()


async def test_the_kernel_asks_clients_that_may_have_vanished() -> None:
    async with behind() as (router, _):
        _, writer = await connect(router)
        await until(lambda: len(router.traffic.connections) > 0, "the connection")
        for connection in router.traffic.connections:
            assert connection.transport is not None
            file = connection.transport.get_extra_info("socket").fileno()
            with socket.socket(fileno=os.dup(file)) as own:
                assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == peer_watch.IDLE_S
                unsent_ms = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                assert unsent_ms == peer_watch.UNSENT_S * 1000
        writer.close()


async def test_the_longest_idle_connections_close_to_make_room() -> None:
    limits = LimitsConfig(max_concurrent=4)
    async with behind(limits=limits) as (router, _):
        crowd = [await connect(router) for _ in range(connections_for(4))]
        crowd[0][1].write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await answer_of(crowd[0][0]))[0] == 200
        crowd[1][1].write(b"POST /v1/completions HTTP/1.1\r\nHost:")  # half a head
        assert (await raw(router, AUTH))[0] == 200
        async with asyncio.timeout(PATIENCE_S):
            assert await crowd[1][0].read() == b"", "the oldest without a request was closed"
        for one in (0, 2):
            crowd[one][1].write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await answer_of(crowd[one][0]))[0] == 200
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
        status, body = await answer_of(reader)
        assert (status, error_of(body)["code"]) == (408, "body_timeout")
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
