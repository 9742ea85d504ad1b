"""Fairness in numbers: how evenly, how far from what was owed, how far ahead (design §7).

Place in the flow: served per client, from a ledger or a run → **measures** → metrics, status, reports.
Everything here is a pure function of plain numbers; `timeline` makes such numbers out of spans of service,
`vtc_tables` follows the VTC paper's tables to the digit.

The surprising thing: fairness is between the backlogged only. Who asked for less than its share and got it
all was treated well, and must be left out by the caller.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from math import floor, inf
from typing import TypeVar

Client = TypeVar("Client", bound=Hashable)


def jain_index(values: Collection[float]) -> float:
    """Jain's index (Σx)² / (n·Σx²) of non-negative values, in [1/n, 1]; 1 where all are equal.

    For weighted clients, pass service divided by weight. Nobody, or nobody served: 1, all got the same.
    """
    largest = max(values, default=0.0)
    if largest <= 0:
        return 1.0
    scaled = [value / largest for value in values]  # so that squares neither overflow nor vanish
    return float(sum(scaled) ** 2 / (len(scaled) * sum(value * value for value in scaled)))


def percentile(values: Collection[float], percent: float) -> float:
    """The `percent`-th percentile (0 to 100), linear between neighbours as in NumPy's default.

    Raises `ValueError` where there are no values.
    """
    if not values:
        raise ValueError("no percentile of no values")
    if not 0 <= percent <= 100:
        raise ValueError(f"percent is {percent}, must be from 0 to 100")
    ordered = sorted(values)
    place = percent / 100 * (len(ordered) - 1)
    below = floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def share_error(served: Mapping[Client, float], shares: Mapping[Client, float]) -> float:
    """How much less than owed the worst treated backlogged client got, as a fraction of what it was owed.

    `served`: service of each client in a window; `shares`: the fraction owed to each *backlogged* client
    (`Tenancy.shares`). What they got together is divided anew by shares: that is what each was owed. 0: all
    got it. 1: somebody got nothing. A surplus counts only through those who lost by it, so that the figure
    means the same in a fleet of two clients and of two thousand.
    """
    total = sum(served.get(client, 0.0) for client in shares)
    if total <= 0:
        return 0.0
    return max(
        0.0, *(1.0 - served.get(client, 0.0) / (share * total) for client, share in shares.items())
    )


def lead(served: Mapping[Client, float], shares: Mapping[Client, float]) -> float:
    """max - min of served/share over the backlogged clients, in weighted tokens of the whole fleet.

    Divided by the fleet's rate it is a time, see `lead_s`. A client's own lead in its own tokens is that
    times its share.
    """
    if not shares:
        return 0.0
    normalised = [served.get(client, 0.0) / share for client, share in shares.items()]
    return max(normalised) - min(normalised)


def lead_s(served: Mapping[Client, float], shares: Mapping[Client, float], *, rate: float) -> float:
    """`lead` in seconds of fair service: how long the fleet, at `rate` weighted tokens per second and
    dividing fairly, takes to give the least served what the most served had more. Infinite at rate 0."""
    ahead = lead(served, shares)
    if ahead == 0:
        return 0.0
    return ahead / rate if rate > 0 else inf
