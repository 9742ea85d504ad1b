"""Errors as clients receive them: OpenAI's error object, so that its clients raise their own exception types."""

from __future__ import annotations

import math
from http import HTTPStatus

import msgspec

from evenkeel_router.api.outcomes import ERROR_TYPE, STATUS, Outcome


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
        status: HTTPStatus | None = None,
    ) -> None:
        """`message` is for people, `code` for programs; `status` replaces that of the outcome."""
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.code = code
        """Stable, and finer than the outcome."""
        self.param = param
        """The invalid field or header."""
        self.retry_after_s = retry_after_s
        self.status: int = STATUS[outcome] if status is None else status

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The headers that belong to the status."""
        headers = []
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


def error_body(refusal: Refusal) -> bytes:
    """OpenAI's error object."""
    return msgspec.json.encode({"error": _error(refusal)})


def error_event(refusal: Refusal) -> bytes:
    """The last event of a stream that failed after its first byte, when its status had been sent."""
    error = _error(refusal) | {"status": refusal.status}
    return b"data: " + msgspec.json.encode({"error": error}) + b"\n\n"


def _error(refusal: Refusal) -> dict[str, object]:
    return {
        "message": refusal.message,
        "type": ERROR_TYPE[refusal.outcome],
        "param": refusal.param,
        "code": refusal.code,
    }
