"""Requested rates of clients (design §6)."""

from __future__ import annotations

import pytest
from evenkeel_fairshare.cost import FIRST_COST
from evenkeel_router.ledger.totals import DemandMeter

A = "ns/t/a"


def test_a_steady_stream_has_its_rate_times_its_cost() -> None:
    meter = DemandMeter(window_s=10)
    for second in range(200):
        for _ in range(3):
            meter.arrived(A, second)
            meter.finished(A, 50.0)
    assert meter.rates(200)[A] == pytest.approx(150, rel=0.06)


def test_before_the_first_end_a_request_counts_with_the_first_cost() -> None:
    meter = DemandMeter(window_s=10)
    meter.arrived(A, 0)
    assert meter.rates(0) == {A: FIRST_COST / 10}


def test_a_client_that_stopped_has_no_rate() -> None:
    meter = DemandMeter(window_s=10)
    meter.arrived(A, 0)
    meter.finished(A, 50)
    assert 0 < meter.rates(10)[A] < meter.rates(0)[A] * 1.01
    assert meter.rates(100) == {}
    assert len(meter) == 0


@pytest.mark.parametrize("requests", [1, 100, 100_000])
def test_a_client_that_stopped_soon_has_no_rate_after_any_requests(
    requests: int,
) -> None:
    meter = DemandMeter(window_s=10)
    for _ in range(requests):
        meter.arrived(A, 0)
        meter.finished(A, 50)
    assert meter.rates(29)[A] > 0
    assert meter.rates(30) == {}


def test_the_mean_cost_of_a_client_is_kept_longer_than_its_rate() -> None:
    meter = DemandMeter(window_s=10)
    for _ in range(100):
        meter.arrived(A, 0)
        meter.finished(A, 50)
    assert meter.rates(40) == {}
    meter.arrived(A, 45)
    assert 50 / 10 < meter.rates(45)[A] < FIRST_COST / 10
    assert meter.rates(75) == {}


def test_a_clock_that_jumps_back_is_harmless() -> None:
    meter = DemandMeter(window_s=10)
    meter.arrived(A, 1e9)
    meter.arrived(A, 0)
    assert meter.rates(1)[A] > 0
    assert meter.rates(200) == {}


def test_the_end_of_an_unknown_request_is_ignored() -> None:
    meter = DemandMeter()
    meter.finished(A, 5)
    assert meter.rates(0) == {}
