"""SIGSTOP: processes exist and do not respond. Their requests wait or are retried, and are never lost or charged
twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chaos.rig.notes import Notes
from chaos.rig.scene import scene

LONG_S = 8.0
"""Longer than three probes without an answer."""


@pytest.mark.core
async def test_a_frozen_replica_and_a_frozen_router(tmp_path: Path) -> None:
    async with scene(tmp_path, replicas=2) as on:
        for frozen in (on.fleet.replicas["r0"], on.fleet.routers["router-1"]):
            frozen.freeze()
            await asyncio.sleep(LONG_S)
            frozen.thaw()
            await on.load.until_done(100)


async def test_every_process_freezes_in_turn_for_a_moment(tmp_path: Path, note: Notes) -> None:
    async with scene(tmp_path, replicas=3) as on:
        for _ in range(4):
            for frozen in on.fleet.ever:
                frozen.freeze()
                await asyncio.sleep(0.7)
                frozen.thaw()
        await on.load.until_done(200)
    on.assert_bounded(note)
