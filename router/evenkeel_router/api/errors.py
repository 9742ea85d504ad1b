"""How a request can fail, and what the client receives: the error object of the API, so that its clients raise their own exceptions.

That is Anthropic's on `/v1/messages`, and OpenAI's elsewhere. Each of ten outcomes has a status, an error type and a metric label. The `code` in the body is finer; docs/reference/errors.md lists
the codes. A replica's 4xx gets the same format: SGLang has two of its own, and no code for a prompt that is too long, which
is recognised by its message.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from enum import Enum
from typing import Final, Self

import msgspec
from evenkeel_contract.messages import UNREADABLE


class Dialect(Enum):
    """How answers, events, usage and errors are written."""

    __hash__ = object.__hash__  # Enum's own is Python code; every answer looks up its reader

    OPENAI = "openai"
    """`usage` in the body or the last event; `[DONE]` ends a stream. Engines use it for their own endpoints, too."""
    SGLANG = "sglang"
    """`meta_info` in each answer and in each event, which repeats the whole answer."""
    RANKING = "ranking"
    """OpenAI's `usage` (vLLM), or a list of results with SGLang's `meta_info`."""
    RESPONSES = "responses"
    """OpenAI's named events; `response.completed` carries the usage and ends a stream."""
    ANTHROPIC = "anthropic"
    """Anthropic's named events; the first and the last but one carry usage."""
    AUDIO = "audio"
    """Text, or JSON with the duration as usage; OpenAI's events."""


class Outcome(Enum):
    """How a request failed: the metric label, the status, and the error types of OpenAI and, if it differs, of Anthropic."""

    INVALID_REQUEST = ("invalid_request", 400, "invalid_request_error")
    """Invalid bytes, fields or headers."""
    UNAUTHENTICATED = ("unauthenticated", 401, "authentication_error")
    """No API key, or an unknown one."""
    FORBIDDEN = ("forbidden", 403, "permission_error")
    """A valid identity that may not use this service."""
    NOT_FOUND = ("not_found", 404, "not_found_error")
    """Another model, or no such endpoint."""
    TOO_LARGE = ("too_large", 413, "invalid_request_error", "request_too_large")
    """The body exceeds maxBodySize."""
    RATE_LIMITED = ("rate_limited", 429, "rate_limit_error")
    """The tenant's or client's own limit."""
    CLIENT_GONE = ("client_gone", 499, "client_gone")
    """The client disconnected, or stopped reading. The status is nginx's number, in logs only."""
    REPLICA_FAILED = ("replica_failed", 502, "server_error", "api_error")
    """Garbage, a broken stream, or 5xx at every replica that was tried."""
    UNAVAILABLE = ("unavailable", 503, "server_error", "overloaded_error")
    """No replica is routable, or the router is full or draining."""
    TIMEOUT = ("timeout", 504, "timeout_error")
    """A replica accepted the request and sent nothing; never tried again."""

    status: int
    error_type: str
    anthropic_type: str

    def __new__(cls, label: str, status: int, error_type: str, anthropic_type: str = "") -> Self:
        member = object.__new__(cls)
        member._value_ = label
        member.status = status
        member.error_type = error_type
        member.anthropic_type = anthropic_type or error_type
        return member


OURS: Final = frozenset({Outcome.REPLICA_FAILED, Outcome.UNAVAILABLE, Outcome.TIMEOUT})
"""Failures of the service, not of the client."""


def of_status(status: int) -> Outcome:
    """The outcome of a replica's error."""
    for outcome in Outcome:
        if outcome.status == status:
            return outcome
    if status >= 500:
        return Outcome.REPLICA_FAILED
    return Outcome.INVALID_REQUEST  # 422 and the like


class Refusal(Exception):
    """A request ends without an answer from a replica. One exception for all outcomes, handled in one place."""

    def __init__(
        self,
        outcome: Outcome,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry_after_s: float | None = None,
        status: int | None = None,
        more: Sequence[tuple[str, str]] = (),
    ) -> None:
        """`message` is for people, `code` for programs; `status` replaces that of the outcome, `more` are its headers."""
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.code = code
        """Error code for programs: stable, and finer than the outcome."""
        self.param = param
        """The invalid field or header."""
        self.retry_after_s = retry_after_s
        self.status = outcome.status if status is None else status
        self.more = more

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The headers that belong to the status."""
        headers = list(self.more)
        if self.retry_after is not None:
            headers.append(("retry-after", self.retry_after))
        if self.outcome is Outcome.UNAUTHENTICATED:
            missing = self.code.startswith("missing_")
            challenge = (
                "Bearer" if missing else 'Bearer error="invalid_token"'
            )  # RFC 6750, section 3
            headers.append(("www-authenticate", challenge))
        return headers

    @property
    def retry_after(self) -> str | None:
        """The `Retry-After` header: whole seconds, rounded up, at least 1."""
        if self.retry_after_s is None:
            return None
        return str(max(1, math.ceil(self.retry_after_s)))


def invalid(message: str, *, code: str, param: str | None = None) -> Refusal:
    """An invalid request, 400."""
    return Refusal(Outcome.INVALID_REQUEST, message, code=code, param=param)


def error_body(refusal: Refusal, dialect: Dialect = Dialect.OPENAI) -> bytes:
    """The error object of an API."""
    if dialect is Dialect.ANTHROPIC:
        return msgspec.json.encode(_anthropic_error(refusal))
    return msgspec.json.encode({"error": _error(refusal)})


def error_event(refusal: Refusal) -> bytes:
    """The last event of a stream that failed after its first byte, when its status had been sent."""
    error = _error(refusal) | {"status": refusal.status}
    return b"data: " + msgspec.json.encode({"error": error}) + b"\n\n"


def anthropic_error_event(refusal: Refusal) -> bytes:
    """The last event of a failed stream of `/v1/messages`."""
    return b"event: error\ndata: " + msgspec.json.encode(_anthropic_error(refusal)) + b"\n\n"


def response_error_event(refusal: Refusal, number: int) -> bytes:
    """The last event of a failed stream of `/v1/responses`. `number`: events before it."""
    event = {
        "type": "error",
        "code": refusal.code,
        "message": refusal.message,
        "param": refusal.param,
        "sequence_number": number,
    }
    return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"


def _anthropic_error(refusal: Refusal) -> dict[str, object]:
    error = {"type": refusal.outcome.anthropic_type, "message": refusal.message}
    if refusal.code == CONTEXT_LENGTH_EXCEEDED:
        # Anthropic has no codes. Its clients look for these words before they shorten a conversation.
        error |= {"message": f"prompt is too long: {refusal.message}", "code": refusal.code}
    return {"type": "error", "error": error}


def _error(refusal: Refusal) -> dict[str, object]:
    return {
        "message": refusal.message,
        "type": refusal.outcome.error_type,
        "param": refusal.param,
        "code": refusal.code,
    }


CONTEXT_LENGTH_EXCEEDED: Final = "context_length_exceeded"
"""OpenAI's code for a prompt, or a prompt and its `max_tokens`, that the model has no room for. In Anthropic's dialect, too."""
OVERLOADED: Final = "overloaded"
"""The code of a 503, of the router or of every engine that was asked."""
FAILED: Final = "replica_failed"
"""The code of a replica's failure."""
REJECTED: Final = "rejected_by_engine"
"""The code where the engine names none."""

_TOO_LONG: Final = re.compile(
    r"longer than the model's context length"  # SGLang's tokenizer manager: the prompt alone
    r"|exceeds (?:the )?model's maximum\s+context length"  # the same, with max_tokens; vLLM
    r"|exceeds the maximum allowed length"  # SGLang's scheduler
    r"|maximum context length is \d+ tokens"  # vLLM's front end, and OpenAI's own words
    r"|longer than the maximum\s+model length"  # vLLM's engine
    r"|exceeds? the available context size"  # llama.cpp
)


class _Error(msgspec.Struct):
    message: object = None
    param: object = None
    code: object = None
    type: object = None


class _Reply(_Error):
    """The body of a 4xx. `error` comes from `/generate` and OpenAI; the rest is SGLang's format on OpenAI's
    endpoints, and FastAPI's."""

    error: _Error | str | None = None
    detail: object = None


_REPLY: Final = msgspec.json.Decoder(_Reply)


def rejected_by_replica(status: int, body: bytes) -> Refusal:
    """The error of a 4xx, 429 or 503 with this body. Its code is kept if it is a word, not a number."""
    try:
        return _refusal(status, _REPLY.decode(body))
    except UNREADABLE:
        return _refusal(status, _Reply())


def _refusal(status: int, reply: _Reply) -> Refusal:
    error: _Error = reply
    if isinstance(reply.error, _Error):
        error = reply.error
    elif not reply.message:
        error = _Error(reply.error or reply.detail, reply.param, reply.code)
    message = error.message
    if not isinstance(message, str) or not message:
        message = f"The replica rejected the request with status {status}."
    code = error.code if isinstance(error.code, str) and not error.code.isdigit() else ""
    if not code:
        code = OVERLOADED if status == 503 else FAILED if status >= 500 else REJECTED
        if _TOO_LONG.search(message):
            code = CONTEXT_LENGTH_EXCEEDED
    param = error.param if isinstance(error.param, str) else None
    return Refusal(of_status(status), message, code=code, param=param, status=status)


UNKNOWN_FAILURE: Final = Refusal(
    Outcome.REPLICA_FAILED, "The replica ended the stream with an error.", code=FAILED
)


class _Failure(_Reply):
    """What engines write into a 200 that is an error."""

    kind: object = msgspec.field(name="object", default=None)
    error_type: object = None
    """TGI's."""
    status: object = None
    status_code: object = None
    response: _Reply | None = None
    """The response of the event `response.failed`."""


_FAILURE: Final = msgspec.json.Decoder(_Failure)
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OF_ERRORS: Final = frozenset(
    ("code", "detail", "error_type", "message", "object", "param", "path", "request_id", "status", "status_code", "type")
)  # fmt: skip
"""Members of a body that is an error, beside `error`."""
_STATUSES: Final = {
    "BadRequestError": 400, "invalid_request_error": 400, "validation": 422, "NotFoundError": 404,
    "not_found_error": 404, "rate_limit_error": 429, "overloaded": 503, "overloaded_error": 503, "unavailable": 503,
}  # fmt: skip
"""Types of errors (vLLM and SGLang, OpenAI, Anthropic, TGI) that have a status of their own."""
ABORTED: Final = ("abort", "error")
"""Reasons of an end that is a failure: the engine gave the request up."""


def failure_in(body: bytes) -> Refusal | None:
    """The error that a whole answer, or the data of an event, is in spite of its status 200; None if it is none. Never raises.

    | written as                                                         | by                                 |
    |--------------------------------------------------------------------|------------------------------------|
    | `error` with an object or a text                                   | SGLang, vLLM, TGI, Triton, Ollama  |
    | `object: error` or `type: error`                                   | vLLM before 0.10, LMDeploy, Anthropic |
    | `detail`, or `message` with a code, and nothing else               | FastAPI                            |
    | `status: failed`, or `response` with an error                      | OpenAI's responses                 |
    """
    try:
        found = _FAILURE.decode(body)
    except UNREADABLE:
        return None
    if found.response is not None and found.response.error:
        return _refusal(_status_of(found, found.response), found.response)
    if found.error or "error" in (found.kind, found.type) or found.status == "failed":
        return _refusal(_status_of(found, found), found)
    if found.detail is None and found.message is None:
        return None
    members = _MEMBERS.decode(body).keys()
    return _refusal(_status_of(found, found), found) if members <= _OF_ERRORS else None


def aborted(reason: object) -> Refusal | None:
    """The failure that a reason of an answer's end is; None if it is none.

    OpenAI's reasons are words; SGLang's `/generate` has an object with a message and a status.
    """
    if isinstance(reason, dict):
        if reason.get("type") not in ABORTED:
            return None
        status = _status(reason.get("status_code"))
        return _refusal(status or 502, _Reply(message=reason.get("message") or "It was aborted."))
    if reason not in ABORTED:
        return None
    message = f"The replica gave the request up ({reason})."
    return Refusal(Outcome.REPLICA_FAILED, message, code=FAILED)


def _status_of(found: _Failure, reply: _Reply) -> int:
    error = reply.error if isinstance(reply.error, _Error) else reply
    for given in (error.code, found.status_code, found.status, found.code):
        if status := _status(given):
            return status
    kinds = [error.type, found.type, error.code, found.error_type]
    return next((_STATUSES[one] for one in kinds if isinstance(one, str) and one in _STATUSES), 502)


def _status(given: object) -> int | None:
    if isinstance(given, str) and given.isdecimal() and len(given) == 3:
        given = int(given)
    return given if isinstance(given, int) and 400 <= given < 600 else None
