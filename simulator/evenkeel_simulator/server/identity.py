"""The client of a request, by its client key.

SGLang takes the key from a header on OpenAI endpoints and from the body on `/generate`; each ignores the other's.

A key that cannot be read does not fail the request. It is served as the one unknown client, at weight 1 and with no seed,
and counted. So a router that sends no keys works, and a client that bypasses the router gains nothing: all such requests
get a single client's share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evenkeel_contract.key import UNKNOWN, ClientKey, ClientKeyError, decode


@dataclass(frozen=True, slots=True)
class Owner:
    """The client to charge."""

    key: ClientKey
    refused: str | None
    """Why the key sent was not taken: `missing`, `malformed` or `repeated`. None: it was."""


def owner_of(keys: Sequence[str]) -> Owner:
    """The owner of a request that carries these client keys (one, unless something is wrong)."""
    if len(keys) != 1:
        return Owner(UNKNOWN, "repeated" if keys else "missing")
    try:
        return Owner(decode(keys[0]), None)
    except ClientKeyError:
        return Owner(UNKNOWN, "malformed")
