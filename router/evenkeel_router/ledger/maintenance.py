"""Looking after the ledger: what departed is closed, folded into the book, and forgotten (design R3, R6).

Place in the flow: reports, accounts and peers write to the ledger all the time; **tending** runs beside them, every
second for what is cheap and every ten for the book, which must be sealed less often than replicas report. Beside it
**telling** computes what the ledger says about the fleet, in steps between which requests are served.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

from evenkeel_fairshare.ledger import Sealer

from evenkeel_router.state import RouterState

DEMAND_INTERVAL_S: Final = 5.0
DEMAND_PIECE: Final = 500
MAX_LOAD: Final = 0.1
"""Figures of a large fleet take their time; then they are computed less often, for at most this part of a core."""


class LedgerMaintenance:
    """Tends one router's ledger."""

    def __init__(self, state: RouterState, members: Callable[[], frozenset[str] | None]) -> None:
        """`members`: all routers of the service; None while one of them is not known by name."""
        self._state = state
        self._members = members
        self._sealer = Sealer(state.ledger)

    async def run(self) -> None:
        """Tend for ever."""
        timing, now = self._state.timing, asyncio.get_running_loop().time
        began_s = sealed_s = now()
        while True:
            await asyncio.sleep(timing.report_interval_s)
            members, now_s = self._members(), now()
            if members is not None:
                self._state.ledger.members = members
                self._state.accounting.close(now_s, settled=now_s - began_s >= timing.settle_s)
            await reckon(self._state)
            if members is not None and now_s - sealed_s >= timing.seal_interval_s:
                sealed_s = now_s
                await self._seal(members, now_s)

    async def _seal(self, members: frozenset[str], now_s: float) -> None:
        alive = self._state.accounting.alive
        await _in_steps(self._sealer.steps(members, live=alive, now_s=now_s))
        self._sealer.collect(members)


async def reckon(state: RouterState) -> None:
    """Have at hand what departed incarnations left behind: the next seed asks for it."""
    for name, _ in list(state.ledger.open_pages()):
        if name not in state.accounting.alive and name in state.ledger.pages:
            await _in_steps(state.ledger.closing_steps(name))


async def _in_steps(steps: Iterable[object]) -> None:
    for _ in steps:
        await asyncio.sleep(0)


async def tell(state: RouterState) -> None:
    """Keep `state.fairness` up to date, for ever."""
    now = time.perf_counter  # the loop's own clock stands still within a step
    while True:
        await asyncio.sleep(state.timing.report_interval_s)
        busy_s, step_s = 0.0, now()
        for _ in state.fairness.steps(state.accounting.alive, state.weights, step_s):
            busy_s += now() - step_s
            await asyncio.sleep(0)
            step_s = now()
        await asyncio.sleep(busy_s / MAX_LOAD - busy_s)


async def demand(state: RouterState) -> None:
    """Publish what clients ask this router for (design §6), for ever."""
    now = asyncio.get_running_loop().time
    while True:
        await asyncio.sleep(min(DEMAND_INTERVAL_S, 5 * state.timing.report_interval_s))
        rates = list(state.demand.rates(now()).items())
        for at in range(0, len(rates), DEMAND_PIECE):
            state.ledger.requested(dict(rates[at : at + DEMAND_PIECE]))
            await asyncio.sleep(0)
