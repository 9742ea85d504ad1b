"""An OTLP receiver over HTTP that keeps the spans it gets, as the protocol's own messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """What arrived."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Span] = []
        self.resources: list[dict[str, Any]] = []
        self.requests = 0
        self.answers = asyncio.Event()
        """While it is cleared, exports wait for their answers."""
        self.answers.set()

    def of(self, name: str) -> list[Span]:
        """All spans of this name."""
        return [span for span in self.spans if span.name == name]

    async def receive(self, request: web.Request) -> web.Response:
        """One export; aiohttp decompresses it."""
        self.requests += 1
        await self.answers.wait()
        message = ExportTraceServiceRequest.FromString(await request.read())
        for resource in message.resource_spans:
            self.resources.append(attributes(resource.resource))
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return web.Response(content_type="application/x-protobuf")


def attributes(of: Any) -> dict[str, Any]:
    """The attributes of a span or resource as plain values."""
    return {
        one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value")
        for one in of.attributes
    }


@asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    """A receiver at a free port."""
    kept = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", kept.receive)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        kept.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield kept
    finally:
        await runner.cleanup()
