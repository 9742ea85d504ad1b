"""A proxy that only forwards: `python -m bench.router.bare_proxy --worker URL --worker URL`.

It is a reference: the cost of aiohttp and uvloop without any work of a router. It uses round robin and has no limits, no
metrics and no log. It passes streams on as they arrive.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable

import uvloop
from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

_MAX_BODY_BYTES = 16 * 1024 * 1024
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def forwarder(session: ClientSession, workers: list[str]) -> Handler:
    """The one handler."""
    turn = itertools.cycle(workers)

    async def forward(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        url = next(turn) + request.path_qs
        headers = {"content-type": request.headers.get("content-type", "application/json")}
        async with session.request(request.method, url, data=body, headers=headers) as upstream:
            content_type = upstream.headers.get("content-type", "application/json")
            if not content_type.startswith("text/event-stream"):
                return web.Response(
                    body=await upstream.read(),
                    status=upstream.status,
                    headers={"content-type": content_type},
                )
            response = web.StreamResponse(
                status=upstream.status, headers={"content-type": content_type}
            )
            await response.prepare(request)
            async for data in upstream.content.iter_any():
                await response.write(data)
            await response.write_eof()
            return response

    return forward


async def serve(port: int, workers: list[str]) -> None:
    """Serve on loopback until cancelled."""

    async def session_of(app: web.Application) -> AsyncIterator[None]:
        connector = TCPConnector(limit=0, keepalive_timeout=60)
        timeout = ClientTimeout(total=None)
        async with ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False
        ) as session:
            app.router.add_route("*", "/{path:.*}", forwarder(session, workers))
            yield

    app = web.Application(client_max_size=_MAX_BODY_BYTES)
    app.cleanup_ctx.append(session_of)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
    await asyncio.Event().wait()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--worker", action="append", required=True)
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.port, arguments.worker))


if __name__ == "__main__":
    main()
