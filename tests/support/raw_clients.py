"""Clients that send bytes as they are, to a router in front of one replica."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from evenkeel_contract.routerconfig import RouterConfig
from evenkeel_router.api.errors import Outcome
from evenkeel_router.app import Router

from tests.support.nasty import Behaviour, Nasty, fine, nasty
from tests.support.routers import KEY, MODEL, PATIENCE_S, QUICK, config_for, router_of

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
    answer = await answer_of(reader)
    writer.close()
    return answer


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, bytes]:
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


async def answer_to_chat(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bytes:
    """The streamed answer to a chat request, chunks and all; the connection stays open."""
    reader, writer = connection
    messages = [{"role": "user", "content": "Once upon a time. " * 60}]
    chat = {"model": MODEL, "messages": messages, "max_tokens": 8, "stream": True}
    body = json.dumps(chat).encode()
    head = "POST /v1/chat/completions HTTP/1.1", "Host: x", AUTH, f"Content-Length: {len(body)}"
    writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + body)
    async with asyncio.timeout(PATIENCE_S):
        return await reader.readuntil(b"\r\n0\r\n\r\n")
