"""A scene: a fleet under load with its measurements, and the checks at its end.

async with scene(folder, replicas=3, routers=2) as on:   # all clients are backlogged
    …faults…
# every answer has arrived, every ledger is correct, and only allowed requests failed
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from evenkeel_contract.routerconfig import StateConfig, TenantConfig
from evenkeel_fairshare.bounds import churn_gap

from chaos.rig.arena import NAMESPACE, Arena, arena, tenant
from chaos.rig.load import EXHAUSTED, REQUEST_COST, Client, Load, Tally, open_load
from chaos.rig.notes import Notes
from chaos.rig.readings import ESTIMATE_ERROR, Reader, open_reader

GOLD, BRONZE = "gold", "bronze"
WEIGHTS: Final = {GOLD: 4, BRONZE: 1}
SAMPLE_S: Final = 0.25
WARM_REQUESTS: Final = 100


@dataclass(slots=True)
class Shares:
    """Service over weight of two tenants, by the replicas' records, over time."""

    fleet: Arena
    pair: tuple[str, str]
    leads: list[float] = field(default_factory=list)
    """The first one's service over its weight, less the other's."""
    times_s: list[float] = field(default_factory=list)

    def served(self) -> dict[str, float]:
        """By tenant, weighted tokens, up to now."""
        total = dict.fromkeys(self.pair, 0.0)
        for said in self.fleet.truth().values():
            for identity, service in said.service.items():
                name = identity.removeprefix(f"{NAMESPACE}/").partition("/")[0]
                total[name] = total.get(name, 0.0) + service
        return total

    async def watch(self) -> None:
        """Take samples until cancelled."""
        while True:
            served = self.served()
            one, other = (served[name] / WEIGHTS.get(name, 1) for name in self.pair)
            self.leads.append(one - other)
            self.times_s.append(time.monotonic())
            await asyncio.sleep(SAMPLE_S)

    def gap(self) -> float:
        """The largest gap over any interval."""
        return max(self.leads) - min(self.leads)


@dataclass(slots=True)
class Scene:
    """The objects of a scene."""

    fleet: Arena
    load: Load
    reader: Reader
    shares: Shares

    async def ratio_over(self, hundreds: int) -> float:
        """Gold's service over bronze's during the next requests: a slow machine needs as many as a fast one."""
        before = self.shares.served()
        for _ in range(hundreds):
            await self.load.until_done(100)
        after = self.shares.served()
        return (after[GOLD] - before[GOLD]) / (after[BRONZE] - before[BRONZE])

    def bound(self, **terms: float) -> float:
        """The gap that theorem 2 allows between gold and bronze. `terms`: of `Churn`."""
        churn = replace(self.fleet.churn, **terms)  # type: ignore[arg-type]
        return churn_gap(churn, (WEIGHTS[GOLD], WEIGHTS[BRONZE]))

    def assert_bounded(self, note: Notes, **terms: float) -> None:
        """The gap between the two is within the bound of theorem 2. `terms`: of `Churn`, beyond the usual."""
        gap, bound = self.shares.gap(), self.bound(**terms)
        note(f"gap {gap:,.0f} of {bound:,.0f} allowed")
        note.keep(self.shares.times_s, self.shares.leads, bound=bound)
        assert gap < bound


def everybody(ingress: dict[str, float] | None = None) -> list[Client]:
    """One client of either tenant."""
    # Roughly by the weights, so that both are queued at every replica and no request waits indefinitely.
    opened = {GOLD: 100, BRONZE: 40}
    return [Client(name=f"{name}/a", open=opened[name], ingress=ingress or {}) for name in WEIGHTS]


@asynccontextmanager
async def stage(
    folder: Path,
    *tenants: TenantConfig,
    pair: tuple[str, str] = (GOLD, BRONZE),
    state: StateConfig | None = None,
    seed: int = 1,
) -> AsyncIterator[Scene]:
    """An empty fleet."""
    named = tenants or tuple(tenant(name, weight, a=1) for name, weight in WEIGHTS.items())
    async with (
        arena(folder, *named, state=state) as fleet,
        open_load(fleet, rng=random.Random(seed), now=time.monotonic) as load,
        open_reader(fleet) as reader,
    ):
        yield Scene(fleet, load, reader, Shares(fleet, pair))


def overcharges(on: Scene) -> list[str]:
    """Clients that paid more than their requests cost, each once, however often it was tried (R11)."""
    faults = []
    for name, router in on.fleet.routers.items():
        for identity, paid in on.reader.served(router.name).items():
            tally = _tally(on, identity)
            most = tally.cost + tally.unfinished * REQUEST_COST
            if paid > most * (1 + ESTIMATE_ERROR) + REQUEST_COST:
                faults.append(f"{name}: {identity} paid {paid}, its requests cost {most} at most")
    return faults


def _tally(on: Scene, identity: str) -> Tally:
    return on.load.tallies[identity.removeprefix(f"{NAMESPACE}/")]


@asynccontextmanager
async def under_load(
    on: Scene,
    clients: Sequence[Client],
    *,
    may_fail: Collection[str] = (),
    past_is_lost: bool = False,
) -> AsyncIterator[None]:
    """All clients send inside. Afterwards every answer has arrived and every ledger is correct.

    `past_is_lost`: ledgers are not checked, since no router knows all that was served.
    """
    on.load.start(*clients)
    await on.load.until_done(WARM_REQUESTS)
    watching = asyncio.create_task(on.shares.watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    await on.load.stop()
    on.reader.uncomputed = lambda identity: REQUEST_COST * _tally(on, identity).failed[EXHAUSTED]
    if not past_is_lost:
        await on.reader.settled()
        assert not (faults := overcharges(on)), faults
    failed = {cause for tally in on.load.tallies.values() for cause in tally.failed}
    assert failed <= set(may_fail), on.load.tallies


@asynccontextmanager
async def scene(
    folder: Path,
    *,
    replicas: int = 2,
    routers: int = 2,
    ingress: dict[str, float] | None = None,
    may_fail: Collection[str] = (),
    state: StateConfig | None = None,
    past_is_lost: bool = False,
) -> AsyncIterator[Scene]:
    """The default scene: gold and bronze, 4 to 1, both backlogged everywhere."""
    async with stage(folder, state=state) as on:
        await on.fleet.add_replicas(replicas)
        await on.fleet.add_routers(routers)
        clients = everybody(ingress)
        async with under_load(on, clients, may_fail=may_fail, past_is_lost=past_is_lost):
            yield on
