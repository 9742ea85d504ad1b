"""What the router answers itself: its health, its model, and the refusals of requests that get no replica's answer."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

import msgspec
from evenkeel_contract.routerconfig import RouterConfig
from multidict import istr

from evenkeel_router.api.cors import Cors
from evenkeel_router.api.endpoints import ENDPOINTS, MODELS, dialect_of
from evenkeel_router.api.errors import Outcome, Refusal, error_body, invalid
from evenkeel_router.request.request_state import RequestState
from evenkeel_router.transport.client_request import (
    CompleteReply,
    HttpSyntaxError,
    Request,
    TransferCodingError,
)

HEALTH: Final = "/health"
_READS: Final = ("GET", "HEAD")
_ORIGIN: Final = istr("Origin")
_PREFLIGHT: Final = istr("Access-Control-Request-Method")
INTERNAL: Final = "internal"
"""The code and the metrics' label of a fault of the router, which is none of the outcomes."""


def asks_health(request: Request, path: str) -> bool:
    """Whether a load balancer or a client asks if the router takes requests."""
    return path == HEALTH and request.method in _READS


def health(request: Request, *, draining: bool, in_sync: bool) -> CompleteReply:
    """The answer of `/health`: whether the router takes requests, like `/readyz`; no credentials."""
    status = "draining" if draining else "ok" if in_sync else "starting"
    body = msgspec.json.encode({"status": status})
    return CompleteReply(request, status=200 if status == "ok" else 503, body=body)


def asked_model(request: Request, path: str) -> str:
    """The name in a path below `MODELS`; empty for the list. Raises `Refusal`."""
    if not path.startswith(MODELS) or request.method not in _READS:
        message = f"Unknown URL: {request.method} {path[:200]}.{_hint(path)}"
        raise Refusal(Outcome.NOT_FOUND, message, code="unknown_url")
    return path.removeprefix(MODELS).removeprefix("/")


def _hint(path: str) -> str:
    """What the client probably meant: its base URL lacks `/v1`, or repeats it."""
    bare = "/v1" + path.removeprefix("/v1").removeprefix("/v1")
    known = bare != path and (bare in ENDPOINTS or bare.startswith(MODELS))
    return f" Did you mean {bare[:200]}? Check the client's base URL." if known else ""


def models(name: str, config: RouterConfig, *, started_unix: float) -> bytes:
    """What OpenAI's clients ask before anything else; raises `Refusal`."""
    base = {"object": "model", "created": int(started_unix), "owned_by": config.namespace}
    cards = [base | {"id": one} for one in (config.model, *config.model_aliases)]
    cards += [base | {"id": one, "parent": config.model} for one in config.adapters]
    if name == "":
        return msgspec.json.encode({"object": "list", "data": cards})
    for card in cards:
        known = str(card["id"])
        if name.replace("%2F", "/").replace("%3A", ":") in (known, f"{config.model}:{known}"):
            return msgspec.json.encode(card)
    message = f"The model {name[:200]!r} does not exist."
    raise Refusal(Outcome.NOT_FOUND, message, code="model_not_found", param="model")


def own(
    request_state: RequestState,
    request: Request,
    body: bytes,
    *,
    status: int = 200,
    headers: Sequence[tuple[str, str]] = (),
    close: bool,
) -> CompleteReply:
    """An answer in JSON, with the headers that every answer to the request has."""
    request_state.status = status
    headers = (*request_state.reply_headers(), *headers)
    return CompleteReply(request, status=status, body=body, headers=headers, close=close)


def refused(
    request_state: RequestState, request: Request, refusal: Refusal, *, close: bool
) -> CompleteReply:
    """The answer to a refused request."""
    request_state.outcome = refusal.outcome
    return own(
        request_state,
        request,
        error_body(refusal, dialect_of(request.path)),
        status=refusal.status,
        headers=refusal.headers,
        close=close,
    )


def failed_here(request_state: RequestState, request: Request) -> CompleteReply:
    """The answer to a request in which the router failed."""
    refusal = Refusal(Outcome.REPLICA_FAILED, "Internal error of the router.", code=INTERNAL)
    body = error_body(refusal, dialect_of(request.path))
    return own(request_state, request, body, status=500, close=True)


def cross_origin(request_state: RequestState, request: Request, cors: Cors) -> CompleteReply | None:
    """Set the answer's headers for a page of another origin; the answer to its browser's check (CORS)."""
    origin = request.headers.get(_ORIGIN)
    if origin is None:
        return None
    if request.method == "OPTIONS" and _PREFLIGHT in request.headers:
        return CompleteReply(request, status=200, body=b"", headers=cors.preflight(origin))
    request_state.cors = cors.headers(origin)
    return None


def not_http(error: HttpSyntaxError) -> Refusal:
    """The refusal of bytes that are not a request."""
    if isinstance(error, TransferCodingError):
        return Refusal(
            Outcome.INVALID_REQUEST,
            f"The transfer coding {str(error)[:40]!r} is not supported; use chunked or Content-Length.",
            code="unsupported_transfer_encoding",
            param="transfer-encoding",
            status=HTTPStatus.NOT_IMPLEMENTED,
        )
    message = "The request is not valid HTTP; check its request line and its headers."
    return invalid(message, code="invalid_http")


RETRY_AFTER_S: Final = 1.0
AT_ZERO_RETRY_AFTER_S: Final = 10.0
"""People, or an autoscaler that looks every 15 s, decide when a service leaves zero."""


def retry_after_s(given: str) -> float:
    """What a replica says about when to come again, seconds; its other format, a date, counts as the router's own."""
    seconds = given.strip()
    return float(min(int(seconds), 3600)) if seconds.isdecimal() else RETRY_AFTER_S


def shutting_down() -> Refusal:
    """The refusal of a router that drains."""
    message = "The router is shutting down. Send the request again."
    return Refusal(Outcome.UNAVAILABLE, message, code="draining", retry_after_s=RETRY_AFTER_S)


def no_connection(why: str) -> Refusal:
    """The refusal at the router's own limit of connections."""
    message = f"The router can open no more connections: {why}."
    return Refusal(Outcome.UNAVAILABLE, message, code="overloaded", retry_after_s=RETRY_AFTER_S)


def scaled_to_zero() -> Refusal:
    """The refusal of a service that was scaled to zero by hand."""
    message = "The service is scaled to zero replicas, and requests do not start one."
    return Refusal(
        Outcome.UNAVAILABLE, message, code="scaled_to_zero", retry_after_s=AT_ZERO_RETRY_AFTER_S
    )


def no_replica(why: str, waited_s: float, *, at_zero: bool) -> Refusal:
    """The refusal of a request for which no replica was routable within its time."""
    if at_zero:
        message = (
            f"The service was at zero replicas, and none was ready within {waited_s:g} s: {why}."
        )
    else:
        message = f"No replica was ready within {waited_s:g} s: {why}."
    return Refusal(Outcome.UNAVAILABLE, message, code="no_replica", retry_after_s=RETRY_AFTER_S)


def not_admitted(waited_s: float) -> Refusal:
    """The refusal of a request whose turn at the gate did not come within its time."""
    message = f"The replicas were busy for {waited_s:g} s, and the request could not start."
    return Refusal(Outcome.UNAVAILABLE, message, code="queue_timeout", retry_after_s=RETRY_AFTER_S)


def failed_everywhere() -> Refusal:
    """The refusal of a request for which no replica is left to try."""
    message = "Every replica failed to answer the request."
    return Refusal(Outcome.REPLICA_FAILED, message, code="replica_failed")


def failed(attempts: int, why: str) -> Refusal:
    """The refusal of a request that has no attempt left."""
    message = f"The request failed on {attempts} replicas; on the last, {why}."
    return Refusal(Outcome.REPLICA_FAILED, message, code="replica_failed")


def broken_off(why: str) -> Refusal:
    """The error of a stream in whose middle the replica failed."""
    message = f"The stream broke off: {why}."
    return Refusal(Outcome.REPLICA_FAILED, message, code="replica_failed")


def silent(message: str) -> Refusal:
    """The refusal of a request whose replica took longer than it may."""
    return Refusal(Outcome.TIMEOUT, message, code="replica_timeout")


def not_reading(idle_s: float) -> Refusal:
    """The error of a client that does not read its answer."""
    message = f"The client read nothing for {idle_s:g} s."
    return Refusal(Outcome.CLIENT_GONE, message, code="client_not_reading")
