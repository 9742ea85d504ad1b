"""Fairness in sentences: the same for the routers' console, `top`, `demo`, `simulate` and `replay`."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Final

from evenkeel_fairshare.window import WindowShares

AS_OWED: Final = 0.8
"""Part of its owed service from which a client counts as served fairly. The difference to 1 is the tolerance of a window of one
minute."""
MORE_THAN_SHARE: Final = 1.05
"""Times its share from which a client counts as using capacity that others leave idle."""


NAMED: Final = 3
"""Clients that a verdict names on each side."""


def is_fair(given_over_owed: Mapping[str, float]) -> bool:
    """Whether each client was given what it was owed while it waited."""
    return min(given_over_owed.values(), default=1.0) >= AS_OWED


def verdict(shares: WindowShares) -> str:
    """Whether each client was given what it was owed while it waited; if not, who lost and who took. And idle replicas."""
    idle_s = shares.idle_s
    if idle_s < 1:
        return _of_shares(shares)
    return f"{_of_shares(shares)} A replica was empty for {idle_s:.0f} s while requests waited at another."


def _of_shares(shares: WindowShares) -> str:
    parts = shares.given_over_owed
    if not parts:
        return "Fair: no client had to wait for another."
    if is_fair(parts):
        part = min(shares.least, 1.0)
        return f"Fair: every client that waited was given at least {part:.0%} of what it was owed."
    (client, least), *others = sorted(parts.items(), key=itemgetter(1))
    lost = [f"{name} {part:.0%}" for name, part in others if part < AS_OWED]
    took = [f"{name} {part:.0%}" for name, part in shares.took.items()]
    words = ", ".join(
        [f"Unfair: {client} was given {least:.0%} of what it was owed while it waited", *_few(lost)]
    )
    return f"{words}. Given more than owed: {', '.join(_few(took))}." if took else f"{words}."


def _few(names: list[str]) -> list[str]:
    rest = len(names) - NAMED
    return [*names[:NAMED], f"and {rest} more"] if rest > 0 else names


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
