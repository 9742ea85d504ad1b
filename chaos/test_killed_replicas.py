"""kill -9 of replicas under load: their unreported service is within the ledger's bounds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chaos.rig.arena import OVERSHOOT
from chaos.rig.notes import Notes
from chaos.rig.scene import scene

LOST = {"stream"}
"""A crash ends the streams of the crashed process with an error. All other requests are retried, and a request that
only waited there uses no attempt."""


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
