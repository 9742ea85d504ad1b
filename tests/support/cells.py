"""Two cells of one service with skewed demand: each is a fleet of one simulated replica with a router of its own (R21)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import httpx
from evenkeel_contract.federationconfig import CellConfig, FederationConfig
from evenkeel_contract.routerconfig import TenancyConfig
from evenkeel_router.app import Router, running
from evenkeel_simulator.engine.config import EngineConfig
from evenkeel_simulator.server.app import RunningServer, running_server

from tests.support.gated import FLOOD, flood, served, tenant
from tests.support.routers import (
    PATIENCE_S,
    QUICK,
    config_for,
    replica_of,
    routable,
    simulated,
)

TOKEN = "one token for all cells"
INTERVAL_S = 0.5
WEIGHTS = {"ads": 1, "law": 1}


@dataclass
class Cell:
    """One fleet of one replica, its router, and a client of it."""

    router: Router
    server: RunningServer
    client: httpx.AsyncClient


@asynccontextmanager
async def two_cells(
    *, joined: bool, weights: Mapping[str, int] = WEIGHTS
) -> AsyncIterator[list[Cell]]:
    names = ("east", "west")
    tenancy = TenancyConfig(tenants=tuple(tenant(name, one) for name, one in weights.items()))
    async with AsyncExitStack() as stack:
        cells = []
        for _ in names:
            server = await stack.enter_async_context(
                running_server(simulated(engine=EngineConfig(max_running=8), speed=4.0))
            )
            router = await stack.enter_async_context(
                running(config_for(replica_of(server), tenancy=tenancy), timing=QUICK)
            )
            client = await stack.enter_async_context(
                httpx.AsyncClient(
                    base_url=router.url,
                    timeout=5 * PATIENCE_S,
                    limits=httpx.Limits(max_connections=None),
                )
            )
            await routable(router, 1)
            cells.append(Cell(router, server, client))
        if joined:
            for number, cell in enumerate(cells):
                other = cells[1 - number]
                federation = federation_of(names[number], {names[1 - number]: other.router.url})
                await cell.router.apply(replace(cell.router.configured, federation=federation))
        yield cells


def federation_of(cell: str, others: Mapping[str, str], **changes: str) -> FederationConfig:
    return FederationConfig(
        cell=cell,
        token=changes.get("token", TOKEN),
        cells=tuple(CellConfig(name=name, url=url) for name, url in others.items()),
        interval_s=INTERVAL_S,
    )


def flooded(cells: Sequence[Cell]) -> list[asyncio.Task[None]]:
    """Ads floods both cells, law only the second."""
    return [
        asyncio.create_task(flood(cells[at].client, name, n))
        for at, name in ((0, "ads"), (1, "ads"), (1, "law"))
        for n in range(FLOOD)
    ]


async def ended(loads: Sequence[asyncio.Task[None]]) -> None:
    assert not any(load.done() for load in loads)
    for load in loads:
        load.cancel()
    await asyncio.gather(*loads, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class Served:
    """What each tenant got in a while, weighted tokens: of the first cell, of the second."""

    first: Mapping[str, float]
    second: Mapping[str, float]
    part_of_law: float = 0.5
    """Law's weight, as a part of both."""

    @property
    def owed_to_law(self) -> float:
        """Its part of all, at most all of the second cell: law has no requests at the first one."""
        first, second = sum(self.first.values()), sum(self.second.values())
        return min(second, self.part_of_law * (first + second))

    @property
    def law_over_owed(self) -> float:
        """What law got, over what it is owed."""
        return self.second["law"] / self.owed_to_law

    @property
    def ads_over_owed(self) -> float:
        """What ads got, over what it is owed: all that law is not."""
        every = sum(self.first.values()) + sum(self.second.values())
        return (every - self.second["law"]) / (every - self.owed_to_law)


async def served_under_floods(
    cells: Sequence[Cell],
    *,
    passed_s: float,
    measured_s: float,
    weights: Mapping[str, int] = WEIGHTS,
) -> Served:
    """What tenants get while ads floods both cells, and law the second, from `passed_s` on."""
    loads = flooded(cells)
    await asyncio.sleep(passed_s)
    before = [served(cell.server) for cell in cells]
    await asyncio.sleep(measured_s)
    first, second = (
        {name: more - old.get(name, 0.0) for name, more in served(cell.server).items()}
        for cell, old in zip(cells, before, strict=True)
    )
    await ended(loads)
    return Served(first, second, weights["law"] / sum(weights.values()))
