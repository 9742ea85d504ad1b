"""kill -9 of replicas under load: what they served and nobody was told lies where the ledger says it lies."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chaos.rig.arena import OVERSHOOT
from chaos.rig.notes import Notes
from chaos.rig.scene import scene

LOST = {"stream"}
"""A crash loses the streams on the crashed process, and says so in them; all else is retried, and however many crash, what
only waited there spends none of its attempts."""


@pytest.mark.core
async def test_replicas_killed_one_after_another(tmp_path: Path, note: Notes) -> None:
    async with scene(tmp_path, replicas=3, may_fail=LOST) as on:
        for pair in (("r0", "r1"), ("r0", "r2")):
            for name in pair:
                replica = on.fleet.replicas[name]
                await replica.kill()
                await on.load.until_done(60)
                await replica.start()
                await on.load.until_done(60)
    on.assert_bounded(note, crash_loss=OVERSHOOT)


async def test_the_whole_fleet_killed_at_once_and_replaced(tmp_path: Path, note: Notes) -> None:
    async with scene(tmp_path, replicas=3, may_fail=LOST) as on:
        for _ in range(2):
            await asyncio.gather(*(replica.kill() for replica in on.fleet.replicas.values()))
            for replica in on.fleet.replicas.values():
                await replica.start(wait=False)
            await on.load.until_done(200)
    on.assert_bounded(note, crash_loss=OVERSHOOT)
