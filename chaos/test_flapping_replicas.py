"""Scale events: replicas that come, go, and come back, while everybody is backlogged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chaos.rig.notes import Notes
from chaos.rig.scene import Scene, scene

BETWEEN_S = 12.0
"""Between scale events. A replica that drains serves out its queue, whatever the weights say: what is in a queue has to
be little beside what is served between two events, as it is with events a minute apart."""
SKEWED = {"router-0": 95.0, "router-1": 5.0}


async def scale_down(on: Scene, name: str) -> None:
    """As the operator does: routers stop sending there, it finishes what it has, it ends."""
    replica = on.fleet.forget_replica(name)
    await asyncio.sleep(2)  # for routers to read their configuration
    await replica.end()


@pytest.mark.core
async def test_a_scale_event_every_few_seconds(tmp_path: Path, note: Notes) -> None:
    async with scene(tmp_path, replicas=2, ingress=SKEWED) as on:
        for _ in range(2):
            added = await on.fleet.add_replica()
            await on.load.until_done(60)
            await scale_down(on, added.name)
            await on.load.until_done(60)
    on.assert_bounded(note)


async def test_shares_hold_through_a_fleet_that_is_replaced_again_and_again(
    tmp_path: Path, note: Notes
) -> None:
    async with scene(tmp_path, replicas=2, ingress=SKEWED) as on:
        before = on.shares.served()
        for _ in range(8):
            oldest = next(iter(on.fleet.replicas))
            await on.fleet.add_replica()
            await asyncio.sleep(BETWEEN_S)
            await scale_down(on, oldest)
            await asyncio.sleep(BETWEEN_S)
        after = on.shares.served()
    given = {name: after[name] - before[name] for name in after}
    note(f"gold over bronze {given['gold'] / given['bronze']:.3f}")
    assert given["gold"] / given["bronze"] == pytest.approx(4.0, rel=0.05)
    # No bound: drains that serve out their queues add up (docs/chaos.md).
    note.keep(on.shares.times_s, on.shares.leads, bound=on.bound())
