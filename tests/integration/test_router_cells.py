"""Two cells of one service, each a fleet with a router of its own: together they follow the tenants' weights (R21)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import httpx
import pytest
from evenkeel_contract.cellswire import CELL_PATH, CellFigures, decode
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
    until,
)

TOKEN = "one token for all cells"
INTERVAL_S = 0.5
WEIGHTS = {"ads": 1, "law": 1}
TENANCY = TenancyConfig(tenants=tuple(tenant(name, weight) for name, weight in WEIGHTS.items()))


@dataclass
class Cell:
    """One fleet of one replica, its router, and a client of it."""

    router: Router
    server: RunningServer
    client: httpx.AsyncClient


@asynccontextmanager
async def two_cells(*, joined: bool) -> AsyncIterator[list[Cell]]:
    names = ("east", "west")
    async with AsyncExitStack() as stack:
        cells = []
        for _ in names:
            server = await stack.enter_async_context(
                running_server(simulated(engine=EngineConfig(max_running=8), speed=4.0))
            )
            router = await stack.enter_async_context(
                running(config_for(replica_of(server), tenancy=TENANCY), timing=QUICK)
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


async def given_over_owed(cells: Sequence[Cell], *, passed_s: float, measured_s: float) -> float:
    """What law gets of both cells, over what it is owed: half of all, at most all of the second cell."""
    loads = flooded(cells)
    await asyncio.sleep(passed_s)
    before = [served(cell.server) for cell in cells]
    await asyncio.sleep(measured_s)
    gained = [
        {name: more - old[name] for name, more in served(cell.server).items()}
        for cell, old in zip(cells, before, strict=True)
    ]
    await ended(loads)
    first, second = (sum(one.values()) for one in gained)
    return gained[1]["law"] / min(second, (first + second) / 2)


def weight_of(router: Router, tenant_name: str) -> float:
    return router.services.only.federation.weights.get(
        f"ns/{tenant_name}", float(WEIGHTS[tenant_name])
    )


def part_of_law(server: RunningServer) -> float:
    given = served(server)
    return given["law"] / sum(given.values())


@pytest.mark.slow
async def test_joined_cells_follow_the_weights_within_five_percent() -> None:
    async with two_cells(joined=False) as cells:
        alone = await given_over_owed(cells, passed_s=3.0, measured_s=6.0)
    async with two_cells(joined=True) as cells:
        together = await given_over_owed(cells, passed_s=6.0, measured_s=20.0)
    assert alone < 0.6  # half of the second cell
    assert together > 0.95


async def test_what_a_tenant_gets_elsewhere_lowers_its_weight_here() -> None:
    async with two_cells(joined=True) as cells:
        first, second = (cell.router for cell in cells)
        loads = flooded(cells)
        await until(lambda: weight_of(second, "law") > 3 * weight_of(second, "ads"), "new weights")
        # The engine's deficits have them too: they come with each request.
        await until(lambda: part_of_law(cells[1].server) > 0.6, "more of the cell for law")
        # Who falls silent counts no more.
        await first.apply(replace(first.configured, federation=None))
        await until(lambda: not second.services.only.federation.weights, "the configured weights")
        await ended(loads)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer another token of somebody"}, 401),
        ({"Authorization": f"Bearer {TOKEN}"}, 200),
    ],
)
async def test_figures_of_a_cell_are_for_those_with_the_token(
    headers: Mapping[str, str], status: int
) -> None:
    async with two_cells(joined=True) as (cell, _):
        answer = await cell.client.get(CELL_PATH, headers=headers)
        assert answer.status_code == status
        if status == 200:
            assert decode(answer.content) == CellFigures(cell="east", capacity=0.0, tenants={})
        else:
            assert not answer.content


async def test_a_fleet_without_cells_has_no_such_path() -> None:
    async with two_cells(joined=False) as (cell, _):
        headers = {"Authorization": f"Bearer {TOKEN}"}
        assert (await cell.client.get(CELL_PATH, headers=headers)).status_code == 404
