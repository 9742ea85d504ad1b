"""The theorems' figures, worked out by hand. That they hold is in tests/property/."""

from __future__ import annotations

import pytest
from evenkeel_fairshare.bounds import dlpm_overshoot
from evenkeel_fairshare.cost import LinearCost

from tests.support import theorems as bounds
from tests.support.costs import QuadraticCost

SIZES = {"max_input_tokens": 100, "memory_tokens": 1000}


@pytest.mark.parametrize(
    ("weights", "want"),
    [
        ({}, 2000),  # wq·M
        ({"input_weight": 1.0, "output_weight": 1.0}, 1000),
        ({"input_weight": 2.0, "output_weight": 2.0}, 2000),
        ({"input_weight": 3.0, "output_weight": 1.0}, 300 + 900),  # input costs more than output
    ],
)
def test_vtcs_overshoot_is_the_larger_of_one_input_and_a_memory_of_output(weights, want):
    assert bounds.vtc_overshoot(**SIZES, **weights) == want


def test_vtcs_overshoot_is_one_input_if_larger_than_a_memory_of_output():
    assert bounds.vtc_overshoot(max_input_tokens=3000, memory_tokens=1000) == 3000


def test_vtcs_overshoot_has_the_price_of_a_full_memory():
    assert bounds.vtc_overshoot(**SIZES, kv_time=2.0) == 2000 + 2 * 1000 * 1001 / 2 / 1000


def test_dlpms_overshoot_is_one_input_and_a_memory_of_output():
    assert dlpm_overshoot(**SIZES) == 2100
    assert dlpm_overshoot(**SIZES, input_weight=3.0, output_weight=5.0) == 5300
    # One request that fills the memory holds 1 token at the first output token, 2 at the second, …
    assert dlpm_overshoot(**SIZES, kv_time=2.0) == 2100 + 2 * 1000 * 1001 / 2 / 1000


def test_a_general_overshoot_is_the_dearest_batch():
    batches = [[(10, 5), (10, 5)], [(30, 0)], []]
    assert bounds.general_overshoot(LinearCost(), batches) == 40
    quadratic = QuadraticCost(extend=1, output=0, product=0, output_squared=0)
    assert bounds.general_overshoot(quadratic, batches) == 30


def test_vtcs_bounds_are_multiples_of_u_over_the_smallest_weight():
    assert bounds.vtc_counter_spread(2000) == 2000
    assert bounds.vtc_backlogged_gap(2000) == 4000
    assert bounds.vtc_shortfall(2000) == 8000
    assert bounds.vtc_counter_spread(2000, (4, 2, 8)) == 1000
    assert bounds.vtc_backlogged_gap(2000, (4, 2, 8)) == 2000
    assert bounds.vtc_shortfall(2000, (4, 2, 8)) == 4000


def test_vtcs_delay_is_twice_u_for_every_other_client():
    assert bounds.vtc_dispatch_delay_s(2000, clients=4, service_per_s=100) == 120


def test_no_policy_promises_less_than_a_memory_of_output():
    assert bounds.least_gap_of_any_policy(memory_tokens=1000) == 2000
    assert bounds.least_gap_of_any_policy(memory_tokens=1000, output_weight=3) == 3000


def test_a_deficit_ranges_from_u_below_to_a_quantum_above():
    assert bounds.dlpm_deficit_range(2100, 500) == (-2100, 500)
    assert bounds.dlpm_deficit_range(2100, 500, weight=3) == (-2100, 1500)
    assert bounds.dlpm_deficit_range(2100, 500, weight=3, deferred_refills=8) == (-14100, 1500)


def test_dlpms_service_is_off_by_a_quantum_or_u():
    assert bounds.dlpm_service_error(2100, 500) == 2100
    assert bounds.dlpm_service_error(300, 500) == 500
    assert bounds.dlpm_service_error(2100, 500, weight=5) == 2500
    assert bounds.dlpm_service_error(2100, 500, weight=5, deferred_refills=8) == 22100


def test_dlpms_gap_is_twice_u_and_quantum_and_shrinks_with_weights():
    for bound in (bounds.dlpm_backlogged_gap, bounds.dlpm_shortfall):
        assert bound(2100, 500) == 2 * (2100 + 500)
        assert bound(2100, 500, (2, 4)) == 1050 + 525 + 1000
        assert bound(2100, 500, (2, 4), deferred_refills=8) == 1050 + 525 + 1000 + 8 * 500  # once


def test_dlpms_delay_counts_every_client_once_per_tenant():
    delay = bounds.dlpm_dispatch_delay_s
    assert delay(2100, 400, clients=3, service_per_s=100) == 2 * 2 * 2500 / 100
    assert delay(2100, 400, clients=3, service_per_s=100, tenants=2) == 2 * 5 * 2500 / 100
    late = delay(2100, 400, clients=3, service_per_s=100, deferred_refills=8)
    assert late == 2 * (2 * 2500 + 8 * 400) / 100
