"""Errors as SGLang 0.5.23 writes them: each family of endpoints has a form of its own. Pure."""

from __future__ import annotations

from http import HTTPStatus

from evenkeel_simulator.server.bodies import BadRequest
from evenkeel_simulator.server.wire import encode, event


def error_body(message: str, *, kind: str, status: int) -> bytes:
    """SGLang's error on OpenAI endpoints: flat, not under `error`."""
    return encode(
        {"object": "error", "message": message, "type": kind, "param": None, "code": status}
    )


def openai_error(error: Exception, status: int) -> bytes:
    """Error of the OpenAI endpoints."""
    if isinstance(error, BadRequest):
        kind = HTTPStatus.BAD_REQUEST.phrase if error.by_schema else "BadRequestError"
    else:
        kind = HTTPStatus(status).name
    return error_body(str(error), kind=kind, status=status)


def responses_error(error: Exception, status: int) -> bytes:
    """Error of `/v1/responses`, with its details under `error`."""
    kind = "invalid_request_error" if status == 400 else HTTPStatus(status).name
    return encode({"error": {"message": str(error), "type": kind, "param": None, "code": status}})


def native_error(error: Exception, status: int) -> bytes:
    """Error of SGLang's own endpoints."""
    if isinstance(error, BadRequest) and error.by_schema:
        return openai_error(error, status)
    return encode({"error": {"message": str(error)}})


def anthropic_error(error: Exception, status: int) -> bytes:
    """Error of `/v1/messages`, with status 400 or 503."""
    kind = "invalid_request_error" if status == 400 else "overloaded_error"
    return encode({"type": "error", "error": {"type": kind, "message": str(error)}})


def native_error_event(message: str) -> bytes:
    """An invalid request to `/generate`, detected after the stream's headers were sent."""
    error = {"message": message, "type": "invalid_request_error", "code": 400, "retryable": False}
    return event({"error": error})
