"""What the router answers itself: its health, its model, and the refusals of requests that get no replica's answer."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote

import msgspec
from evenkeel_contract.cellswire import CELL_TYPE, encode
from evenkeel_contract.routerconfig import RouterConfig
from multidict import istr

from evenkeel_router.api.cors import Cors
from evenkeel_router.api.endpoints import ENDPOINTS, MODELS, dialect_of
from evenkeel_router.api.errors import Outcome, Refusal, error_body, invalid
from evenkeel_router.ledger.federation import Federation
from evenkeel_router.request.console_page import DATA_HEADERS
from evenkeel_router.request.request_state import RequestState
from evenkeel_router.transport.client_request import CompleteReply, Request
from evenkeel_router.transport.request_head import (
    HttpSyntaxError,
    LargeHeadError,
    LongTargetError,
    TransferCodingError,
    UnknownMethodError,
    VersionError,
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


def cell(request: Request, federation: Federation) -> CompleteReply:
    """What this cell serves and is asked for (R21), for another cell that has the token."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not federation.admits(token.strip()):
        return CompleteReply(request, status=401, body=b"", content_type=CELL_TYPE)
    return CompleteReply(
        request,
        status=200,
        body=encode(federation.own),
        content_type=CELL_TYPE,
        headers=DATA_HEADERS,
    )


def asked_model(request: Request, path: str) -> str:
    """The name in a path below `MODELS`; empty for the list. Raises `Refusal`."""
    check_method(request, path)
    if not is_read(path) or path == HEALTH:
        raise unknown_url(request, path)
    return path.removeprefix(MODELS).removeprefix("/")


def unknown_url(request: Request, path: str) -> Refusal:
    """The refusal of a path that is not served."""
    message = f"Unknown URL: {request.method} {path[:200]}.{_hint(path)}"
    return Refusal(Outcome.NOT_FOUND, message, code="unknown_url")


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


def options(request_state: RequestState, request: Request, path: str) -> CompleteReply:
    """The answer to a question for the methods of a path (RFC 9110, section 9.3.7); raises `Refusal` for an unknown path."""
    methods = allowed(path)
    if not methods:
        raise unknown_url(request, path)
    return own(request_state, request, b"", headers=[("allow", methods)], close=False)


def cross_origin(request_state: RequestState, request: Request, cors: Cors) -> CompleteReply | None:
    """Set the answer's headers for a page of another origin; the answer to its browser's check (CORS)."""
    origin = request.headers.get(_ORIGIN)
    if origin is None:
        return None
    if request.method == "OPTIONS" and _PREFLIGHT in request.headers:
        return CompleteReply(request, status=200, body=b"", headers=cors.preflight(origin))
    request_state.more_headers = cors.headers(origin)
    return None


def not_http(error: HttpSyntaxError) -> Refusal:
    """The refusal of bytes that are not a request, with the status that RFC 9110 and 9112 name."""
    if isinstance(error, TransferCodingError):
        return Refusal(
            Outcome.INVALID_REQUEST,
            f"The transfer coding {str(error)[:40]!r} is not supported; use chunked or Content-Length.",
            code="unsupported_transfer_encoding",
            param="transfer-encoding",
            status=HTTPStatus.NOT_IMPLEMENTED,
        )
    if isinstance(error, UnknownMethodError):
        return Refusal(
            Outcome.INVALID_REQUEST,
            f"The method is not supported ({str(error)[:40]}); use GET or POST.",
            code="unsupported_method",
            status=HTTPStatus.NOT_IMPLEMENTED,
        )
    if isinstance(error, VersionError):
        return Refusal(
            Outcome.INVALID_REQUEST,
            f"HTTP/{str(error)[:8]} is not supported; use HTTP/1.1.",
            code="unsupported_http_version",
            status=HTTPStatus.HTTP_VERSION_NOT_SUPPORTED,
        )
    if isinstance(error, LongTargetError):
        return Refusal(
            Outcome.INVALID_REQUEST,
            "The path and the query are too long.",
            code="url_too_long",
            status=HTTPStatus.REQUEST_URI_TOO_LONG,
        )
    if isinstance(error, LargeHeadError):
        return Refusal(
            Outcome.INVALID_REQUEST,
            "The headers are too long, or there are too many.",
            code="headers_too_large",
            status=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        )
    message = "The request is not valid HTTP; check its request line and its headers."
    return invalid(message, code="invalid_http")


ALL_METHODS: Final = "GET, HEAD, POST, PUT, OPTIONS"


def known_target(target: str) -> tuple[str, str]:
    """A target and its path, as the table has them if only escapes or a slash at the end differ."""
    path, mark, query = target.partition("?")
    meant = (unquote(path) if "%" in path else path).rstrip("/")
    if meant in ENDPOINTS or meant in (MODELS, HEALTH):
        return f"{meant}{mark}{query}", meant
    return target, path


def allowed(path: str) -> str:
    """The methods of a path, as the header `Allow` has them; empty if there is no such path."""
    endpoint = ENDPOINTS.get(path)
    if endpoint is not None:
        return ", ".join((*endpoint.api.methods, "OPTIONS"))
    if path == "*":
        return ALL_METHODS
    return ", ".join((*_READS, "OPTIONS")) if is_read(path) else ""


def is_read(path: str) -> bool:
    """Whether the router answers reads of this path itself."""
    return path in (MODELS, HEALTH) or path.startswith(f"{MODELS}/")


def check_method(request: Request, path: str) -> None:
    """Raise `Refusal` if the path exists, but not with the method of the request."""
    methods = allowed(path)
    if methods and request.method not in methods.split(", "):
        raise Refusal(
            Outcome.INVALID_REQUEST,
            f"{path[:200]} takes {methods}, not {request.method}.",
            code="method_not_allowed",
            status=HTTPStatus.METHOD_NOT_ALLOWED,
            more=[("allow", methods)],
        )


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


def opening(model: str) -> Refusal:
    """The refusal for a model that was added a moment ago."""
    message = f"The router does not serve the model {model!r} yet. Send the request again."
    return Refusal(Outcome.UNAVAILABLE, message, code="no_replica", retry_after_s=RETRY_AFTER_S)


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


def failed_everywhere(why: str) -> Refusal:
    """The refusal of a request for which no replica is left to try. `why` the last one failed."""
    message = f"Every replica failed to answer the request; the last time, {why}."
    return Refusal(Outcome.REPLICA_FAILED, message, code="replica_failed")


def failed(attempts: int, replicas: int, why: str) -> Refusal:
    """The refusal of a request that has no attempt left, after so many attempts on so many different replicas."""
    where = "one replica" if replicas == 1 else f"{replicas} replicas"
    message = f"The request failed on {where}, {attempts} times; the last time, {why}."
    if attempts <= 1:
        message = f"The request failed: {why}."
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
