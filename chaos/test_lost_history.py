"""All routers are killed at once without a store: carried balances begin at 0, and no client is charged for the past
(R8)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chaos.rig.arena import Replica
from chaos.rig.notes import Notes
from chaos.rig.scene import BRONZE, GOLD, Scene, scene

REFUSED = {"connection", "stream"}
TENANTS = (f"ns/{GOLD}", f"ns/{BRONZE}")


async def seeds(on: Scene, replica: Replica) -> tuple[float, ...]:
    """The seeds of gold and bronze at a replica, by its reports."""
    async with asyncio.timeout(60):
        while True:
            await on.reader.pull("router-0")
            page = on.reader.copies["router-0"].ledger.replica_accounts.get(replica.incarnation())
            if page is not None and all(tenant in page.tenants for tenant in TENANTS):
                return tuple(page.tenant_seed(tenant) or 0.0 for tenant in TENANTS)
            await asyncio.sleep(0.2)


async def kill_all_routers(on: Scene) -> None:
    routers = on.fleet.routers.values()
    await asyncio.gather(*(router.kill() for router in routers))
    await asyncio.gather(*(router.start() for router in routers))


async def replace_oldest(on: Scene) -> tuple[float, ...]:
    """Scale down, then up; the seeds at the new replica."""
    await on.fleet.scale_down(next(iter(on.fleet.replicas)))
    return await seeds(on, await on.fleet.add_replica())


@pytest.mark.parametrize(
    ("routers", "rounds"), [(1, 10), (3, 10), pytest.param(3, 2, marks=pytest.mark.core)]
)
async def test_seeds_from_before_are_no_debts_after_all_routers_were_killed(
    tmp_path: Path, note: Notes, routers: int, rounds: int
) -> None:
    before, after = [], []
    async with scene(
        tmp_path, replicas=1, routers=routers, may_fail=REFUSED, past_is_lost=True
    ) as on:
        for _ in range(rounds):
            before.append(await replace_oldest(on))
            await kill_all_routers(on)
            after.append(await seeds(on, await on.fleet.add_replica()))
            await on.fleet.scale_down(next(iter(on.fleet.replicas)))
        note(f"seeds of gold and bronze before each kill {before}, after it {after}")
        note(f"gap {on.shares.gap():,.0f}, bound {on.bound():,.0f}")
    assert any(any(each) for each in before), "nothing was ever taken over"
    assert not any(any(each) for each in after)
