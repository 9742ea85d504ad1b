"""Several services behind one address: the `model` of a request chooses the service, whose pipeline serves it.

    identify → read → model → service → its pipeline; then its fallbacks

What is refused before a service is chosen is counted here, under no model. The rest is the service's own: its limits of a request,
its replicas, its ledger, its figures. The tenants, what is in flight, and the memory of bodies are shared by all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
from evenkeel_contract.names import FALLBACK_HEADER, MODEL_HEADER
from evenkeel_fairshare.fleet.contract import NOTHING
from multidict import istr

from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.api.errors import Refusal, invalid
from evenkeel_router.api.identity import Client
from evenkeel_router.api.models import ModelTable, Offer
from evenkeel_router.api.named import Named, NotNamed, read_named
from evenkeel_router.ledger.key_sets import KeySetReader
from evenkeel_router.ledger.totals import RequestTotals
from evenkeel_router.request import own_answers
from evenkeel_router.request.connection_holders import identified
from evenkeel_router.request.front import Front, RequestSink
from evenkeel_router.request.intake import Intake
from evenkeel_router.request.large_bodies import LargeBodies, is_large
from evenkeel_router.request.pipeline import Pipeline
from evenkeel_router.request.request_state import RequestState, RequestTracer, Step
from evenkeel_router.settings import Settings
from evenkeel_router.transport.client_request import (
    Answer,
    Aside,
    Request,
    read_body,
    whole_body,
    with_body,
)
from evenkeel_router.transport.downstream import yielding

FALLS_BACK: Final = frozenset({"no_replica", "scaled_to_zero", "queue_timeout", "replica_failed"})
"""Codes of refusals after which another model may serve: the model has no replica, is overloaded, or fails."""
_FALLBACK: Final = istr(FALLBACK_HEADER)


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
    fallen_back: dict[tuple[str, str], int] = field(default_factory=dict)
    """(model that a request named, model that served it) → requests."""


@dataclass(frozen=True, slots=True)
class _Way:
    """A request on its way to one of the models."""

    request_state: RequestState
    request: Request
    endpoint: Endpoint
    offer: Offer
    body: bytes


def _is_unanswered(request_state: RequestState, refusal: Refusal) -> bool:
    """Whether the client was sent nothing, so that another model may begin; what the first one left is forgotten then."""
    heartbeat = request_state.heartbeat
    if heartbeat is not None and heartbeat.stream.started:
        return False
    if heartbeat is not None:
        heartbeat.end(refusal)
    request_state.heartbeat = request_state.ticket = None
    request_state.attempts, request_state.replica = 0, ""
    request_state.usage, request_state.charged = None, NOTHING
    return True


class Gateway(Front):
    """Answers every request of the traffic port of a router with several services."""

    def __init__(  # noqa: PLR0913 - each is one object of the router
        self,
        settings: Settings,
        intake: Intake,
        totals: RequestTotals,
        pools: Pools,
        *,
        large_bodies: LargeBodies,
        asides: Sequence[Aside],
        key_sets: KeySetReader,
        tracer: RequestTracer,
        sink: RequestSink,
    ) -> None:
        super().__init__(
            intake, totals, asides=asides, key_sets=key_sets, tracer=tracer, sinks=(sink,)
        )
        self._settings = settings
        self._pools = pools
        self._large_bodies = large_bodies

    async def infer(
        self, request_state: RequestState, request: Request, endpoint: Endpoint
    ) -> Answer:
        # 1. The sender: unknown ones cannot make the router hold a body.
        directory = self._intake.directory
        claims = directory.claims_of(request.headers, request.connection.peer)
        client = request_state.client = identified(directory, request, claims)
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
            if offer.service not in self._pools.pipelines:
                raise own_answers.opening(offer.name)
        finally:
            memory.release(len(body))
        # 3. The service takes the request as if it had come to it alone; if it cannot, the next of its fallbacks does.
        way = _Way(request_state, request, endpoint, offer, named.body)
        for fallback in self._fallbacks(request, offer, client):
            try:
                if not self._pools.pipelines[way.offer.service].is_gone:
                    return await self._served(way)
            except Refusal as refusal:
                if refusal.code not in FALLS_BACK or not _is_unanswered(request_state, refusal):
                    raise
            way = await self._other(way, fallback, client)
        return await self._served(way)

    async def _served(self, way: _Way) -> Answer:
        """The answer of a service; raises `Refusal`."""
        pipeline = self._pools.pipelines.get(way.offer.service)
        if pipeline is None:
            raise own_answers.opening(way.offer.name)
        self._pools.chosen[way.request_state] = pipeline
        with_body(way.request, way.body)
        return await pipeline.infer(way.request_state, way.request, way.endpoint)

    def _fallbacks(self, request: Request, offer: Offer, client: Client) -> Sequence[Offer]:
        """The models that may serve in place of another one."""
        table = self._pools.table
        found = table.fallbacks(offer, client.tenant)
        if found and request.headers.get(_FALLBACK, "").strip().lower() == "none":
            return ()
        return [one for one in found if one.service in self._pools.pipelines]

    async def _other(self, way: _Way, to: Offer, client: Client) -> _Way:
        """The way to another model. The answer says which one it is."""
        request, state = way.request, way.request_state
        key = (way.offer.name, to.name)
        self._pools.fallen_back[key] = self._pools.fallen_back.get(key, 0) + 1
        headers = [one for one in state.more_headers if one[0] != MODEL_HEADER]
        state.more_headers = (*headers, (MODEL_HEADER, to.name))
        renames = {way.offer.served: to.served}
        named = await self._read(request, way.endpoint, way.body, client, renames)
        return replace(way, offer=to, body=named.body)

    async def _named(
        self, request: Request, endpoint: Endpoint, body: bytes, client: Client
    ) -> Named:
        """The model that a body names; raises `Refusal`."""
        try:
            return await self._read(request, endpoint, body, client, self._pools.table.renames)
        except NotNamed:
            content_type = request.headers.get("Content-Type", "")
            endpoint.api.parse(body, self._intake.limits, content_type)  # says what is wrong
            message = "The body has no valid model."
            raise invalid(message, code="invalid_type", param="model") from None

    async def _read(  # noqa: PLR0917 - one request, and what to replace
        self,
        request: Request,
        endpoint: Endpoint,
        body: bytes,
        client: Client,
        renames: Mapping[str, str],
    ) -> Named:
        """A body and its model, beside the loop if it is large; raises `NotNamed`, `Refusal`."""
        content_type = request.headers.get("Content-Type", "")
        if not is_large(body):
            return read_named(endpoint, body, content_type, renames)
        with yielding(request.connection):
            return await self._large_bodies.named(
                endpoint, body, content_type, tenant=client.tenant_identity, renames=renames
            )

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
            if totals is not None:
                totals.ended_as(request_state.outcome.value, self._now())
        for sink in self._sinks:
            sink(request_state, self._now() - request_state.started_s)
        if request_state.trace is not None:
            request_state.trace.ended(request_state)
