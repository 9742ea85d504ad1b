"""The waiting room: where requests are while no replica is routable.

Place in the flow: match → **wait** → select. It delays nobody while any replica is routable: requests queue
at replicas, where fairness is kept (R1, R2). Those who wait for the first replica of a service that stands at zero wait
here too (`fleet.activation`). Bounded by `limits.maxConcurrent`, which counts those inside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from evenkeel_router.fleet.fair_queue import FairQueue


class WaitQueue:
    """Waits with a deadline; leaves in per-client fair order."""

    def __init__(self) -> None:
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()
        self.changed: Callable[[], None] = lambda: None
        """Called when somebody enters or leaves."""

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
        """A replica is routable: everybody leaves, and is dispatched in this order."""
        while self._queue:
            turn = self._queue.pop()
            if not turn.done():
                turn.set_result(None)
        self.changed()
