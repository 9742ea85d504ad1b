"""What serving costs."""

from __future__ import annotations

from itertools import pairwise

import pytest
from evenkeel_fairshare.cost import Cost, LinearCost, flat_output_price
from hypothesis import given
from hypothesis import strategies as st

from tests.support.costs import QuadraticCost

# VTC App. B.2: 2.1 np + nq + 0.04 np nq + 0.032 nq² (+ 11.46, which cancels).
PROFILED = QuadraticCost(extend=2.1, output=1.0, product=0.04, output_squared=0.032)


def test_the_papers_prices_are_one_and_two():
    assert LinearCost().input_cost(10) == 10
    assert LinearCost().output_cost(10, 3, 7) == 8


def test_prices_can_be_set():
    cost = LinearCost(input_weight=3, output_weight=5)
    assert cost.input_cost(10) == 30
    assert cost.output_cost(10, 3, 7) == 20


def test_the_profiled_cost_is_that_of_the_paper():
    assert PROFILED.input_cost(100) == pytest.approx(210)
    assert PROFILED.output_cost(100, 0, 10) == pytest.approx(10 + 40 + 3.2)


def test_a_request_pays_for_the_memory_that_it_holds_at_every_output_token():
    """R14: output token k costs extend + k tokens held."""
    cost = LinearCost(kv_time=500)
    assert cost.input_cost(10) == 10
    assert [cost.output_cost(10, k - 1, k) for k in (1, 2, 3)] == [2 + 5.5, 2 + 6, 2 + 6.5]


@pytest.mark.parametrize(
    "cost",
    [LinearCost(), LinearCost(kv_time=40), PROFILED],
    ids=["linear", "held memory", "profiled"],
)
@given(extend=st.integers(0, 5000), cuts=st.lists(st.integers(0, 2000), min_size=1, max_size=6))
def test_output_costs_the_same_in_one_piece_or_in_many(cost: Cost, extend: int, cuts: list[int]):
    """Telescoping (§1.6), and never less for more."""
    steps = [0, *sorted(cuts)]
    pieces = [cost.output_cost(extend, a, b) for a, b in pairwise(steps)]
    assert min(pieces) >= 0
    assert sum(pieces) == pytest.approx(cost.output_cost(extend, 0, steps[-1]))


def test_only_a_linear_cost_has_one_price_for_every_token():
    assert flat_output_price(LinearCost(output_weight=5)) == 5
    assert flat_output_price(LinearCost(kv_time=1)) is None
    assert flat_output_price(PROFILED) is None
