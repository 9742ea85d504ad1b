"""What a request says of its sender, and the refusals of what cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from evenkeel_router.api.errors import Outcome, Refusal, invalid

KEY_HEADERS: Final = ("x-api-key", "api-key")
"""Where Anthropic's and Azure's clients send their key."""


class Claims(msgspec.Struct, frozen=True):
    """The headers of a request that identify its client."""

    authorization: Sequence[str]
    """Every `Authorization` header."""
    keys: Sequence[str] = ()
    """Every header that is an API key and nothing else (`KEY_HEADERS`)."""
    named: Sequence[tuple[str, str]] = ()
    """Every identity header, name and value."""
    peer: str = ""
    """The address of the other end; empty if it has none."""


def bearer(authorization: str) -> str:
    """The key or token in an `Authorization` header; raises `Refusal`."""
    scheme, _, key = authorization.partition(" ")
    if scheme.lower() != "bearer" or not key:
        message = "The Authorization header must have the form 'Bearer <key>'."
        raise Refusal(Outcome.UNAUTHENTICATED, message, code="invalid_api_key")
    return key.strip()


def missing_key() -> Refusal:
    """The refusal of a request without an identity."""
    message = (
        "The API key is missing. Send it as 'Authorization: Bearer <key>' or 'x-api-key: <key>'."
    )
    return Refusal(Outcome.UNAUTHENTICATED, message, code="missing_api_key")


def token_required() -> Refusal:
    """The refusal of a request for keys with another identity than a token's."""
    message = "Keys are created, listed and revoked with a token of the issuer, sent as 'Authorization: Bearer <token>'; not with a key."
    return Refusal(Outcome.FORBIDDEN, message, code="token_required", param="authorization")


def duplicate(header: str) -> Refusal:
    """The refusal of a request with two identities."""
    message = f"More than one header identifies the client ({header}); send one."
    return invalid(message, code="duplicate_header", param=header)
