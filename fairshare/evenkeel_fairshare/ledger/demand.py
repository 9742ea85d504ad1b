"""How much service each client requests, per second (design §6).

Rate = arrivals per second × mean cost of the finished requests, both over an exponential window: a client whose requests are delayed does not
look as if it requested less. Every router publishes its own part and adds up all parts, so all export the same sum:
aggregate it over routers by maximum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

SILENT_WINDOWS: Final = 3.0
"""Of whom nothing came for so long asks for nothing: by then a twentieth is left of any rate, and what fades by parts never
ends. The busiest client would keep a service from zero the longest."""


@dataclass(slots=True)
class _Client:
    arrivals: float = 0.0
    """Decayed count."""
    since_s: float = 0.0
    last_s: float = 0.0
    """Of its last request."""
    silent: bool = False
    """It was said to want nothing."""
    cost: float = 0.0
    """Decayed sum of costs."""
    finished: float = 0.0
    """Decayed count of the requests behind `cost`."""


class DemandMeter:
    """What arrives at one router."""

    def __init__(self, *, window_s: float = 60.0, first_cost: float = 1000.0) -> None:
        """`first_cost`: weighted tokens that a request is taken to cost before the client's first one finished."""
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
        """A request is over and was charged `cost`. Forgets clients it never saw arrive."""
        known = self._clients.get(client)
        if known is not None:
            known.cost += cost
            known.finished += 1

    def rates(self, now_s: float) -> dict[str, float]:
        """Weighted tokens per second by client; a client that asks for nothing any more is reported so once.

        What its requests cost is known for longer: from seven windows after a single one, to twice as many after a thousand.
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
