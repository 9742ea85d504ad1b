"""The verdict on fairness, in one sentence: the same for `top`, `demo`, `simulate` and `replay`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

AS_OWED: Final = 0.8
"""Part of its owed service from which a client counts as served fairly. As in the routers' figures."""


def verdict(given_over_owed: Mapping[str, float]) -> str:
    """A sentence on what each client was given over what it was owed while it waited, by client."""
    if not given_over_owed:
        return "Fair: no client had to wait for another."
    client, least = min(given_over_owed.items(), key=lambda item: item[1])
    if least >= AS_OWED:
        part = min(least, 1.0)
        return f"Fair: every client that waited was given at least {part:.0%} of what it was owed."
    return f"Unfair: {client} was given {least:.0%} of what it was owed while it waited."
