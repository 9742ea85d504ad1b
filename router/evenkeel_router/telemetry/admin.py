"""The probe port and the admin port.

Probes and metrics (8081) need no credentials, because kubelets and Prometheus send none. The state of tenants and
clients, and the ledger for other routers (8082), need a bearer token.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import IO, Final
from urllib.parse import unquote, urlsplit

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from evenkeel_contract import limitswire, placeswire
from evenkeel_contract.adminstate import (
    ACTIVATION_PATH,
    ACTIVATION_POLL_S,
    REPLICAS_PATH,
    SERVICE_QUERY,
    STATE_PATH,
    STATE_VERSION,
    ActivationState,
    encode_state,
)
from evenkeel_contract.consolestate import (
    HOUR_PATH,
    NOW_PATH,
    PAGE_PATH,
    REQUESTS_PATH,
    RUNBOOKS_PATH,
)
from evenkeel_contract.ledgerwire import (
    LEDGER_PATH,
    LedgerMessageError,
    decode_digest,
    encode,
    frame,
)
from evenkeel_contract.recording import (
    RECORDING_FILE_PATH,
    RECORDING_PATH,
    RecordingError,
    decode_start,
)
from evenkeel_contract.revocations import REVOCATIONS_PATH, RevocationsError
from evenkeel_contract.revocations import decode as decode_revocations
from evenkeel_contract.revocations import encode as encode_revocations
from evenkeel_contract.signedkeys import YEAR_S

from evenkeel_router.api.errors import Outcome, Refusal, error_body, invalid
from evenkeel_router.ledger.revocation_exchange import RevocationExchange
from evenkeel_router.request.console_page import DATA_HEADERS, HEADERS
from evenkeel_router.request.tenant_console import Asked
from evenkeel_router.slices import in_slices
from evenkeel_router.telemetry.exposition import CONTENT_TYPE, Lines
from evenkeel_router.telemetry.history import WHOLE_SERVICE
from evenkeel_router.telemetry.recent import seen
from evenkeel_router.telemetry.served import AllServed, Served
from evenkeel_router.telemetry.slices import Sender, SharedText, cut, send_pieces
from evenkeel_router.telemetry.snapshot import replicas_state, router_state

SERVED = web.AppKey("served", AllServed)
MAX_DIGEST_BYTES: Final = 64 * 1024 * 1024
BODY_TIMEOUT_S: Final = 60.0
METRICS = web.AppKey("metrics", SharedText)
SENDER = web.AppKey("sender", Sender)
REVOCATIONS = web.AppKey("revocations", RevocationExchange)
RENDERING = web.AppKey("rendering", asyncio.Lock)
"""One answer is built at a time: several would each take a slice in every pass of the loop."""
JSON: Final = "application/json"
PIECE_BYTES: Final = 256 * 1024
TO_PAGE: Final = ("/", PAGE_PATH.rstrip("/"))
"""Paths that are redirected to the console's page."""


def probe_app(served: AllServed, metrics: Callable[[], Lines]) -> web.Application:
    """`/livez`, `/readyz`, `/metrics`."""
    app = web.Application()
    app[SERVED], app[METRICS], app[SENDER] = served, SharedText(metrics), Sender()
    app.on_shutdown.append(_end_rendering)
    app.router.add_get("/livez", _live)
    app.router.add_get("/readyz", _ready)
    app.router.add_get("/metrics", _metrics)
    return app


def admin_app(served: AllServed, revocations: RevocationExchange) -> web.Application:
    """`/v1/state`, `/v1/replicas`, `/v1/activation`, `/v1/ledger`, `/v1/limits`, `/v1/places`, `/v1/revocations`,
    `/v1/recording` and the console, behind the admin token.

    The files of the console's page contain no data and need no token.
    """
    app = web.Application(middlewares=[_refusals, _token], client_max_size=MAX_DIGEST_BYTES)
    app[SERVED], app[RENDERING], app[REVOCATIONS] = served, asyncio.Lock(), revocations
    app.router.add_put(REVOCATIONS_PATH, _revoke)
    app.router.add_get(REVOCATIONS_PATH, _revocations)
    # Not POST: another site's page must not start a recording in the browser of a user who may reach this port.
    app.router.add_put(RECORDING_PATH, _start_recording)
    app.router.add_delete(RECORDING_PATH, _stop_recording)
    app.router.add_get(RECORDING_PATH, _recording)
    app.router.add_get(RECORDING_FILE_PATH, _recording_file)
    app.router.add_get(STATE_PATH, _state)
    app.router.add_get(REPLICAS_PATH, _replicas)
    app.router.add_get(ACTIVATION_PATH, _activation)
    app.on_shutdown.append(_answer_all)
    app.router.add_get(NOW_PATH, _console)
    app.router.add_get(HOUR_PATH, _console)
    app.router.add_get(REQUESTS_PATH, _console)
    app.router.add_get(RUNBOOKS_PATH + "{page:[a-z-]+}.md", _runbook)
    for path in TO_PAGE:
        app.router.add_get(path, _to_page)
    for path in served.files:
        app.router.add_get(path, _page)
    app.router.add_post(LEDGER_PATH, _ledger)
    app.router.add_post(limitswire.LIMITS_PATH, _limits)
    app.router.add_post(placeswire.PLACES_PATH, _places)
    return app


def _asked(request: web.Request) -> Served:
    """The service that a request asks about; raises `Refusal` where there is none."""
    service = request.query.get(SERVICE_QUERY, "")
    served = request.app[SERVED].named(service)
    if served is None:
        raise request.app[SERVED].unknown(service)
    return served


async def _live(request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _ready(request: web.Request) -> web.Response:
    """A router is ready without replicas: requests wait for one (design §6, scaling from zero)."""
    if request.app[SERVED].shared.intake.draining:
        return web.Response(status=503, text="The router is shutting down.\n")
    if not request.app[SERVED].look():
        return web.Response(status=503, text="The router has not discovered its replicas yet.\n")
    return web.Response(text="ok\n")


async def _metrics(request: web.Request) -> web.StreamResponse:
    return await request.app[SENDER].send(request, request.app[METRICS], CONTENT_TYPE)


async def _end_rendering(app: web.Application) -> None:
    await app[METRICS].close()


async def _state(request: web.Request) -> web.StreamResponse:
    served = request.app[SERVED]
    if served.several and SERVICE_QUERY not in request.query:
        every, shared = [one.rooms for one in served.services.values()], served.shared
    else:
        every, shared = [], _asked(request).rooms
    async with request.app[RENDERING]:
        now_s = asyncio.get_running_loop().time()
        found = []
        for rooms in (shared, *every):
            found.append((rooms, (await in_slices(seen(rooms, now_s)))[0]))
        (_, own), *services = found
        body, _ = await in_slices(router_state(shared, now_s, own, services=services))
    return await send_pieces(request, cut(body), JSON)


async def _replicas(request: web.Request) -> web.Response:
    now_s = asyncio.get_running_loop().time()
    async with request.app[RENDERING]:
        body, _ = await in_slices(replicas_state(_asked(request).rooms, now_s))
    return web.Response(body=body, content_type=JSON)


async def _revocations(request: web.Request) -> web.Response:
    """All revocations; 204 for a router that has them."""
    message = request.app[REVOCATIONS].message()
    known = request.query.get("router", ""), request.query.get("version", "")
    if known == (message.router, str(message.version)):
        return web.Response(status=204)
    return web.Response(body=encode_revocations(message), content_type=JSON)


async def _revoke(request: web.Request) -> web.Response:
    try:
        asked = decode_revocations(await request.read())
        signed = request.app[SERVED].shared.settings.config.tenancy.signed_keys
        given = asked.lasting(YEAR_S if signed is None else signed.max_lifetime_s)
        await request.app[REVOCATIONS].revoke(given, "an administrator")
    except RevocationsError as error:
        refusal = invalid(f"{error}.", code="invalid_revocations")
    except OSError as error:
        message = f"The keys are revoked at this router, but could not be stored: {error}. Send the request again."
        refusal = Refusal(Outcome.UNAVAILABLE, message, code="not_stored", retry_after_s=1)
    else:
        return web.Response(status=204)
    return web.Response(status=refusal.status, body=error_body(refusal), content_type=JSON)


async def _console(request: web.Request) -> web.StreamResponse:
    asked = Asked.of(request.query_string)
    body = await request.app[SERVED].answer(request.path, WHOLE_SERVICE, asked)
    return await send_pieces(request, cut(body), JSON, DATA_HEADERS)


async def _page(request: web.Request) -> web.Response:
    body, content_type = request.app[SERVED].files[request.path]
    return web.Response(body=body, headers=[("content-type", content_type), *HEADERS])


async def _runbook(request: web.Request) -> web.Response:
    """A page of the folder with the runbooks, where that is on this machine."""
    folder = urlsplit(request.app[SERVED].shared.settings.config.runbooks or "")
    path = Path(unquote(folder.path)) / f"{request.match_info['page']}.md"
    try:
        if folder.scheme != "file":
            raise FileNotFoundError
        text = await asyncio.to_thread(path.read_text, "utf-8")
    except OSError:
        raise web.HTTPNotFound(text="There is no such runbook.\n") from None
    return web.Response(
        text=text, headers=[("content-type", "text/plain; charset=utf-8"), *HEADERS]
    )


async def _to_page(request: web.Request) -> web.Response:
    raise web.HTTPFound(PAGE_PATH)


async def _activation(request: web.Request) -> web.Response:
    """Whether a request waits for a first replica. With `wanted`, the answer waits until it differs from that."""
    activation, known = _asked(request).rooms.replicas.activation, request.query.get("wanted")
    if known not in (None, "true", "false"):
        return _refused(
            invalid("wanted must be true or false.", code="invalid_value", param="wanted")
        )
    wanted = activation.wanted
    if known is not None:
        wanted = await activation.other_than(known == "true", ACTIVATION_POLL_S)
    answer = ActivationState(version=STATE_VERSION, wanted=wanted)
    return web.Response(body=encode_state(answer), content_type=JSON)


async def _answer_all(app: web.Application) -> None:
    """Long polls must not delay the shutdown."""
    for rooms in app[SERVED].all_rooms():
        rooms.replicas.activation.end()
        rooms.lending.end()


async def _body(request: web.Request) -> bytes:
    """The whole body of a request with the admin token."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(
            text=f"The body did not arrive within {BODY_TIMEOUT_S:g} s.\n"
        ) from None


async def _ledger(request: web.Request) -> web.StreamResponse:
    """The parts of the ledger that the other router lacks; requests are served between two parts."""
    try:
        has = decode_digest(await _body(request))
    except LedgerMessageError as error:
        return _refused(
            invalid(f"The body is not a ledger digest: {error}.", code="invalid_digest")
        )
    ledger = _asked(request).rooms.service_ledger.ledger
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    with suppress(ConnectionResetError):  # the other router ended, or waits no longer
        await response.prepare(request)
        for part in ledger.parts(has):
            await response.write(frame(encode(part)))
            await asyncio.sleep(0)
        await response.write_eof()
    return response


async def _limits(request: web.Request) -> web.Response:
    """Gives another router parts of tenants' limits."""
    try:
        ask = limitswire.decode_ask(await _body(request))
    except limitswire.LimitsMessageError as error:
        return _refused(invalid(f"The body is invalid: {error}.", code="invalid_limits"))
    parts = request.app[SERVED].shared.intake.limit_parts
    answer = parts.answer(ask, asyncio.get_running_loop().time())
    return web.Response(body=limitswire.encode(answer), content_type="application/octet-stream")


async def _places(request: web.Request) -> web.Response:
    """Lends another router places at engines. The answer waits until there is one."""
    try:
        ask = placeswire.decode_ask(await _body(request))
    except placeswire.PlacesMessageError as error:
        return _refused(invalid(f"The body is invalid: {error}.", code="invalid_places"))
    answer = await _asked(request).rooms.lending.answer(ask)
    return web.Response(body=placeswire.encode(answer), content_type="application/octet-stream")


async def _recording(request: web.Request) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(_asked(request).recorder.state()), content_type=JSON
    )


async def _start_recording(request: web.Request) -> web.Response:
    try:
        salt = decode_start(await _body(request))
    except RecordingError as error:
        return _refused(invalid(f"The body is invalid: {error}.", code="invalid_recording"))
    if not _asked(request).recorder.start(salt):
        message = "The configuration allows no recording; set spec.router.recording."
        return _refused(Refusal(Outcome.FORBIDDEN, message, code="recording_not_allowed"))
    return await _recording(request)


async def _stop_recording(request: web.Request) -> web.Response:
    _asked(request).recorder.stop()
    return await _recording(request)


async def _recording_file(request: web.Request) -> web.StreamResponse:
    """Both files, the older one first, while the recording continues."""
    recorder = _asked(request).recorder
    await recorder.flush()
    response = web.StreamResponse(headers={"Content-Type": "application/jsonl"})
    with ExitStack() as stack:
        files = await asyncio.to_thread(_open, recorder.paths(), stack)
        await response.prepare(request)
        for file in files:
            while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                await response.write(piece)
    await response.write_eof()
    return response


def _open(paths: Sequence[Path], stack: ExitStack) -> list[IO[bytes]]:
    """All at once: a rotation meanwhile moves names, not contents."""
    found: list[IO[bytes]] = []
    for path in paths:
        with suppress(OSError):
            found.append(stack.enter_context(path.open("rb")))
    return found


@web.middleware
async def _refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A refusal becomes an answer."""
    try:
        return await handler(request)
    except Refusal as refusal:
        return _refused(refusal)


@web.middleware
async def _token(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Hashes are compared, so that the duration of the comparison reveals nothing about the token."""
    if request.path in TO_PAGE or request.path in request.app[SERVED].files:
        return await handler(request)
    wanted = request.app[SERVED].shared.settings.config.admin_token_sha256
    if wanted is None:
        if not _is_local(request.host):
            message = "Use the address of this machine: http://127.0.0.1, http://localhost or http://[::1]."
            return _refused(Refusal(Outcome.FORBIDDEN, message, code="unknown_host"))
        return await handler(request)
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    digest = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).hexdigest()
    if scheme.lower() == "bearer" and hmac.compare_digest(digest, wanted):
        return await handler(request)
    message = "Send the admin token as 'Authorization: Bearer <token>'."
    return _refused(Refusal(Outcome.UNAUTHENTICATED, message, code="invalid_admin_token"))


def _is_local(host: str) -> bool:
    """Whether the header `Host` has an IP address or `localhost`.

    Without a token, a web page of another name must not read the port by pointing its name at this machine (DNS rebinding).
    """
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    try:
        return name.lower() == "localhost" or bool(ip_address(name))
    except ValueError:
        return False


def _refused(refusal: Refusal) -> web.Response:
    return web.Response(
        status=refusal.status,
        body=error_body(refusal),
        content_type=JSON,
        headers=dict(refusal.headers),
    )
