"""Several services behind one address: the `model` of a request chooses the service, whose pipeline serves it.

    identify → read → model → service → its pipeline

What is refused before a service is chosen is counted here, under no model. The rest is the service's own: its limits of a request,
its replicas, its ledger, its figures. The tenants, what is in flight, and the memory of bodies are shared by all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.api.errors import invalid
from evenkeel_router.api.identity import Client, claims_of
from evenkeel_router.api.models import ModelTable
from evenkeel_router.api.named import Named, NotNamed, read_named
from evenkeel_router.ledger.totals import RequestTotals
from evenkeel_router.request import own_answers
from evenkeel_router.request.connection_holders import identified
from evenkeel_router.request.front import Front, RequestSink
from evenkeel_router.request.intake import Intake
from evenkeel_router.request.large_bodies import LargeBodies, is_large
from evenkeel_router.request.pipeline import Pipeline
from evenkeel_router.request.request_state import RequestState, RequestTracer, Step
from evenkeel_router.request.tenant_console import TenantConsole
from evenkeel_router.settings import Settings
from evenkeel_router.transport.client_request import (
    Answer,
    Request,
    read_body,
    whole_body,
    with_body,
)
from evenkeel_router.transport.downstream import yielding


@dataclass(slots=True)
class Pools:
    """The services behind the address, as they are at the moment."""

    table: ModelTable
    pipelines: Mapping[str, Pipeline]
    """Service → what serves its requests; a service that is being opened is missing."""
    in_sync: Callable[[], bool]
    """Whether the replicas of every service were known once."""
    chosen: dict[RequestState, Pipeline] = field(default_factory=dict)
    """The pipelines of the requests in flight."""


class Gateway(Front):
    """Answers every request of the traffic port of a router with several services."""

    def __init__(
        self,
        settings: Settings,
        intake: Intake,
        totals: RequestTotals,
        pools: Pools,
        *,
        large_bodies: LargeBodies,
        console: TenantConsole,
        tracer: RequestTracer,
        sink: RequestSink,
    ) -> None:
        super().__init__(intake, totals, console=console, tracer=tracer, sinks=(sink,))
        self._settings = settings
        self._pools = pools
        self._large_bodies = large_bodies

    async def infer(
        self, request_state: RequestState, request: Request, endpoint: Endpoint
    ) -> Answer:
        # 1. The sender: unknown ones cannot make the router hold a body.
        claims = claims_of(request.headers, request.connection.peer)
        client = request_state.client = identified(self._intake.directory, request, claims)
        # 2. The body, and the model that it names.
        if request_state.trace is not None:
            request_state.trace.step(Step.PARSE)
        memory = self._intake.body_memory.of(client.tenant_identity)
        limit_bytes = self._settings.config.limits.max_body_bytes
        body = whole_body(request, memory, limit_bytes)
        if body is None:
            timeout_s = self._settings.timing.body_timeout_s
            body = await read_body(request, memory, limit_bytes=limit_bytes, timeout_s=timeout_s)
        try:
            named = await self._named(request, endpoint, body, client)
            offer = self._pools.table.find(named.model, client.tenant)
            pipeline = self._pools.pipelines.get(offer.service)
            if pipeline is None:
                raise own_answers.opening(offer.name)
        finally:
            memory.release(len(body))
        # 3. The service takes the request as if it had come to it alone.
        self._pools.chosen[request_state] = pipeline
        with_body(request, named.body)
        return await pipeline.infer(request_state, request, endpoint)

    async def _named(
        self, request: Request, endpoint: Endpoint, body: bytes, client: Client
    ) -> Named:
        """The model that a body names; raises `Refusal`."""
        content_type = request.headers.get("Content-Type", "")
        renames = self._pools.table.renames
        if is_large(body):
            with yielding(request.connection):
                return await self._large_bodies.named(
                    endpoint, body, content_type, tenant=client.tenant_identity, renames=renames
                )
        try:
            return read_named(endpoint, body, content_type, renames)
        except NotNamed:
            endpoint.api.parse(body, self._intake.limits, content_type)  # says what is wrong
            raise invalid(
                "The body has no valid model.", code="invalid_type", param="model"
            ) from None

    def _models(self, name: str, client: Client) -> bytes:
        table = self._pools.table
        cards = table.cards(client.tenant, created=int(self._intake.started_unix))
        if name == "":
            return msgspec.json.encode({"object": "list", "data": cards})
        offer = table.find(name.replace("%2F", "/").replace("%3A", ":"), client.tenant)
        for card in cards:
            if card["id"] == offer.name:
                return msgspec.json.encode(card)
        return msgspec.json.encode({**cards[0], "id": offer.name, "parent": offer.parent})

    def _in_sync(self) -> bool:
        return self._pools.in_sync()

    def finish(self, request_state: RequestState) -> None:
        pipeline = self._pools.chosen.pop(request_state, None)
        if pipeline is not None:
            pipeline.finish(request_state)
            return
        if request_state.outcome is not None:
            totals = request_state.totals
            errors = self._totals.refused if totals is None else totals.errors
            errors[request_state.outcome] += 1
        for sink in self._sinks:
            sink(request_state, self._now() - request_state.started_s)
        if request_state.trace is not None:
            request_state.trace.ended(request_state)
