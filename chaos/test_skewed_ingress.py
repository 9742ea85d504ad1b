"""Shares are those of the weights, however requests are spread over routers that only talk once a second."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.rig.load import Client
from chaos.rig.notes import Notes
from chaos.rig.scene import Scene, scene, stage, under_load

MOSTLY_ONE = {"router-0": 95.0, "router-1": 5.0}
MOSTLY_OTHER = {"router-0": 5.0, "router-1": 95.0}
WANT = pytest.approx(4.0, rel=0.05)


async def assert_shares(on: Scene, hundreds: int, note: Notes) -> None:
    ratio = await on.ratio_over(hundreds)
    note(f"gold over bronze {ratio:.3f}")
    assert ratio == WANT


@pytest.mark.core
async def test_two_routers_with_nearly_everything_at_one_of_them(
    tmp_path: Path, note: Notes
) -> None:
    async with scene(tmp_path, ingress=MOSTLY_ONE) as on:
        await assert_shares(on, 10, note)
    on.assert_bounded(note)


async def test_two_routers_with_a_tenant_each(tmp_path: Path, note: Notes) -> None:
    async with stage(tmp_path) as on:
        await on.fleet.add_replicas(2)
        await on.fleet.add_routers(2)
        clients = [
            Client(name="gold/a", open=100, ingress=MOSTLY_ONE),
            Client(name="bronze/a", open=40, ingress=MOSTLY_OTHER),
        ]
        async with under_load(on, clients):
            await assert_shares(on, 24, note)
    on.assert_bounded(note)


async def test_four_routers(tmp_path: Path, note: Notes) -> None:
    ingress = {"router-0": 95.0, "router-1": 3.0, "router-2": 1.0, "router-3": 1.0}
    async with scene(tmp_path, replicas=3, routers=4, ingress=ingress) as on:
        await assert_shares(on, 36, note)
    on.assert_bounded(note)
