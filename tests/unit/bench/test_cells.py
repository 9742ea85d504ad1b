"""The arithmetic of `bench.cells`: what tenants get in cells that are full, and the fairest sums over all."""

from __future__ import annotations

import numpy as np
import pytest

from bench.cells import Run, errors, filled, ideal
from bench.cells_world import CELLS, without, world


def test_a_full_cell_is_divided_by_weights_and_another_one_serves_all() -> None:
    demand = np.array([[10.0, 1.0], [1.0, 2.0], [10.0, 3.0]])
    weights = np.array([[1.0, 1.0], [4.0, 4.0], [3.0, 3.0]])
    found = filled(demand, weights, np.array([9.0, 100.0]))
    assert found == pytest.approx(np.array([[2.0, 1.0], [1.0, 2.0], [6.0, 3.0]]))


def test_the_ideal_run_gives_a_cell_to_who_has_no_other() -> None:
    demand, capacity, weights = np.array([[9.0, 9.0], [0.0, 9.0]]), np.array([3.0, 3.0]), np.ones(2)
    found = np.zeros_like(demand)
    for _ in range(10):
        found = ideal(demand, capacity, weights, found)
    assert found == pytest.approx(np.array([[3.0, 0.0], [0.0, 3.0]]), abs=0.05)


def test_joined_cells_are_nearer_to_the_ideal_run_than_cells_alone() -> None:
    drawn = world(tenants=12, clients=4000, seconds=120, seed=1)
    drawn = without(drawn, ["cut", "loss", "hours", "wander"])
    owed, alone, joined = (
        Run(drawn, system).run(progress=False)[12:] for system in ("ideal", "alone", "joined")
    )
    assert owed.sum() <= drawn.capacity.sum() * 60 * (1 + 1e-9)
    assert len(drawn.capacity) == CELLS
    assert errors(joined, owed).max() < errors(alone, owed).max() / 2
