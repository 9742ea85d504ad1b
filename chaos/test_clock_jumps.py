"""Wall clocks that jump by a day, forwards and back: no ledger goes by them."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.rig.clock import WallClock
from chaos.rig.notes import Notes
from chaos.rig.scene import everybody, stage, under_load

DAY_S = 24 * 3600


@pytest.mark.core
async def test_two_routers_whose_clocks_jump_apart(tmp_path: Path, note: Notes) -> None:
    clocks = [WallClock(tmp_path / f"clock-{number}") for number in range(2)]
    async with stage(tmp_path) as on:
        await on.fleet.add_replicas(2)
        for clock in clocks:
            await on.fleet.add_router(environment=clock.environment)
        async with under_load(on, everybody(), may_fail={"connection", "stream"}):
            for offset_s in (DAY_S, -DAY_S, 0):
                clocks[0].jump(offset_s)
                clocks[1].jump(-offset_s)
                await on.load.until_done(60)
            # Incarnations are named by the clock: one that starts in the past is named like an old one.
            clocks[0].jump(-DAY_S)
            await on.fleet.routers["router-0"].kill()
            await on.fleet.routers["router-0"].start()
            await on.load.until_done(60)
    on.assert_bounded(note)
