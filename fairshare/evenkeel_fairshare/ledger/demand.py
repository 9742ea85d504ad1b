"""Requested service of each client, per second (design §6).

Rate = arrivals per second × mean cost of finished requests, both over an exponential window. So delayed requests do not lower the
rate. Every router publishes its own part and exports the sum of all parts: aggregate it over routers by maximum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

SILENT_WINDOWS: Final = 3.0
"""Windows without a request after which a rate is 0. A twentieth of the rate is left by then; without this limit a decaying rate
would never end, and a busy client would keep its service from scaling to zero the longest."""


@dataclass(slots=True)
class _Client:
    arrivals: float = 0.0
    """Decayed count."""
    since_s: float = 0.0
    last_s: float = 0.0
    """Time of its last request."""
    silent: bool = False
    """Its rate of 0 was reported."""
    cost: float = 0.0
    """Decayed sum of costs."""
    finished: float = 0.0
    """Decayed count of the requests behind `cost`."""


class DemandMeter:
    """Measures the requested service at one router."""

    def __init__(self, *, window_s: float = 60.0, first_cost: float = 1000.0) -> None:
        """`first_cost`: assumed weighted tokens per request until the client's first request has finished."""
        if not (window_s > 0 and first_cost > 0):
            raise ValueError(f"window_s {window_s} and first_cost {first_cost} must be positive")
        self._window_s = window_s
        self._first_cost = first_cost
        self._clients: dict[str, _Client] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def arrived(self, client: str, now_s: float) -> None:
        """A new request, not a retry."""
        known = self._clients.get(client)
        if known is None:
            known = self._clients[client] = _Client(since_s=now_s)
        self._decay(known, now_s)
        known.arrivals += 1
        known.last_s, known.silent = now_s, False

    def finished(self, client: str, cost: float) -> None:
        """A request has ended with this cost. It is ignored if its arrival is unknown."""
        known = self._clients.get(client)
        if known is not None:
            known.cost += cost
            known.finished += 1

    def rates(self, now_s: float) -> dict[str, float]:
        """Weighted tokens per second by client. A client that stopped is reported once, with 0.

        The mean cost of its requests is kept longer: seven windows after a single request, twice as long after a thousand.
        """
        rates = {}
        for client, known in list(self._clients.items()):
            self._decay(known, now_s)
            if known.arrivals < 1e-3:
                del self._clients[client]
            if now_s - known.last_s >= SILENT_WINDOWS * self._window_s:
                if not known.silent:
                    rates[client] = 0.0
                known.silent = True
                continue
            mean = known.cost / known.finished if known.finished > 0.01 else self._first_cost
            rates[client] = known.arrivals / self._window_s * mean
        return rates

    def _decay(self, known: _Client, now_s: float) -> None:
        kept = math.exp(-max(0.0, now_s - known.since_s) / self._window_s)
        known.since_s = now_s
        known.arrivals *= kept
        known.cost *= kept
        known.finished *= kept
