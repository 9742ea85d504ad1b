"""Looking after the ledger: what departed is closed, folded into the book, and forgotten (design R3, R6).

Place in the flow: reports, accounts and peers write to the ledger all the time; **tending** runs beside them, every
second for what is cheap and every ten for the book, which must be sealed less often than replicas report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from evenkeel_fairshare.ledger import Sealer

from evenkeel_router.state import RouterState


class Tending:
    """Tends one router's ledger."""

    def __init__(self, state: RouterState, members: Callable[[], frozenset[str] | None]) -> None:
        """`members`: all routers of the service; None while one of them is not known by name."""
        self._state = state
        self._members = members
        self._sealer = Sealer(state.ledger)

    async def run(self) -> None:
        """Tend for ever."""
        now = asyncio.get_running_loop().time
        began_s = sealed_s = now()
        while True:
            await asyncio.sleep(self._state.timing.report_interval_s)
            now_s = now()
            settled = now_s - began_s >= self._state.timing.settle_s
            members = self._members()
            if members is not None:
                self._state.ledger.members = members
                self._state.books.close(now_s, settled=settled)
            if members is not None and now_s - sealed_s >= self._state.timing.seal_interval_s:
                sealed_s = now_s
                self._sealer.seal(members, live=self._state.books.alive, now_s=now_s)
                self._sealer.collect(members)
