"""Engines that know nothing of Evenkeel: the simulated replica without its reports, and with the paths of another server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Handler
from evenkeel_contract.routerconfig import ReplicaConfig
from evenkeel_simulator.server.app import make_app
from evenkeel_simulator.server.handlers import REPLICA
from evenkeel_simulator.server.replica import Replica
from evenkeel_simulator.server.settings import Settings

VLLM_LACKS = ("/ready", "/server_info", "/v1/loads", "/generate")


@dataclass
class PlainEngine:
    """One engine."""

    app: web.Application
    missing: Collection[str]
    """Paths that it answers with 404."""
    port: int = 0
    started_s: float | None = None
    """The start of its process in `/metrics`."""
    failing: bool = False
    failing_status: int = 503
    """Every GET is answered with 503."""
    asked: list[str] = field(default_factory=list)
    """Paths of all requests."""

    @property
    def replica(self) -> Replica:
        return self.app[REPLICA]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def config(self, name: str) -> ReplicaConfig:
        """How a router is told of it."""
        return ReplicaConfig(name=name, url=self.url)

    async def answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.asked.append(request.path)
        if request.path in self.missing:
            return web.json_response({"detail": "Not Found"}, status=404)
        if self.failing and request.method == "GET":
            return web.Response(status=self.failing_status)
        if request.path == "/metrics" and self.started_s is not None:
            return web.Response(text=f"process_start_time_seconds {self.started_s!r}\n")
        return await handler(request)


@asynccontextmanager
async def plain_engine(
    settings: Settings, *, missing: Collection[str] = VLLM_LACKS, port: int = 0
) -> AsyncIterator[PlainEngine]:
    """Serve until the block ends; then requests that run are cut off, as if the process were killed."""
    engine = PlainEngine(make_app(settings), missing)

    @web.middleware
    async def as_another_server(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await engine.answer(request, handler)

    engine.app.middlewares.insert(0, as_another_server)
    runner = web.AppRunner(
        engine.app, handler_cancellation=True, access_log=None, shutdown_timeout=5.0
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        engine.port = runner.addresses[0][1]
        yield engine
    finally:
        await runner.cleanup()
