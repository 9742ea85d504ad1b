"""How a request can fail: ten outcomes, each with a status, an error type and a metric label.

The `code` in an error's body is finer than the outcome. docs/router.md lists the codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final


class Outcome(Enum):
    """The value is the metric label."""

    INVALID_REQUEST = "invalid_request"  # invalid bytes, fields or headers
    UNAUTHENTICATED = "unauthenticated"  # no API key, or an unknown one
    FORBIDDEN = "forbidden"  # a valid identity that may not use this service
    NOT_FOUND = "not_found"  # another model, or no such endpoint
    TOO_LARGE = "too_large"  # the body exceeds maxBodySize
    RATE_LIMITED = "rate_limited"  # the tenant's or client's own limit
    CLIENT_GONE = "client_gone"  # it disconnected, or stopped reading; the status is only logged
    REPLICA_FAILED = (
        "replica_failed"  # garbage, a broken stream, or 5xx at every replica that was tried
    )
    UNAVAILABLE = "unavailable"  # no replica is routable, or the router is full or draining
    TIMEOUT = "timeout"  # a replica accepted it and sent nothing; never tried again


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
"""Failures of the service, not of the client."""

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
    """The outcome of a replica's 4xx."""
    for outcome, own in STATUS.items():
        if own == status:
            return outcome
    return Outcome.INVALID_REQUEST  # 422 and the like
