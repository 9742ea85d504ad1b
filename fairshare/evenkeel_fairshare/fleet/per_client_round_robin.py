"""A cyclic pointer per client: with local VTC the fair baseline without locality (ALGORITHMS §2.2).

A backlogged client is backlogged on every replica, so the bound of each replica applies, |W| times (D2LPM paper,
Theorem A.6). The pointer of a new client starts one replica after that of the previous new client. Otherwise clients
with one request each would all go to the lowest slot. Beyond `max_clients` the least recently used pointer is removed,
which costs no more than an uneven step.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from evenkeel_fairshare.fleet.contract import Dispatch, FleetPolicy, ReplicaSet, next_after


class PerClientRoundRobin(FleetPolicy):
    """One cyclic pointer for each client."""

    name = "PerClientRoundRobin"
    matches_prefix = False

    def __init__(self, *, max_clients: int = 10_000) -> None:
        if max_clients < 1:
            raise ValueError(f"max_clients is {max_clients}; it must be at least 1")
        self._max_clients = max_clients
        self._last: OrderedDict[str, int] = OrderedDict()
        self._last_newcomer = -1

    def select(
        self, request: Dispatch, routable: ReplicaSet, outstanding: Sequence[int]
    ) -> int | None:
        last = self._last.pop(request.client, None)
        if last is None:
            slot = self._last_newcomer = next_after(routable, self._last_newcomer)
        else:
            slot = next_after(routable, last)
        self._last[request.client] = slot  # at the end: the most recently used
        if len(self._last) > self._max_clients:
            self._last.popitem(last=False)
        return slot
