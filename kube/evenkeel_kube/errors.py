"""What can go wrong between this process and the API server.

ClusterError
├── CredentialsError    no credentials, or unreadable ones
├── Unreachable         no answer: try again
└── ApiError
    ├── Refused         the same request gets the same answer: 400, 403, 409 AlreadyExists, 422, …
    └── Overloaded      429, 5xx, 409 Conflict, 401: try again
"""

from __future__ import annotations

from typing import Final

TRANSIENT: Final = frozenset({401, 408, 409, 425, 429})
# How the API server answers an apply whose fields have wrong types: with status 500 [seen in 1.35].
_MALFORMED: Final = "failed to create typed patch object"


class ClusterError(Exception):
    """The API server cannot be used; the message is for users."""


class CredentialsError(ClusterError):
    """This process has no credentials for an API server."""


class Unreachable(ClusterError):
    """The API server did not answer."""


class ApiError(ClusterError):
    """The API server answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class Refused(ApiError):
    """The same request would be refused again."""


class Overloaded(ApiError):
    """The same request may succeed later."""


def api_error(status: int, message: str) -> ApiError:
    """The error for an HTTP status."""
    transient = status in TRANSIENT or (status >= 500 and not message.startswith(_MALFORMED))
    return (Overloaded if transient else Refused)(status, message)
