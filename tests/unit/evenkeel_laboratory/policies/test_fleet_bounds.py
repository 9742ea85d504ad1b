"""The fleet theorems' figures."""

import pytest

from tests.support.theorems import (
    d2lpm_backlogged_gap,
    d2lpm_dispatch_delay_s,
    d2lpm_service_error,
    d2lpm_shortfall,
    dlpm_dispatch_delay_s,
    per_client_round_robin_backlogged_gap,
    per_client_round_robin_shortfall,
)

FOUR = [100.0] * 4  # |W| = 4, U = 100


def test_equal_replicas_give_the_figures_of_the_paper() -> None:
    assert d2lpm_service_error(FOUR, 30) == 4 * 100
    assert d2lpm_service_error(FOUR, 300) == 4 * 300
    assert d2lpm_backlogged_gap(FOUR, 30) == 2 * 4 * 130
    assert d2lpm_shortfall(FOUR, 30) == 2 * 4 * 130
    assert d2lpm_dispatch_delay_s(FOUR, 30, clients=5, service_per_s=10) == 4 * 4 * 2 * 130 / 10
    assert per_client_round_robin_backlogged_gap(FOUR) == 4 * 2 * 100
    assert per_client_round_robin_shortfall(FOUR) == 4 * 4 * 100


def test_unequal_replicas_add_up() -> None:
    assert d2lpm_backlogged_gap([100, 50], 30) == 2 * (130 + 80)
    assert d2lpm_service_error([100, 20], 30) == 100 + 30
    assert per_client_round_robin_shortfall([100, 50]) == 4 * 150


def test_weights_divide_the_overshoot_and_not_the_quantum() -> None:
    assert d2lpm_backlogged_gap(FOUR, 30, (1, 2)) == 4 * (130 + 160 / 2)
    assert d2lpm_shortfall(FOUR, 30, (1, 2)) == 4 * (130 + 160 / 2)
    assert d2lpm_service_error(FOUR, 30, 5) == 4 * 150
    assert per_client_round_robin_backlogged_gap(FOUR, [2, 4]) == 4 * 2 * 50
    assert per_client_round_robin_shortfall(FOUR, [2, 4]) == 4 * 4 * 50


def test_the_delay_in_a_fleet_is_that_of_one_of_its_replicas() -> None:
    one = dlpm_dispatch_delay_s(100, 30, clients=5, service_per_s=10)
    assert d2lpm_dispatch_delay_s(FOUR, 30, clients=5, service_per_s=40) == pytest.approx(one)
