"""A watch that passes every object on, lists in pages, and asks for metadata only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from aiohttp import web
from evenkeel_kube.client import METADATA, METADATA_OF_LIST, KubeClient, connected
from evenkeel_kube.watch import EventWatcher
from kubernetes.aio.client import Configuration

CA = Path(__file__).parents[2] / "support" / "ca.pem"


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what should happen at once."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what it waits for is in another task
            await asyncio.sleep(0.01)


class Server:
    """Pages of Secrets, and a watch that says what the test puts into its queue."""

    def __init__(self) -> None:
        self.names = ["a", "b", "c"]
        self.version = 10
        self.accepts: list[str] = []
        self.pages: list[tuple[str, str]] = []
        self.events: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.accepts.append(request.headers["Accept"])
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            event = await self.events.get()
            await response.write(json.dumps(event).encode() + b"\n")
            return response
        limit, start = int(request.query["limit"]), int(request.query.get("continue", "0"))
        self.pages.append((request.query["limit"], request.query.get("continue", "")))
        end = start + limit
        following = str(end) if end < len(self.names) else ""
        metadata = {"resourceVersion": str(self.version), "continue": following}
        items = [secret(name) for name in self.names[start:end]]
        return web.json_response({"metadata": metadata, "items": items})


def secret(name: str, version: str = "1") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "n", "resourceVersion": version}}


@asynccontextmanager
async def served(server: Server) -> AsyncIterator[KubeClient]:
    app = web.Application()
    app.router.add_get("/{path:.*}", server.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with connected(Configuration(host=url, ssl_ca_cert=str(CA))) as client:
            yield client
    finally:
        await runner.cleanup()


async def test_a_list_in_pages_says_what_went_since_the_last_one() -> None:
    server, seen = Server(), list[tuple[str | None, str]]()

    def on_event(event: str | None, item: Mapping[str, Any]) -> None:
        seen.append((event, str(item["metadata"]["name"])))

    async with served(server) as client:
        watcher = EventWatcher(
            client, "/api/v1/secrets", on_event, rng=Random(1), metadata_only=True, page=2
        )
        running = asyncio.create_task(watcher.run())
        try:
            await until(lambda: len(seen) == 3)
            assert seen == [(None, "a"), (None, "b"), (None, "c")]
            assert server.pages == [("2", ""), ("2", "2")]
            server.events.put_nowait({"type": "ADDED", "object": secret("d", "11")})
            await until(lambda: len(seen) == 4)
            server.names = ["a", "d"]
            gone = {"code": 410, "reason": "Gone", "message": "too old"}
            server.events.put_nowait({"type": "ERROR", "object": gone})
            await until(lambda: len(seen) == 8)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert seen[3] == ("ADDED", "d")
    assert seen[4:6] == [(None, "a"), (None, "d")]
    assert sorted(seen[6:], key=str) == [("DELETED", "b"), ("DELETED", "c")]
    assert set(server.accepts) == {METADATA, METADATA_OF_LIST}


async def test_a_refused_watch_is_reported_until_it_works() -> None:
    server, failing, allowed = Server(), list[bool](), asyncio.Event()
    real = server.handle

    async def handle(request: web.Request) -> web.StreamResponse:
        if not allowed.is_set():
            return web.json_response({"message": "no right"}, status=403)
        return await real(request)

    server.handle = handle  # type: ignore[method-assign]
    async with served(server) as client:
        watcher = EventWatcher(
            client, "/api/v1/secrets", lambda *_: None, rng=Random(1), is_failing=failing.append
        )
        running = asyncio.create_task(watcher.run())
        try:
            await until(lambda: failing[:1] == [True])
            assert watcher.refused
            allowed.set()
            await until(lambda: not failing[-1])
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert (watcher.refused, watcher.synced) == (False, True)
