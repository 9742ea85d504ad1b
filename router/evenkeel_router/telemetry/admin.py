"""The probe port and the admin port.

Place in the flow: beside the way of requests. Probes and metrics (8081) are open, as a kubelet and a scraper
want them; the state of tenants and clients, and the ledger for peers (8082), ask for a bearer token.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler
from evenkeel_contract.adminstate import (
    ACTIVATION_PATH,
    ACTIVATION_POLL_S,
    REPLICAS_PATH,
    STATE_PATH,
    STATE_VERSION,
    ActivationState,
    encode_state,
)
from evenkeel_contract.ledgerwire import (
    LEDGER_PATH,
    LedgerMessageError,
    decode_digest,
    encode,
    frame,
)
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from evenkeel_router.api.errors import Refusal, error_body, invalid
from evenkeel_router.api.outcomes import Outcome
from evenkeel_router.ledger.exchange import digest_from_wire, to_wire
from evenkeel_router.telemetry.rooms import Rooms
from evenkeel_router.telemetry.snapshot import take, take_replicas

ROOMS = web.AppKey("rooms", Rooms)
MAX_DIGEST_BYTES: Final = 64 * 1024 * 1024
METRICS = web.AppKey("metrics", CollectorRegistry)


def probe_app(rooms: Rooms, metrics: CollectorRegistry) -> web.Application:
    """`/livez`, `/readyz`, `/metrics`."""
    app = web.Application()
    app[ROOMS], app[METRICS] = rooms, metrics
    app.router.add_get("/livez", _live)
    app.router.add_get("/readyz", _ready)
    app.router.add_get("/metrics", _metrics)
    return app


def admin_app(rooms: Rooms) -> web.Application:
    """`/v1/state`, `/v1/replicas`, `/v1/activation` and `/v1/ledger`, behind the admin token."""
    app = web.Application(middlewares=[_token], client_max_size=MAX_DIGEST_BYTES)
    app[ROOMS] = rooms
    app.router.add_get(STATE_PATH, _state)
    app.router.add_get(REPLICAS_PATH, _replicas)
    app.router.add_get(ACTIVATION_PATH, _activation)
    app.on_shutdown.append(_answer_all)
    app.router.add_post(LEDGER_PATH, _ledger)
    return app


async def _live(request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _ready(request: web.Request) -> web.Response:
    """Ready without replicas: requests are held for a while (design §6, scaling from zero)."""
    if request.app[ROOMS].intake.draining:
        return web.Response(status=503, text="draining\n")
    if not request.app[ROOMS].replicas.in_sync:
        return web.Response(status=503, text="not in sync: replicas are not known yet\n")
    return web.Response(text="ok\n")


async def _metrics(request: web.Request) -> web.Response:
    body = generate_latest(request.app[METRICS])
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _state(request: web.Request) -> web.Response:
    state = take(request.app[ROOMS], asyncio.get_running_loop().time())
    return web.Response(body=encode_state(state), content_type="application/json")


async def _replicas(request: web.Request) -> web.Response:
    replicas = take_replicas(request.app[ROOMS], asyncio.get_running_loop().time())
    return web.Response(body=encode_state(replicas), content_type="application/json")


async def _activation(request: web.Request) -> web.Response:
    """Whether a first replica is wanted: at once, or when it is not as the one who asks knows it."""
    activation, known = request.app[ROOMS].replicas.activation, request.query.get("wanted")
    if known not in (None, "true", "false"):
        refusal = invalid("wanted must be true or false.", code="invalid_value", param="wanted")
        return web.Response(
            status=refusal.status, body=error_body(refusal), content_type="application/json"
        )
    wanted = activation.wanted
    if known is not None:
        wanted = await activation.other_than(known == "true", ACTIVATION_POLL_S)
    answer = ActivationState(version=STATE_VERSION, wanted=wanted)
    return web.Response(body=encode_state(answer), content_type="application/json")


async def _answer_all(app: web.Application) -> None:
    """Nobody's long poll holds up the end."""
    app[ROOMS].replicas.activation.end()


async def _ledger(request: web.Request) -> web.StreamResponse:
    """What a peer lacks, in parts; requests are served in between."""
    try:
        has = digest_from_wire(decode_digest(await request.read()))
    except LedgerMessageError as error:
        refusal = invalid(f"The body is no digest: {error}.", code="invalid_digest")
        return web.Response(
            status=refusal.status, body=error_body(refusal), content_type="application/json"
        )
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    await response.prepare(request)
    for part in request.app[ROOMS].service_ledger.ledger.parts(has):
        await response.write(frame(encode(to_wire(part))))
        await asyncio.sleep(0)
    await response.write_eof()
    return response


@web.middleware
async def _token(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Compares hashes, so that how long it takes says nothing about the token."""
    wanted = request.app[ROOMS].settings.config.admin_token_sha256
    if wanted is None:
        return await handler(request)
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    digest = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).hexdigest()
    if scheme.lower() == "bearer" and hmac.compare_digest(digest, wanted):
        return await handler(request)
    refusal = Refusal(
        Outcome.UNAUTHENTICATED,
        "Send the admin token as 'Authorization: Bearer <token>'.",
        code="invalid_admin_token",
    )
    return web.Response(
        status=refusal.status, body=error_body(refusal), content_type="application/json"
    )
