"""What a client is told when its request fails.

    Refusal        a request ends here: outcome, sentence for people, stable code, parameter at fault

One exception for all ten outcomes: steps differ in what they say, not in how they are handled. Bodies follow
OpenAI's shape, so that its clients raise their own exception types.
"""

from __future__ import annotations

import math

import msgspec

from evenkeel_router.api.outcomes import ERROR_TYPE, STATUS, Outcome


class Refusal(Exception):
    """A request ends without an answer from a replica."""

    def __init__(
        self,
        outcome: Outcome,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.code = code
        """Stable, for programs; finer than the outcome."""
        self.param = param
        """The field or header at fault."""
        self.retry_after_s = retry_after_s

    @property
    def status(self) -> int:
        return STATUS[self.outcome]

    @property
    def retry_after(self) -> str | None:
        """The `Retry-After` header: whole seconds, rounded up, at least 1."""
        if self.retry_after_s is None:
            return None
        return str(max(1, math.ceil(self.retry_after_s)))


def invalid(message: str, *, code: str, param: str | None = None) -> Refusal:
    """The client's fault, 400."""
    return Refusal(Outcome.INVALID_REQUEST, message, code=code, param=param)


def error_body(refusal: Refusal) -> bytes:
    """OpenAI's error object."""
    return msgspec.json.encode({"error": _error(refusal)})


def error_event(refusal: Refusal) -> bytes:
    """The last event of a stream that broke after its first byte: status 200 cannot be taken back."""
    error = _error(refusal) | {"status": refusal.status}
    return b"data: " + msgspec.json.encode({"error": error}) + b"\n\n"


def _error(refusal: Refusal) -> dict[str, object]:
    return {
        "message": refusal.message,
        "type": ERROR_TYPE[refusal.outcome],
        "param": refusal.param,
        "code": refusal.code,
    }
