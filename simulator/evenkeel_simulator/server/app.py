"""The server as an aiohttp application, and as something a test or a command can run in its own process.

    async with running_server(Settings(model="m", port=0, reports_port=0)) as server:
        ...  # server.url, server.reports, server.kv_events, server.kv_replay

Router tests, `evenkeel demo` and benchmarks use it. It is the server that `python -m evenkeel_simulator.server` runs,
without the signal handlers.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from evenkeel_contract.heldpages import HeldPages
from evenkeel_contract.listening import addresses
from evenkeel_contract.promptfacts import facts_of
from evenkeel_contract.reportsport import SNAPSHOT_INTERVAL_S, Answers, AtMostEvery

from evenkeel_simulator.server import error_bodies, handlers, operations
from evenkeel_simulator.server.handlers import REPLICA
from evenkeel_simulator.server.kv_events import KvPublisher
from evenkeel_simulator.server.replica import Replica
from evenkeel_simulator.server.reports import ReportServer
from evenkeel_simulator.server.settings import Settings

REPORTS: Final = web.AppKey("reports", ReportServer)

ENGINE_TASK: Final = "engine"
"""Name of the task that drives the engine."""

_OPEN_PATHS: Final = ("/health", "/ready", "/metrics")
"""Paths that need no key: probes and scrapes carry none."""
_GRACE_S: Final = 5.0
"""How long a closing server waits for the last bytes of answers to leave."""


def make_app(settings: Settings) -> web.Application:
    """The application; its sockets and its engine live from startup to cleanup."""
    app = web.Application(
        middlewares=[_sglang_errors, _api_key(settings.api_key)],
        client_max_size=settings.max_body_bytes,
    )
    app.cleanup_ctx.append(_run_replica(settings))
    app.on_shutdown.append(_cut_off)
    app.add_routes(
        [
            web.post("/v1/completions", handlers.completions),
            web.post("/v1/chat/completions", handlers.chat_completions),
            web.post("/v1/responses", handlers.responses),
            web.post("/v1/messages", handlers.anthropic_messages),
            web.post("/v1/messages/count_tokens", handlers.count_tokens),
            web.post("/v1/embeddings", handlers.embeddings),
            web.post("/v1/classify", handlers.classify),
            web.post("/v1/score", handlers.score),
            web.post("/v1/rerank", handlers.rerank),
            web.put("/v1/rerank", handlers.rerank),
            web.post("/rerank", handlers.ranking),
            web.post("/v2/rerank", handlers.ranking),
            web.post("/tokenize", handlers.tokenize),
            web.post("/v1/tokenize", handlers.tokenize),
            web.post("/detokenize", handlers.detokenize),
            web.post("/v1/detokenize", handlers.detokenize),
            web.post("/generate", handlers.generate),
            web.put("/generate", handlers.generate),
            web.get("/v1/models", operations.models),
            web.get("/v1/models/{model:.+}", operations.model),
            web.get("/model_info", operations.model_info),
            web.get("/get_model_info", operations.model_info),
            web.get("/server_info", operations.server_info),
            web.get("/get_server_info", operations.server_info),
            web.get("/v1/loads", operations.loads),
            web.get("/ready", operations.ready),
            web.get("/health", operations.health),
            web.get("/health_generate", operations.health),
            web.get("/metrics", operations.metrics),
            web.get("/flush_cache", operations.flush_cache),
            web.post("/flush_cache", operations.flush_cache),
            web.post("/abort_request", operations.abort_request),
            web.post("/pause_generation", operations.pause_generation),
            web.post("/continue_generation", operations.continue_generation),
        ]
    )
    return app


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """Where a running replica is to be found."""

    replica: Replica
    url: str
    """`http://host:port`."""
    reports: str | None
    """`tcp://host:port`, here and below; None where it is not served."""
    kv_events: str | None
    kv_replay: str | None

    @property
    def incarnation(self) -> str:
        """Incarnation of the replica's reports."""
        return self.replica.settings.incarnation


@asynccontextmanager
async def running_server(settings: Settings) -> AsyncIterator[RunningServer]:
    """Serve until the block ends; then requests still running are cut off, as if the process were killed.

    Raises `OSError` or `zmq.ZMQError` if a port is taken.
    """
    app = make_app(settings)
    # Without cancellation a handler would not learn that its client is gone before it writes.
    runner = web.AppRunner(
        app, handler_cancellation=True, access_log=None, shutdown_timeout=_GRACE_S
    )
    await runner.setup()
    try:
        for address in addresses(settings.host):
            await web.TCPSite(runner, address, settings.port).start()
        yield _describe(app, runner.addresses[0][1])
    finally:
        await runner.cleanup()


def _describe(app: web.Application, port: int) -> RunningServer:
    replica = app[REPLICA]
    host = replica.settings.host
    host = f"[{host}]" if ":" in host else host
    publisher = replica.publisher
    reports = app.get(REPORTS)
    return RunningServer(
        replica=replica,
        url=f"http://{host}:{port}",
        reports=f"tcp://{host}:{reports.port}" if reports else None,
        kv_events=f"tcp://{host}:{publisher.port}" if publisher else None,
        kv_replay=f"tcp://{host}:{publisher.replay_port}" if publisher else None,
    )


def _run_replica(settings: Settings) -> Callable[[web.Application], AsyncIterator[None]]:
    async def context(app: web.Application) -> AsyncIterator[None]:
        replica = app[REPLICA] = Replica(settings)
        pages = HeldPages()
        async with AsyncExitStack() as stack:
            if settings.kv_events_port is not None:
                replica.publisher = KvPublisher(
                    host=settings.host,
                    port=settings.kv_events_port,
                    replay_port=settings.kv_replay_port,
                    kept_batches=settings.kv_kept_batches,
                    pages=pages,
                )
                stack.push_async_callback(replica.publisher.close)
            if settings.reports_port is not None:
                facts = facts_of({}, page_tokens=settings.page_size, simulated=True)
                app[REPORTS] = ReportServer(
                    Answers(
                        book=replica.book,
                        refresh=AtMostEvery(
                            SNAPSHOT_INTERVAL_S, replica.refresh_reports, clock=time.monotonic
                        ),
                        prompts=lambda: facts,
                        pages=pages,
                    ),
                    refused=replica.metrics.question_refused,
                    host=settings.host,
                    port=settings.reports_port,
                )
                stack.push_async_callback(app[REPORTS].close)
            loop = asyncio.create_task(replica.driver.run(), name=ENGINE_TASK)
            yield
            loop.cancel()
            with suppress(asyncio.CancelledError):
                await loop  # raises what the loop died of, if it did

    return context


async def _cut_off(app: web.Application) -> None:
    """A server that closes waits for no request: drain it first where that is wanted."""
    app[REPLICA].cut_off()


# Middlewares, outermost first


@web.middleware
async def _sglang_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors that no handler answers, in the words of FastAPI and SGLang."""
    try:
        return await handler(request)
    except web.HTTPRequestEntityTooLarge:
        phrase = HTTPStatus.REQUEST_ENTITY_TOO_LARGE.phrase
        limit = request.app[REPLICA].settings.max_body_bytes
        body = error_bodies.error_body(
            f"the body has more than {limit} bytes", kind=phrase, status=413
        )
        return web.Response(body=body, status=413, content_type="application/json")
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
        detail = {"detail": HTTPStatus(error.status).phrase}
        return web.json_response(detail, status=error.status)


def _api_key(api_key: str | None) -> Middleware:
    expected = None if api_key is None else api_key.encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if expected is None or request.path.startswith(_OPEN_PATHS):
            return await handler(request)
        scheme, _, shown = request.headers.get("Authorization", "").partition(" ")
        # Headers may hold bytes that are not UTF-8; they come as lone surrogates.
        if scheme.lower() == "bearer" and secrets.compare_digest(
            shown.encode(errors="surrogateescape"), expected
        ):
            return await handler(request)
        return web.json_response({"error": "Unauthorized"}, status=401)

    return check
