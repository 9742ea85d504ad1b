"""What is in a Secret."""

from __future__ import annotations

from base64 import b64decode

from evenkeel_operator.core.objects import Object


def entry_of(secret: Object | None, key: str) -> bytes | None:
    """One entry; None where it is absent, or no base64."""
    encoded = ((secret or {}).get("data") or {}).get(key)
    if not isinstance(encoded, str):
        return None
    try:
        return b64decode(encoded, validate=True)
    except ValueError:
        return None
