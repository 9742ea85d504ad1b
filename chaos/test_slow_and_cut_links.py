"""Links that are slow, lossy or cut, between processes in network namespaces of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.rig.network import Network, network
from chaos.rig.scene import everybody, stage, under_load

CUT_S = 8.0
LOST = {"stream", "connection", "timeout", "503", "504"}
"""Errors of a client behind a cut link: each is an answer, and no request hangs."""


@pytest.fixture
def net() -> Iterator[Network]:
    with network() as made:
        yield made


@pytest.mark.core
async def test_a_router_and_a_replica_cut_off_for_a_while(net: Network, tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        replicas = [await on.fleet.add_replica(place=net.place()) for _ in range(2)]
        routers = [await on.fleet.add_router(place=net.place()) for _ in range(2)]
        async with under_load(on, everybody(), may_fail=LOST):
            for cut in (replicas[0], routers[1]):
                net.cut(cut.place)
                await asyncio.sleep(CUT_S)
                net.mend(cut.place)
                await on.load.until_done(60)


async def test_slow_and_lossy_links_everywhere(net: Network, tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        everyone = [
            *[await on.fleet.add_replica(place=net.place()) for _ in range(2)],
            *[await on.fleet.add_router(place=net.place()) for _ in range(2)],
        ]
        async with under_load(on, everybody(), may_fail=LOST):
            for child in everyone:
                net.slow(child.place, kbit_per_s=2000, loss_percent=1)
            await asyncio.sleep(30)
            for child in everyone:
                net.mend(child.place)
            await on.load.until_done(60)
