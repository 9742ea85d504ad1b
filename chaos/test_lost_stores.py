"""Stores that fail, hang or lose all data, and all routers at once: the service of departed replicas stays known."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from evenkeel_contract.routerconfig import StateConfig, StateStore

from chaos.rig.notes import Notes
from chaos.rig.scene import Scene, scene
from tests.support.redisserver import needs_redis, redis_server

REFUSED = {"connection", "stream"}
SAVED_S = 4.0
"""Several saves, one per second here, with the pause after a failure."""


async def all_routers_die_and_come_back(on: Scene) -> None:
    for router in on.fleet.routers.values():
        await router.kill()
    for router in on.fleet.routers.values():
        await router.start()
    await on.load.until_done(60)


@pytest.mark.core
@needs_redis
async def test_redis_loses_everything_and_falls_silent_and_then_every_router_dies(
    tmp_path: Path, note: Notes
) -> None:
    async with redis_server(tmp_path, append=False) as server:
        state = StateConfig(store=StateStore.REDIS, redis_url=server.url, save_interval_s=1.0)
        async with scene(tmp_path, replicas=3, state=state, may_fail=REFUSED) as on:
            await on.fleet.scale_down("r0")  # from now on only ledgers have its service
            await server.kill()
            await on.load.until_done(60)
            await server.start()
            await asyncio.sleep(SAVED_S)
            server.send(signal.SIGSTOP)
            await on.load.until_done(60)
            server.send(signal.SIGCONT)
            await asyncio.sleep(SAVED_S)
            await all_routers_die_and_come_back(on)
        on.assert_bounded(note)


async def test_the_only_router_dies_again_and_again_and_its_file_knows_what_was(
    tmp_path: Path, note: Notes
) -> None:
    state = StateConfig(
        store=StateStore.FILE, file=str(tmp_path / "ledger"), save_interval_s=0.2
    )  # fmt: skip
    async with scene(tmp_path, replicas=3, routers=1, state=state, may_fail=REFUSED) as on:
        await on.fleet.scale_down("r0")
        for _ in range(5):
            await asyncio.sleep(SAVED_S)
            await all_routers_die_and_come_back(on)
    on.assert_bounded(note)


async def test_without_any_store_the_peers_know(tmp_path: Path, note: Notes) -> None:
    async with scene(tmp_path, replicas=3, may_fail=REFUSED) as on:
        await on.fleet.scale_down("r0")
        for name in ("router-0", "router-1") * 3:
            await asyncio.sleep(SAVED_S)
            await on.fleet.routers[name].kill()
            await on.fleet.routers[name].start()
    on.assert_bounded(note)
