"""Fairness in sentences: the same for the routers' console, `top`, `demo`, `simulate` and `replay`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

AS_OWED: Final = 0.8
"""Part of its owed service from which a client counts as served fairly. The difference to 1 is the tolerance of a window of one
minute."""
MORE_THAN_SHARE: Final = 1.05
"""Times its share from which a client counts as using capacity that others leave idle."""


def is_fair(given_over_owed: Mapping[str, float]) -> bool:
    """Whether each client was given what it was owed while it waited."""
    return min(given_over_owed.values(), default=1.0) >= AS_OWED


def verdict(given_over_owed: Mapping[str, float]) -> str:
    """A sentence on what each client was given over what it was owed while it waited, by client."""
    if not given_over_owed:
        return "Fair: no client had to wait for another."
    client, least = min(given_over_owed.items(), key=lambda item: item[1])
    if is_fair(given_over_owed):
        part = min(least, 1.0)
        return f"Fair: every client that waited was given at least {part:.0%} of what it was owed."
    return f"Unfair: {client} was given {least:.0%} of what it was owed while it waited."


def client_in_words(
    *,
    given_over_owed: float | None,
    waits: bool,
    active: bool,
    received: float | None,
    share: float,
) -> str:
    """A sentence on one client.

    `given_over_owed`: of a client that waited for most of the window, else None. `waits`: one of its requests waits now.
    `active`: it has requests, or received service in the window. `received`: its part of the fleet's service in the window,
    0 to 1, None if the fleet served none. `share`: the part that it would be owed if every active client waited.
    """
    if given_over_owed is not None:
        amount = f"{given_over_owed:.0%} of what it was owed while it waited"
        if given_over_owed < AS_OWED:
            return f"Gets too little: it was given {amount}."
        return f"Gets its share: it was given {amount}."
    if waits:
        return "Requests have begun to wait."
    if not active:
        return "Sends no requests."
    if received is not None and received > MORE_THAN_SHARE * share:
        return "Uses idle capacity; no request waits."
    return "Gets all that it requests; no request waits."
