"""Weights of tenants in many cells: sums over cells follow the global weights, from any start (R21, docs/design/cells.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from evenkeel_fairshare.cells import CellSums, TenantInCell, demand_of, level_of, local_weights
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.examples import examples

Rates = Mapping[str, Mapping[str, float]]
"""Cell → tenant → rate."""


@dataclass(frozen=True)
class Fleet:
    """Cells with constant demand."""

    weights: Mapping[str, float]
    capacity: Mapping[str, float]
    demand: Rates

    def alone(self) -> Rates:
        """What tenants get if each cell uses the global weights."""
        return {cell: self.served(cell, self.weights) for cell in self.demand}

    def served(self, cell: str, weights: Mapping[str, float]) -> dict[str, float]:
        """What tenants get in a cell: their demand, at most in shares of the weights."""
        left, found = self.capacity[cell], {}
        open_to = dict(self.demand[cell])
        while open_to:
            share = left / sum(weights[name] for name in open_to)
            content = {
                name: rate for name, rate in open_to.items() if rate <= share * weights[name]
            }
            if not content:
                found |= {name: share * weights[name] for name in open_to}
                break
            found |= content
            left -= sum(content.values())
            open_to = {name: rate for name, rate in open_to.items() if name not in content}
        return found

    def seen(self, cell: str, rates: Rates) -> dict[str, TenantInCell]:
        """The tenants of a cell, with what they have in the others."""
        full = [
            other
            for other, demand in self.demand.items()
            if other != cell and sum(demand.values()) > self.capacity[other]
        ]
        others = [one for name, one in rates.items() if name != cell]
        return {
            name: TenantInCell(
                weight=self.weights[name],
                served=rates[cell][name],
                demand=demand,
                elsewhere=sum(one.get(name, 0.0) for one in others),
                full=CellSums(
                    sum(rates[other].get(name, 0.0) for other in full),
                    sum(self.demand[other].get(name, 0.0) for other in full),
                ),
            )
            for name, demand in self.demand[cell].items()
        }

    def step(self, rates: Rates) -> Rates:
        """All cells renew their weights at the same time."""
        return {
            cell: self.served(
                cell, local_weights(self.seen(cell, rates), self.capacity[cell], floor=1e-9)
            )
            for cell in self.demand
        }

    def sums(self, rates: Rates) -> dict[str, float]:
        """Each tenant's rate over all cells."""
        return {name: sum(one.get(name, 0.0) for one in rates.values()) for name in self.weights}

    def unfairness(self, rates: Rates) -> float:
        """What the fairest rates minimise."""
        return sum(rate**2 / self.weights[name] for name, rate in self.sums(rates).items())


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    weights = {
        f"t{n}": draw(st.sampled_from((1.0, 1.0, 2.0, 5.0))) for n in range(draw(st.integers(1, 8)))
    }
    capacity = {f"c{n}": draw(st.floats(1.0, 10.0)) for n in range(draw(st.integers(1, 6)))}
    demand: dict[str, dict[str, float]] = {}
    for cell, most in capacity.items():
        wanted = draw(st.lists(st.sampled_from(sorted(weights)), min_size=1, unique=True))
        demand[cell] = {name: min(most, draw(st.floats(0.1, 12.0))) for name in wanted}
    return Fleet(weights, capacity, demand)


@given(fleets())
def test_no_step_of_all_cells_makes_it_less_fair(fleet: Fleet) -> None:
    rates = fleet.alone()
    for _ in range(20):
        after = fleet.step(rates)
        assert fleet.unfairness(after) <= fleet.unfairness(rates) * (1 + 1e-6)
        rates = after


@examples(20)
@given(fleets())
def test_the_steps_end_where_no_cell_can_make_it_fairer(fleet: Fleet) -> None:
    rates = fleet.alone()
    for _ in range(400):
        rates = fleet.step(rates)
    sums = fleet.sums(rates)
    for cell, demand in fleet.demand.items():
        levels = {name: sums[name] / fleet.weights[name] for name in demand}
        could_give = [levels[name] for name in demand if rates[cell][name] > 0.02]
        could_take = [levels[name] for name in demand if rates[cell][name] < demand[name] - 0.02]
        if could_give and could_take:
            assert max(could_give) <= min(could_take) * 1.1 + 0.05


@given(fleets())
def test_no_cell_leaves_anything_undone(fleet: Fleet) -> None:
    rates = fleet.alone()
    for _ in range(5):
        rates = fleet.step(rates)
        for cell, demand in fleet.demand.items():
            possible = min(fleet.capacity[cell], sum(demand.values()))
            assert sum(rates[cell].values()) == pytest.approx(possible)


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.floats(1.0, 9.0), min_size=2),
    st.floats(1.0, 100.0),
)
def test_a_cell_alone_uses_the_global_weights(
    weights: Mapping[str, float], capacity: float
) -> None:
    tenants = {
        name: TenantInCell(weight=weight, served=capacity / len(weights), demand=capacity)
        for name, weight in weights.items()
    }
    assert local_weights(tenants, capacity) == pytest.approx(weights)


@given(fleets(), st.floats(0.5, 2.0))
def test_weights_keep_their_sum_and_nobody_stops(fleet: Fleet, change: float) -> None:
    """With figures of others that are too high or too low: no figure of a cell stops a tenant of another one."""
    rates = fleet.alone()
    for cell in fleet.demand:
        lied = {
            other: {name: rate * (1.0 if other == cell else change) for name, rate in one.items()}
            for other, one in rates.items()
        }
        seen = fleet.seen(cell, lied)
        found = local_weights(seen, fleet.capacity[cell])
        assert sum(found.values()) == pytest.approx(sum(one.weight for one in seen.values()))
        assert min(found.values()) > 0


@given(fleets())
def test_at_its_level_a_cell_is_just_full(fleet: Fleet) -> None:
    rates = fleet.alone()
    for cell, demand in fleet.demand.items():
        seen = fleet.seen(cell, rates)
        level = level_of(seen, fleet.capacity[cell])
        assert (level is None) == (sum(demand.values()) <= fleet.capacity[cell])
        assume(level is not None)
        assert level is not None
        taken = sum(one.taken(level) for one in seen.values())
        assert taken == pytest.approx(fleet.capacity[cell], rel=1e-6)


def test_demand_is_what_is_served_and_waits_up_to_the_whole_cell() -> None:
    assert demand_of(20.0, 100.0, capacity=1000.0, interval_s=5.0) == 40.0
    assert demand_of(20.0, 10_000.0, capacity=1000.0, interval_s=5.0) == 1000.0
