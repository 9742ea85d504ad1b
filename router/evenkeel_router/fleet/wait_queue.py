"""Where requests wait while no replica is routable.

It delays no request while any replica is routable: requests queue at replicas, where fairness is kept (R1, R2).
Requests for a service at zero wait here too (`fleet.activation`). `limits.maxConcurrent` bounds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from evenkeel_router.fleet.fair_queue import FairQueue


class WaitQueue:
    """Requests wait with a deadline, and leave in an order that is fair per client."""

    def __init__(self) -> None:
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()
        self.changed: Callable[[], None] = lambda: None
        """Called when a request enters or leaves."""

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
