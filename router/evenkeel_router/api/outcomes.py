"""How a request can fail: ten outcomes, each with one status, one error type and one metric label.

Place in the flow: every step that refuses names an `Outcome`; the edge turns it into a status, an OpenAI
error body and a count of `request_error_total{error_code}`. A finer reason travels as `code` in the body
(docs/router.md lists them).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final


class Outcome(Enum):
    """The value is the metric label. Whose fault it is decides 4xx or 5xx."""

    INVALID_REQUEST = "invalid_request"  # the client's bytes, fields or headers
    UNAUTHENTICATED = "unauthenticated"  # no identity, or a key that nobody has
    FORBIDDEN = "forbidden"  # a proper identity that may not use this service
    NOT_FOUND = "not_found"  # another model, or no such endpoint
    TOO_LARGE = "too_large"  # the body exceeds maxBodySize
    RATE_LIMITED = "rate_limited"  # the tenant's or client's own limit
    CLIENT_GONE = "client_gone"  # it left, or stopped reading; nobody sees the status
    REPLICA_FAILED = "replica_failed"  # garbage, a broken stream, 5xx everywhere it was tried
    UNAVAILABLE = "unavailable"  # nobody to serve it now: none routable, full, or draining
    TIMEOUT = "timeout"  # a replica took it and stayed silent; never tried again


STATUS: Final[Mapping[Outcome, int]] = MappingProxyType(
    {
        Outcome.INVALID_REQUEST: 400,
        Outcome.UNAUTHENTICATED: 401,
        Outcome.FORBIDDEN: 403,
        Outcome.NOT_FOUND: 404,
        Outcome.TOO_LARGE: 413,
        Outcome.RATE_LIMITED: 429,
        Outcome.CLIENT_GONE: 499,  # nginx's number, in logs only
        Outcome.REPLICA_FAILED: 502,
        Outcome.UNAVAILABLE: 503,
        Outcome.TIMEOUT: 504,
    }
)

OURS: Final = frozenset({Outcome.REPLICA_FAILED, Outcome.UNAVAILABLE, Outcome.TIMEOUT})
"""What no client can help."""

ERROR_TYPE: Final[Mapping[Outcome, str]] = MappingProxyType(
    {
        Outcome.INVALID_REQUEST: "invalid_request_error",
        Outcome.UNAUTHENTICATED: "authentication_error",
        Outcome.FORBIDDEN: "permission_error",
        Outcome.NOT_FOUND: "not_found_error",
        Outcome.TOO_LARGE: "invalid_request_error",
        Outcome.RATE_LIMITED: "rate_limit_error",
        Outcome.CLIENT_GONE: "client_gone",
        Outcome.REPLICA_FAILED: "server_error",
        Outcome.UNAVAILABLE: "server_error",
        Outcome.TIMEOUT: "timeout_error",
    }
)


def of_status(status: int) -> Outcome:
    """The outcome of a 4xx that a replica answered and that is passed on."""
    for outcome, own in STATUS.items():
        if own == status:
            return outcome
    return Outcome.INVALID_REQUEST  # 422 and the like
