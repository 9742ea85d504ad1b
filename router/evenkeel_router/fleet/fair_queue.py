"""The order in which requests leave the wait queue (R2: fair per client).

Start-time fair queueing (Goyal, Vin, Cheng 1996, section 2): a request starts where its client's previous one
finished, in virtual time, or now if the client was idle; it costs its input tokens divided by the client's weight; the
lowest start goes first. So a client with a thousand queued requests does not delay a client with one.
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

_T = TypeVar("_T")


class FairQueue(Generic[_T]):
    """Requests by client. Ties leave in the order of arrival."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, float, str, _T]] = []
        """Start, arrival, finish, client, item."""
        self._finish: dict[str, float] = {}
        """Of a client's last request; empty while no request waits."""
        self._now = 0.0
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, item: _T, *, client: str, cost: float, weight: float) -> None:
        """Queue a request of `cost` weighted tokens."""
        start = max(self._now, self._finish.get(client, 0.0))
        finish = start + max(cost, 1.0) / weight
        self._finish[client] = finish
        self._arrivals += 1
        heapq.heappush(self._heap, (start, self._arrivals, finish, client, item))

    def pop(self) -> _T:
        """The next one; raises `IndexError` when the queue is empty."""
        start, _, _, _, item = heapq.heappop(self._heap)
        self._now = start
        if not self._heap:  # the end of a busy period: no client is ahead of another
            self._finish.clear()
            self._now = 0.0
        return item

    def discard(self, item: _T) -> None:
        """A request gave up. Its client's later ones keep their places, which rarely matters; O(n)."""
        self._heap = [entry for entry in self._heap if entry[4] is not item]
        heapq.heapify(self._heap)
        if not self._heap:
            self._finish.clear()
            self._now = 0.0
