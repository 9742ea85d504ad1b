"""The page of errors: outcomes and statuses from the router's tables, codes from its source, causes from here."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import evenkeel_router
from evenkeel_router.api import errors, responses
from evenkeel_router.api.errors import Outcome
from evenkeel_router.request.own_answers import INTERNAL
from evenkeel_router.transport import client_request

from docs.generate.pages import code, page, table

_OUTCOMES: Final[Mapping[Outcome, str]] = {
    Outcome.INVALID_REQUEST: "the request is invalid, or the engine rejected it",
    Outcome.UNAUTHENTICATED: "no identity, or an unknown key",
    Outcome.FORBIDDEN: "an unknown tenant, or a key where a token is needed",
    Outcome.NOT_FOUND: "an unknown model, path or method",
    Outcome.TOO_LARGE: "the body exceeds `router.limits.maxBodySize`",
    Outcome.RATE_LIMITED: "a limit of the tenant or of the client",
    Outcome.CLIENT_GONE: "the client closed the connection; only logged",
    Outcome.REPLICA_FAILED: "every attempt failed",
    Outcome.UNAVAILABLE: "no replica can take the request in time",
    Outcome.TIMEOUT: "a replica took the request and sent nothing",
}
CAUSES: Final[Mapping[str, str]] = {
    "body_timeout": "below 20 KiB of the body in 20 s; status 408",
    "body_too_large": "the body is too large, compressed or not",
    "client_not_reading": "the client read nothing for `limits.idleTimeoutS`; only logged",
    "output_too_long": "the replica went on beyond the bound of the output",
    "context_length_exceeded": "the prompt is too long for the model",
    "draining": "the router is terminating",
    "duplicate_header": "more than one header identifies the client",
    "headers_too_large": "too many headers, or too long ones; status 431",
    "internal": "a fault of the router; status 500",
    "invalid_admin_token": "admin port: the token is missing or wrong",
    "invalid_api_key": "the key is unknown",
    "invalid_body": "the body does not match its headers",
    "invalid_content_type": "a transcription needs `multipart/form-data`; status 415",
    "invalid_digest": "admin port: the body is not a ledger digest",
    "invalid_form": "a form cannot be read",
    "invalid_header": "an identity header is invalid",
    "invalid_http": "not HTTP, or a control character in a header",
    "invalid_json": "the body is not JSON",
    "invalid_limits": "admin port: the body is invalid",
    "invalid_places": "admin port: the body is invalid",
    "invalid_recording": "admin port: the body is invalid",
    "invalid_type": "a field has a wrong type",
    "invalid_utf8": "the body is not UTF-8",
    "invalid_value": "a value is out of range, such as `max_tokens`",
    "max_buffered": "request bodies of the tenant use too much memory",
    "max_connections": "the router is full, and the tenant has most connections",
    "max_concurrent": "too many requests of the tenant or client in flight",
    "method_not_allowed": "the path takes other methods, which `Allow` names; status 405",
    "missing_api_key": "the request has no API key",
    "missing_required_parameter": "a required field is missing",
    "model_not_found": "the model or the adapter does not exist",
    "no_replica": "no replica could take the request in time",
    "overloaded": "too many requests or bytes in flight",
    "queue_timeout": "the request waited too long in the router's queue",
    "unknown_model": "console: no such model at this router, or not for this key",
    "unknown_service": "admin port, console: the router has no such service",
    "invalid_revocations": "admin port: the body is no list of revocations",
    "not_stored": "a revocation could not be stored; it may be in force here",
    "recording_not_allowed": "admin port: `spec.router.recording` is not set",
    "rejected_by_engine": "the engine rejected the request; its own status, such as 404",
    "replica_failed": "invalid answers, broken connections, or 5xx",
    "replica_timeout": "the replica sent nothing in time",
    "requests_per_minute": "the limit `requestsPerMinute` of the tenant",
    "response_not_stored": "a stored response was requested",
    "scaled_to_zero": "the service was scaled to zero by hand",
    "tenant_not_declared": "clients of undeclared tenants share an identity and have no keys",
    "token_required": "`/v1/keys` takes a token of an issuer, not a key",
    "too_many_keys": "the key of this number was revoked too often; use another number",
    "too_many_values": "the body has more values than a router reads",
    "tokens_per_minute": "the limit `tokensPerMinute` of the tenant",
    "unknown_key_id": "the client has no key of this id",
    "unknown_parameter": "a request for a key has a field other than `number`",
    "unknown_tenant": "the tenant does not exist",
    "unknown_host": "admin port without a token: `Host` is another name",
    "unknown_url": "the path is unknown",
    "unsupported_encoding": "a compression other than gzip or deflate; status 415",
    "unsupported_expectation": "`Expect` with another value than `100-continue`; status 417",
    "unsupported_http_version": "a version of HTTP other than 1.0 and 1.1; status 505",
    "unsupported_method": "no method of HTTP, or CONNECT; status 501",
    "unsupported_model": "the endpoint does not use adapters",
    "unsupported_parameter": "the field needs stored responses",
    "unsupported_transfer_encoding": "a transfer coding other than chunked; status 501",
    "url_too_long": "a path and query of more than 8190 bytes; status 414",
}
"""Code → its cause in a few words; a test compares the codes with those of the source."""
_CONSTANTS: Final = {
    "INTERNAL": INTERNAL,
    "INVALID_BODY": client_request.INVALID_BODY,
    "UNSUPPORTED": responses.UNSUPPORTED,
}


def pages() -> Iterator[tuple[str, str]]:
    """Path and text of the page."""
    outcomes = [
        (
            code(one.value),
            str(one.status),
            code(one.error_type),
            code(one.anthropic_type),
            cause,
        )
        for one, cause in _OUTCOMES.items()
    ]
    found = raised()
    listed = [
        (code(one.value), code(name), CAUSES.get(name, ""))
        for one in Outcome
        for name in sorted(found.get(one, ()))
    ]
    intro = (
        "Each error that a router answers, with its HTTP status and its cause. An outcome is the label "
        "`error_code` of `evenkeel_router_request_error_total` and the `outcome` of the request log. "
        "[Failures](../explanation/failures.md) has the behaviour behind each of them."
    )
    formats = (
        "The body is the error object of the API: Anthropic's below `/v1/messages`, OpenAI's elsewhere. "
        "OpenAI's object has the `code`; Anthropic's object has only `type` and `message`, and the code `context_length_exceeded`. After the first byte of a "
        "stream, the error is its last event."
    )
    retry = (
        "`Retry-After` is set on 429 and 503. For `requests_per_minute` and `tokens_per_minute` it is the time until "
        "the limit has room. It is 10 s for `scaled_to_zero`, and 1 s otherwise. A 401 has `WWW-Authenticate: Bearer` instead."
    )
    yield (
        "reference/errors.md",
        page(
            "Errors: 401, 429, 503 and their causes",
            intro,
            formats,
            "## Outcomes",
            table(
                ("outcome", "status", "OpenAI's `type`", "Anthropic's `type`", "cause"), outcomes
            ),
            retry,
            "## Codes",
            table(("outcome", "code", "cause"), listed),
        ),
    )


def raised() -> Mapping[Outcome, set[str]]:
    """Outcome → the codes that the router's source raises with it."""
    found: dict[Outcome, set[str]] = defaultdict(set)
    (folder,) = evenkeel_router.__path__
    for path in sorted(Path(folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                function = node.func.attr if isinstance(node.func, ast.Attribute) else ""
                _note(node, node.func.id if isinstance(node.func, ast.Name) else function, found)
    found[Outcome.INVALID_REQUEST] |= {errors.CONTEXT_LENGTH_EXCEEDED, errors.REJECTED}
    return found


def _note(call: ast.Call, function: str, found: Mapping[Outcome, set[str]]) -> None:
    given = next((word.value for word in call.keywords if word.arg == "code"), None)
    if isinstance(given, ast.Constant):
        name = str(given.value)
    elif isinstance(given, ast.Name) and given.id in _CONSTANTS:
        name = _CONSTANTS[given.id]
    else:
        return
    if function == "invalid":
        found[Outcome.INVALID_REQUEST].add(name)
    elif function == "_used_up":  # of a limit
        found[Outcome.RATE_LIMITED].add(name)
    elif function == "Refusal" and isinstance(call.args[0], ast.Attribute):
        found[Outcome[call.args[0].attr]].add(name)
