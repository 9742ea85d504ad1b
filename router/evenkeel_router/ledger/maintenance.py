"""Periodic work on the ledger: close departed incarnations, compact, compute fairness, publish demand (design R3, R6).

Cheap work runs every second, compaction every ten: it must be rarer than reports. What routers received is dropped once reports have it,
with a look every half minute, and memory of idle clients is given back every five. All of it runs in steps between which requests are served.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

from evenkeel_contract.reports import IDLE_LOOK_S
from evenkeel_fairshare.ledger import Compactor
from evenkeel_fairshare.ledger.closed_totals import NOTHING_CLOSED

from evenkeel_router.ledger.service_ledger import ServiceLedger
from evenkeel_router.settings import Timing

COVERED_LOOK_S: Final = 30.0
"""How often this router drops what routers received and reports have had since the last such look."""
DEMAND_INTERVAL_S: Final = 5.0
DEMAND_PIECE: Final = 500
FIRST_TOTALS_SETTLES: Final = 10
"""Longest wait for replicas that never answered, in times of `settle_s`: five minutes."""
MAX_LOAD: Final = 0.1
"""The figures of a large fleet are computed less often, so that they use at most this part of a core."""


class LedgerMaintenance:
    """Runs the periodic work on one router's ledger."""

    def __init__(
        self,
        service_ledger: ServiceLedger,
        timing: Timing,
        members: Callable[[], frozenset[str] | None],
        all_reported: Callable[[], bool],
    ) -> None:
        """`members`: all routers of the service; None while one of them is not known by name.

        `all_reported`: whether every listed replica has reported at least once.
        """
        self._service_ledger = service_ledger
        self._timing = timing
        self._members = members
        self._all_reported = all_reported
        self._compactor = Compactor(service_ledger.ledger)

    async def run(self) -> None:
        """Run until cancelled."""
        timing, now = self._timing, asyncio.get_running_loop().time
        began_s = compacted_s = forgot_s = dropped_s = now()
        ledger, accounting = self._service_ledger.ledger, self._service_ledger.accounting
        while True:
            await asyncio.sleep(timing.report_interval_s)
            members, now_s = self._members(), now()
            if members is not None:
                ledger.members = members
                accounting.close(now_s, settled=now_s - began_s >= timing.settle_s)
            await compute_closings(self._service_ledger)
            if (
                members is not None
                and now_s - compacted_s >= timing.compact_interval_s
                and self._knows_the_past(now_s - began_s)
            ):
                compacted_s = now_s
                await self._compact(members, now_s)
            if now_s - dropped_s >= COVERED_LOOK_S:
                dropped_s = now_s
                await _in_steps(ledger.drop_covered(accounting.alive, accounting.keeps))
            if now_s - forgot_s >= IDLE_LOOK_S:
                forgot_s = now_s
                await _in_steps(ledger.forget_idle(accounting.alive, accounting.keeps))

    def _knows_the_past(self, running_s: float) -> bool:
        """Whether the store was read and every replica was asked: the first closed totals fix which seeds are older (R8)."""
        persistence = self._service_ledger.persistence
        if persistence is not None and not persistence.loaded.is_set():
            return False
        return (
            self._service_ledger.ledger.closed_totals.rank != NOTHING_CLOSED
            or self._all_reported()
            or running_s >= FIRST_TOTALS_SETTLES * self._timing.settle_s
        )

    async def _compact(self, members: frozenset[str], now_s: float) -> None:
        alive = self._service_ledger.accounting.alive
        await _in_steps(self._compactor.steps(members, live=alive, now_s=now_s))
        self._compactor.collect(members)


async def compute_closings(service_ledger: ServiceLedger) -> None:
    """Compute the final deficits at departed incarnations, which the seeds of the next one are made from (R5)."""
    for name, _ in list(service_ledger.ledger.open_accounts()):
        if (
            name not in service_ledger.accounting.alive
            and name in service_ledger.ledger.replica_accounts
        ):
            await _in_steps(service_ledger.ledger.closing_steps(name))


async def _in_steps(steps: Iterable[object]) -> None:
    for _ in steps:
        await asyncio.sleep(0)


async def update_fairness(
    service_ledger: ServiceLedger,
    timing: Timing,
    routable: Callable[[], Iterable[str]],
    updated: Callable[[], None],
) -> None:
    """Keep `service_ledger.fairness` up to date, until cancelled.

    `routable`: names of the replicas that may get requests now. `updated` is called after each update.
    """
    now = time.perf_counter  # the loop's own clock stands still within a step
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(timing.report_interval_s)
        busy_s, step_s = 0.0, now()
        alive = service_ledger.current(loop.time())
        accounting = service_ledger.accounting
        # What waits and runs at a replica without reports is known only where this router orders its queue.
        able = [
            accounting.incarnation(name)
            for name in routable()
            if accounting.orders_queue(name) or not accounting.unreported(name)
        ]
        for _ in service_ledger.fairness.steps(
            alive, service_ledger.weights, step_s, routable=able
        ):
            busy_s += now() - step_s
            await asyncio.sleep(0)
            step_s = now()
        updated()
        await asyncio.sleep(busy_s / MAX_LOAD - busy_s)


async def demand(service_ledger: ServiceLedger, timing: Timing) -> None:
    """Publish what clients ask this router for (DESIGN section 6), until cancelled."""
    now = asyncio.get_running_loop().time
    while True:
        # Only tests have shorter report intervals than a second.
        await asyncio.sleep(min(DEMAND_INTERVAL_S, 5 * timing.report_interval_s))
        rates = list(service_ledger.demand.rates(now()).items())
        for at in range(0, len(rates) or 1, DEMAND_PIECE):
            end = at + DEMAND_PIECE
            part = min(1.0, end / (len(rates) or 1))
            service_ledger.ledger.requested(dict(rates[at:end]), part=part)
            await asyncio.sleep(0)
