"""Resources that wait for a pass. Each is queued at most once and has at most one pass at a time; failures back off.

Level-triggered: ten events lead to one pass.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from heapq import heapify, heappop, heappush
from math import inf
from random import Random
from typing import Final

from evenkeel_kube.client import ClusterError
from prometheus_client import Gauge

from evenkeel_operator import metrics
from evenkeel_operator.cluster.store import Key

_log = logging.getLogger(__name__)

# Related events arrive together: a Deployment's status changes several times within 0.1 s.
SETTLE_S: Final = 0.1
FIRST_RETRY_S: Final = 0.5
LAST_RETRY_S: Final = 120.0

Pass = Callable[[Key], Awaitable[float | None]]
"""Makes one pass. Returns the seconds until the next pass without an event; None: the resource is deleted."""


class WorkQueue:
    """A queue of keys by due time."""

    def __init__(self, *, rng: Random, waiting: Gauge = metrics.WAITING) -> None:
        """`waiting` counts the resources with a pass that is due now or later."""
        self._waiting = waiting
        self._due_s: dict[Key, float] = {}
        self._order: list[tuple[float, Key]] = []
        """A heap of `_due_s`, with entries that are out of date."""
        self._running: set[Key] = set()
        self._again: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Event()
        self._rng = rng

    def add(self, key: Key, *, after_s: float = SETTLE_S) -> None:
        """Request a pass, unless an earlier one is already queued."""
        if key in self._running:
            self._again.add(key)
            return
        due_s = asyncio.get_running_loop().time() + after_s
        if due_s >= self._due_s.get(key, inf):
            return
        self._due_s[key] = due_s
        heappush(self._order, (due_s, key))
        if len(self._order) > 2 * len(self._due_s):  # most are out of date
            self._order = [(due_s, key) for key, due_s in self._due_s.items()]
            heapify(self._order)
        self._waiting.set(len(self._due_s))
        self._changed.set()

    async def work(self, make_pass: Pass) -> None:
        """Make passes until cancelled. Run one such task per parallel pass."""
        while True:
            key = await self._next()
            try:
                after_s = await self._attempt(key, make_pass)
            finally:
                self._running.discard(key)
                again = key in self._again
                self._again.discard(key)
            # An event during a failed pass does not shorten its back-off.
            if again and key not in self._failures:
                after_s = SETTLE_S
            if after_s is not None:
                self.add(key, after_s=after_s)

    async def _attempt(self, key: Key, make_pass: Pass) -> float | None:
        try:
            after_s = await make_pass(key)
        except ClusterError as error:
            after_s = self._backoff_s(key)
            _log.warning("%s: %s; again in %.1f s", key, error, after_s)
        except Exception:  # noqa: BLE001 - a fault of ours must not end the passes over all others
            after_s = self._backoff_s(key)
            _log.exception("%s: a pass failed; again in %.1f s", key, after_s)
        else:
            self._failures.pop(key, None)
        return after_s

    async def _next(self) -> Key:
        while True:
            now_s = asyncio.get_running_loop().time()
            while self._order and self._due_s.get(self._order[0][1]) != self._order[0][0]:
                heappop(self._order)
            due_s, key = self._order[0] if self._order else (inf, None)
            if key is not None and due_s <= now_s:
                heappop(self._order)
                del self._due_s[key]
                self._waiting.set(len(self._due_s))
                self._running.add(key)
                return key
            wait_s = None if key is None else due_s - now_s
            self._changed.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _backoff_s(self, key: Key) -> float:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        # A bounded exponent: 2.0 ** 1024 overflows.
        wait_s = min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures, 10))
        # Spread the retries after an outage of the API server.
        return wait_s * self._rng.uniform(0.5, 1.0)
