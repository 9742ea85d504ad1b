"""Scale events: replicas join, leave and return while all clients are backlogged."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from chaos.rig.notes import Notes
from chaos.rig.scene import BRONZE, GOLD, Scene, scene

DRAINS = int(os.environ.get("EVENKEEL_DRAINS", "12"))
"""As fast as replicas start. 24 take four minutes on two idle cores."""
SKEWED = {"router-0": 95.0, "router-1": 5.0}


@pytest.mark.core
async def test_a_scale_event_every_few_seconds(tmp_path: Path, note: Notes) -> None:
    async with scene(tmp_path, replicas=2, ingress=SKEWED) as on:
        for _ in range(2):
            added = await on.fleet.add_replica()
            await on.load.until_done(60)
            await on.fleet.scale_down(added.name)
            await on.load.until_done(60)
    on.assert_bounded(note)


async def replace_all(on: Scene, *, times: int, between_s: float) -> float:
    """Replace the oldest replica again and again; gold over bronze meanwhile."""
    before = on.shares.served()
    for _ in range(times):
        oldest = next(iter(on.fleet.replicas))
        await on.fleet.add_replica()
        await asyncio.sleep(between_s)
        await on.fleet.scale_down(oldest)
        await asyncio.sleep(between_s)
    after = on.shares.served()
    return (after[GOLD] - before[GOLD]) / (after[BRONZE] - before[BRONZE])


@pytest.mark.parametrize(("times", "between_s"), [(8, 12.0), (DRAINS, 1.0)])
async def test_shares_hold_through_a_fleet_that_is_replaced_again_and_again(
    tmp_path: Path, note: Notes, times: int, between_s: float
) -> None:
    async with scene(tmp_path, replicas=2, ingress=SKEWED) as on:
        ratio = await replace_all(on, times=times, between_s=between_s)
    note(f"gold over bronze {ratio:.3f}")
    on.assert_bounded(note)
    assert ratio == pytest.approx(4.0, rel=0.05)
