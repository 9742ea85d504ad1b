"""Memory that one client holds which never reads its stream: in the kernel, by its own count, and in the router."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest
from evenkeel_router.app import Router, running
from evenkeel_router.transport.connections import Connections

from tests.support.nasty import EVENT, Asked, nasty
from tests.support.raw_clients import BODY
from tests.support.routers import PATIENCE_S, QUICK, config_for, routable

MOST_BYTES = 256 * 1024
CLIENTS = 4
SO_MEMINFO = 55
"""`linux/sock_diag.h`: nine numbers, of which the first is what arrived and the sixth what is to be sent, each with the kernel's own."""
RECEIVED, QUEUED = 0, 5


def held_bytes(router: Router, connections: Connections) -> list[int]:
    """Bytes that each stream holds: of the client's socket, of the replica's, and in the router between them."""
    found = []
    for connection in router.traffic.connections:
        assert connection.transport is not None
        queued = connection.transport.get_write_buffer_size()
        own = connection.transport.get_extra_info("socket").fileno()
        found.append(queued + in_kernel(own))
    upstream = [
        in_kernel(one._transport.get_extra_info("socket").fileno())
        + sum(map(len, one._pieces))
        + len(one._unfed)
        for one in connections._open
        if one._transport is not None and one._busy
    ]
    assert len(upstream) == len(found) == CLIENTS
    # Which of them belong together is not known: the largest of both.
    return [one + max(upstream) for one in found]


def in_kernel(file: int) -> int:
    with socket.socket(fileno=os.dup(file)) as own:
        memory = struct.unpack("9I", own.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36))
    return int(memory[RECEIVED] + memory[QUEUED])


def never_reading(router: Router) -> Iterator[socket.socket]:
    body = json.dumps(BODY | {"stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    for _ in range(CLIENTS):
        client = socket.create_connection(("127.0.0.1", router.traffic_port))
        client.sendall(head + body)
        yield client


@pytest.mark.parametrize("content_bytes", [1, 300, 20_000])
async def test_a_client_that_never_reads_holds_little(content_bytes: int) -> None:
    event = EVENT.replace(b'"a"', b'"' + b"a" * content_bytes + b'"')
    sent_bytes = 0

    async def floods(asked: Asked) -> None:
        nonlocal sent_bytes
        await asked.begin_stream()
        while True:
            await asked.chunk(event)
            sent_bytes += len(event)

    connections = Connections()
    async with nasty(floods) as replica, AsyncExitStack() as stack:
        config = config_for(replica.config("r0"))
        serving = running(config, timing=QUICK, upstream=connections)
        router = await stack.enter_async_context(serving)
        await routable(router, 1)
        for client in never_reading(router):
            stack.enter_context(client)
        before = -1
        async with asyncio.timeout(PATIENCE_S):
            while sent_bytes != before or not sent_bytes:
                before = sent_bytes
                await asyncio.sleep(0.5)
        held = held_bytes(router, connections)
        assert max(held) <= MOST_BYTES, held
