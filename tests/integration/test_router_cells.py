"""Two cells of one service, each a fleet with a router of its own: together they follow the tenants' weights (R21)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from evenkeel_contract.cellswire import CELL_PATH, CellFigures, decode
from evenkeel_router.app import Router
from evenkeel_simulator.server.app import RunningServer

from tests.support.cells import TOKEN, WEIGHTS, ended, flooded, served_under_floods, two_cells
from tests.support.gated import served
from tests.support.routers import until


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
        alone = await served_under_floods(cells, passed_s=3.0, measured_s=6.0)
    async with two_cells(joined=True) as cells:
        together = await served_under_floods(cells, passed_s=6.0, measured_s=20.0)
    assert alone.law_over_owed < 0.6  # half of the second cell
    assert together.law_over_owed > 0.95


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
