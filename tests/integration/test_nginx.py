"""A real nginx with the Ingress's choice about retries: what was sent is never repeated, what was not sent always is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from tests.support.nasty import DONE, EVENT, USAGE, Asked, nasty
from tests.support.nginx import nginx
from tests.support.ports import free_ports
from tests.support.routers import MODEL, PATIENCE_S, config_for, router_of

REQUESTS = 8


@asynccontextmanager
async def router(seen: Counter[str], name: str, *, dies: bool = False) -> AsyncIterator[str]:
    """Answers every POST, or reads it whole and closes the connection, as one that is killed."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST"):
            await reader.readexactly(4)
            seen[name] += 1
        if not (dies and head.startswith(b"POST")):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def posts(client: httpx.AsyncClient) -> list[int]:
    return [
        (await client.post("/v1/completions", content=b"body")).status_code for _ in range(REQUESTS)
    ]


async def test_a_request_that_a_dead_router_never_got_goes_to_another(tmp_path: Path) -> None:
    seen = Counter[str]()
    gone = f"127.0.0.1:{free_ports(1)[0]}"
    async with router(seen, "alive") as alive, nginx(tmp_path, [gone, alive]) as client:
        assert await posts(client) == [200] * REQUESTS
    assert seen == {"alive": REQUESTS}


async def test_a_request_that_was_sent_is_never_repeated(tmp_path: Path) -> None:
    seen = Counter[str]()
    async with (
        router(seen, "alive") as alive,
        router(seen, "dies", dies=True) as dies,
        nginx(tmp_path, [dies, alive]) as client,
    ):
        statuses = Counter(await posts(client))
    assert seen.total() == REQUESTS
    assert seen["dies"] > 0
    assert statuses == {200: seen["alive"], 502: seen["dies"]}


async def test_a_stream_passes_an_nginx_with_its_defaults_event_by_event(tmp_path: Path) -> None:
    """Its buffers hold 32 KiB of an answer back, unless a header of the router says no."""
    let = asyncio.Event()

    async def streams(asked: Asked) -> None:
        await asked.begin_stream(EVENT)
        await let.wait()
        await asked.chunk(EVENT + USAGE + DONE)
        await asked.send(b"0\r\n\r\n")

    async with nasty(streams) as replica, router_of(config_for(replica.config("r0"))) as front:
        address = front.url.removeprefix("http://")
        async with nginx(tmp_path, [address]) as client:
            body = {"model": MODEL, "prompt": "x", "stream": True}
            async with (
                asyncio.timeout(PATIENCE_S),
                client.stream("POST", "/v1/completions", json=body) as response,
            ):
                pieces = response.aiter_bytes()
                assert await anext(pieces) == EVENT  # while the replica waits
                let.set()
                assert b"".join([piece async for piece in pieces]) == EVENT + DONE
