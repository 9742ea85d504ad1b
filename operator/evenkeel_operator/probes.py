"""`/livez`, `/readyz` and `/metrics` of the operator.

A standby is ready too. The metric `evenkeel_operator_leader` shows which process leads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from evenkeel_operator import metrics


@asynccontextmanager
async def serving(host: str, port: int) -> AsyncIterator[int]:
    """Serve for the time of the context; the port that was taken."""
    app = web.Application()
    app.add_routes(
        [web.get("/livez", _fine), web.get("/readyz", _fine), web.get("/metrics", _metrics)]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def _fine(_: web.Request) -> web.Response:
    """An answer proves that the event loop runs. A failed pass is repeated, so it is no failure of the process."""
    return web.Response(text="ok\n")


async def _metrics(_: web.Request) -> web.Response:
    body = generate_latest(metrics.REGISTRY)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
