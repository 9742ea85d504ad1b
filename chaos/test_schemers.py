"""A tenant that times its idling, changes its keys and its clients' names, and cancels requests when in debt.

Its gain over a tenant that is always backlogged is less than one bound, over any interval.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from evenkeel_fairshare.bounds import churn_gap

from chaos.rig.arena import tenant
from chaos.rig.load import Client
from chaos.rig.notes import Notes
from chaos.rig.scene import Scene, stage, under_load

SLY, HONEST = "sly", "honest"
KEYS = ("sk-first", "sk-second", "sk-third")


def gain(leads: list[float]) -> float:
    """The largest rise over any interval."""
    lowest, most = leads[0], 0.0
    for lead in leads:
        lowest = min(lowest, lead)
        most = max(most, lead - lowest)
    return most


async def scheme(on: Scene, rounds: int) -> None:
    """With a new name each time: use the service, cancel, have a replica with debts replaced, return."""
    for number in range(rounds):
        name = f"{SLY}/name-{number}"
        hasty = (0.2, 1.5) if number % 2 else None
        on.load.start(Client(name=name, open=60, patience_s=hasty))
        keyed = f"{SLY}/keyed"
        on.load.start(Client(name=keyed, open=20, keys=KEYS))
        await asyncio.sleep(3)
        await on.load.drop(name)
        await on.load.drop(keyed)
        oldest = next(iter(on.fleet.replicas))
        await on.fleet.add_replica()
        await on.fleet.scale_down(oldest)


@pytest.mark.parametrize("rounds", [pytest.param(2, marks=pytest.mark.core), 8])
async def test_a_strategic_tenant_gains_less_than_one_bound(
    tmp_path: Path, note: Notes, rounds: int
) -> None:
    tenants = (tenant(HONEST, a=1), tenant(SLY, keyed=1, keys={"keyed": KEYS}))
    async with stage(tmp_path, *tenants, pair=(SLY, HONEST)) as on:
        await on.fleet.add_replicas(2)
        await on.fleet.add_routers(2)
        async with under_load(on, [Client(name=f"{HONEST}/a", open=80)]):
            await scheme(on, rounds)
    gained, bound = gain(on.shares.leads), churn_gap(on.fleet.churn)
    note(f"gained {gained:,.0f}, one bound is {bound:,.0f}")
    note.keep(on.shares.times_s, on.shares.leads, bound=bound)
    assert gained < bound
