"""Where requests wait while no replica is routable.

It delays no request while any replica is routable: requests queue at replicas, where fairness is kept (R1, R2).
Requests for a service at zero wait here too (`Activation`). `limits.maxConcurrent` bounds it.

The order is fair per client (R2), by start-time fair queueing (Goyal, Vin, Cheng 1996, section 2): a request starts where its
client's previous one finished, in virtual time, or now if the client was idle; it costs its input tokens divided by the client's
weight; the lowest start goes first. So a client with a thousand queued requests does not delay a client with one.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar

from evenkeel_contract.routerconfig import AtZero, RouterConfig

from evenkeel_router.fleet.selection import Fleet
from evenkeel_router.ledger.totals import Histogram

_T = TypeVar("_T")


class FairQueue(Generic[_T]):
    """Requests by client. Ties leave in the order of arrival."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, float, str, _T]] = []
        """Start, arrival, finish, client and item of each waiting request, the lowest start first."""
        self._finish: dict[str, float] = {}
        """Client → virtual finish of its last request; empty while no request waits."""
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


class WaitQueue:
    """Requests wait with a deadline, and leave in an order that is fair per client."""

    def __init__(self) -> None:
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()
        self.changed: Callable[[], None] = lambda: None
        """Callback after a request entered or left."""

    def __len__(self) -> int:
        return len(self._queue)

    async def wait(self, *, client: str, cost: float, weight: float, timeout_s: float) -> None:
        """Wait until `open`; raises `TimeoutError`."""
        turn = asyncio.get_running_loop().create_future()
        self._queue.push(turn, client=client, cost=cost, weight=weight)
        self.changed()
        try:
            async with asyncio.timeout(timeout_s):
                await turn
        except BaseException:
            self._queue.discard(turn)
            self.changed()
            raise

    def open(self) -> None:
        """A replica is routable: all requests leave, and are dispatched in this order."""
        while self._queue:
            turn = self._queue.pop()
            if not turn.done():
                turn.set_result(None)
        self.changed()


_log = logging.getLogger(__name__)
WAITS_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0)
"""Bounds of a histogram: from a process of the simulator to the weights of a large model out of cold storage."""


class Activation:
    """The activation of one router."""

    def __init__(
        self,
        fleet: Fleet,
        room: WaitQueue,
        config: Callable[[], RouterConfig],
        *,
        now: Callable[[], float],
    ) -> None:
        self._fleet = fleet
        self._room = room
        self._config = config
        self._now = now
        self._at_zero = True
        self._since_s = 0.0
        self._news = asyncio.Event()
        self._ended = False
        self.asked = 0
        """Polls that wait for a change."""
        self.wanted = False
        """A request waits for the first replica."""
        self.took_s = Histogram(WAITS_S)
        """Time from the first request that wanted a replica to one that takes requests."""
        room.changed = self.look

    @property
    def holds(self) -> bool:
        """Whether requests wait for a first replica, for up to activationTimeout."""
        return self._at_zero and self._config().at_zero is AtZero.ACTIVATE

    def look(self) -> None:
        """The fleet, the waiting room or the configuration changed."""
        if self._fleet.routable:
            self._at_zero = False
        elif self._fleet.deserted:
            self._at_zero = True
        wanted = self.holds and len(self._room) > 0
        if wanted != self.wanted:
            self.wanted = wanted
            self._notify()

    def _notify(self) -> None:
        self._news.set()  # wakes the polls that wait now, …
        self._news.clear()  # … and none that comes later
        if self.wanted:
            self._since_s = self._now()
            _log.info("a request waits for the first replica of the service: one is needed")
        elif self._at_zero:
            _log.info("no request waits for a first replica now")
        else:
            took_s = self._now() - self._since_s
            self.took_s.new.append(took_s)
            _log.info("the first replica takes requests, %.1f s after a request needed it", took_s)

    async def other_than(self, known: bool, timeout_s: float) -> bool:
        """Whether a replica is wanted. Waits until that differs from `known`, the time is over, or the router ends."""
        self.asked += 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    while self.wanted is known and not self._ended:
                        await self._news.wait()
        finally:
            self.asked -= 1
        return self.wanted

    def end(self) -> None:
        """The router ends: every open poll is answered."""
        self._ended = True
        self._news.set()
