"""What the router answers without a replica: its health, its model, and requests that are not HTTP."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec
from evenkeel_contract.routerconfig import RouterConfig

from evenkeel_router.api.endpoints import MODELS
from evenkeel_router.api.errors import Outcome, Refusal, invalid
from evenkeel_router.transport.client_request import (
    CompleteReply,
    HttpSyntaxError,
    Request,
    TransferCodingError,
)

HEALTH: Final = "/health"
_READS: Final = ("GET", "HEAD")


def asks_health(request: Request, path: str) -> bool:
    """Whether a load balancer or a client asks if the router takes requests."""
    return path == HEALTH and request.method in _READS


def health(request: Request, *, draining: bool, in_sync: bool) -> CompleteReply:
    """Whether the router takes requests; no credentials. As `/readyz`."""
    status = "draining" if draining else "ok" if in_sync else "starting"
    body = msgspec.json.encode({"status": status})
    return CompleteReply(request, status=200 if status == "ok" else 503, body=body)


def asked_model(request: Request, path: str) -> str:
    """The name in a path below `MODELS`; empty for the list. Raises `Refusal`."""
    if not path.startswith(MODELS) or request.method not in _READS:
        message = f"Unknown URL: {request.method} {path[:200]}."
        raise Refusal(Outcome.NOT_FOUND, message, code="unknown_url")
    return path.removeprefix(MODELS).removeprefix("/")


def models(name: str, config: RouterConfig, *, started_unix: float) -> bytes:
    """What OpenAI's clients ask before anything else; raises `Refusal`."""
    model = {
        "id": config.model,
        "object": "model",
        "created": int(started_unix),
        "owned_by": config.namespace,
    }
    if name == "":
        return msgspec.json.encode({"object": "list", "data": [model]})
    if name in (config.model, config.model.replace("/", "%2F")):
        return msgspec.json.encode(model)
    message = f"The model {name[:200]!r} does not exist."
    raise Refusal(Outcome.NOT_FOUND, message, code="model_not_found", param="model")


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
