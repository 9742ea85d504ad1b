"""Routers that are killed and restarted: shares are those of a fleet without restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chaos.rig.notes import Notes
from chaos.rig.scene import BRONZE, GOLD, Scene, scene

REFUSED = {"connection", "stream"}
"""Errors of a client whose router is killed: a refused connection, or a broken stream."""
RUN_S = 100.0


def gold_share(on: Scene) -> float:
    served = on.shares.served()
    return served[GOLD] / (served[GOLD] + served[BRONZE])


@pytest.mark.core
async def test_routers_killed_in_turn(tmp_path: Path, note: Notes) -> None:
    async with scene(tmp_path, may_fail=REFUSED) as on:
        for name in ("router-0", "router-1", "router-0"):
            await on.fleet.routers[name].kill()
            await on.load.until_done(30)
            await on.fleet.routers[name].start()
            await on.load.until_done(60)
    # No bound: half of what was queued dies with a router, and not both are backlogged until it is back.
    note(f"gap {on.shares.gap():,.0f}")


async def test_a_router_restarted_twenty_times_leaves_the_shares_as_they_were(
    tmp_path: Path, note: Notes
) -> None:
    for name in ("calm", "storm"):
        (tmp_path / name).mkdir()
    async with scene(tmp_path / "calm") as on:
        await asyncio.sleep(RUN_S)
    want = gold_share(on)
    async with scene(tmp_path / "storm", may_fail=REFUSED) as on:
        router = on.fleet.routers["router-0"]
        for _ in range(20):
            await asyncio.sleep(RUN_S / 40)
            await router.kill()
            await asyncio.sleep(RUN_S / 80)
            await router.start()
    assert router.starts == 21
    note(f"gold's share {want:.4f} undisturbed, {gold_share(on):.4f} with 20 restarts")
    assert gold_share(on) == pytest.approx(want, rel=0.02)
    on.assert_bounded(note)


async def test_the_only_router_restarted_as_fast_as_it_starts(tmp_path: Path, note: Notes) -> None:
    async with scene(tmp_path, routers=1, may_fail=REFUSED) as on:
        for _ in range(10):
            await on.fleet.routers["router-0"].kill()
            await on.fleet.routers["router-0"].start()
        await on.load.until_done(100)
    on.assert_bounded(note)
