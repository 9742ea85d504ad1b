"""What can go wrong at the cluster's edge.

ClusterError
├── Unreachable     no answer: try again
├── Refused         the API server will say the same again: 400, 403, 409 AlreadyExists, 422, …
└── Overloaded      429, 5xx, 409 Conflict, 401: try again
"""

from __future__ import annotations

from typing import Final

TRANSIENT: Final = frozenset({401, 408, 409, 425, 429})
# How the API server answers an apply whose fields have wrong types: with status 500 [seen in 1.35].
_MALFORMED: Final = "failed to create typed patch object"


class ClusterError(Exception):
    """Something at the cluster's edge; the message is for people."""


class Unreachable(ClusterError):
    """The API server did not answer."""


class ApiError(ClusterError):
    """The API server said no."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class Refused(ApiError):
    """The same request would be refused again."""


class Overloaded(ApiError):
    """Perhaps not the next time."""


def api_error(status: int, message: str) -> ApiError:
    """The error for an HTTP status."""
    transient = status in TRANSIENT or (status >= 500 and not message.startswith(_MALFORMED))
    return (Overloaded if transient else Refused)(status, message)
