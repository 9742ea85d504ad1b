"""Service by client, and requested rates (design §6, §7)."""

from __future__ import annotations

import pytest
from evenkeel_fairshare.ledger import (
    Compactor,
    DemandMeter,
    Ledger,
    ReplicaRow,
    ServiceIndex,
)

from tests.support.ledger_worlds import ledger

A, B = "ns/t/a", "ns/t/b"


def report(to: Ledger, at: int, **served: float) -> None:
    rows = [ReplicaRow(f"ns/t/{name}", service=service) for name, service in served.items()]
    to.observe("alive", since=0, sequence=at, rows=rows)


class TestServiceIndex:
    def test_only_changed_clients_are_updated(self):
        here = ledger("only")
        index = ServiceIndex(here)
        report(here, 1, a=50, b=30)
        assert dict(index.refresh()) == {A: 50, B: 30}
        report(here, 2, a=60)
        assert dict(index.refresh()) == {A: 10}
        assert index.clients() == {A: 60, B: 30}

    def test_compaction_changes_no_service(self):
        here = ledger("only")
        index = ServiceIndex(here)
        report(here, 1, a=50, b=30)
        dict(index.refresh())
        here.closed("alive")
        Compactor(here).compact(["only"], live=(), now_s=0)
        here.stale.update((A, B))
        assert dict(index.refresh()) == {A: 0, B: 0}
        assert index.clients() == {A: 50, B: 30}

    def test_an_index_starts_with_all_clients_of_its_ledger(self):
        here = ledger("only")
        report(here, 1, a=50, b=30)
        index = ServiceIndex(here)
        dict(index.refresh())
        assert index.clients() == {A: 50, B: 30}

    def test_an_abandoned_refresh_continues_at_the_next_call(self):
        here = ledger("only")
        index = ServiceIndex(here)
        report(here, 1, a=50, b=30)
        first = next(index.refresh())
        assert dict([first, *index.refresh()]) == {A: 50, B: 30}


class TestDemand:
    def test_every_router_has_the_same_sum_over_the_fleet(self):
        here, there = ledger("here"), ledger("there")
        here.requested({A: 30.0})
        there.requested({A: 12.0})
        here.merge(there.delta(here.digest()))
        there.merge(here.delta(there.digest()))
        members = ["here", "there"]
        assert here.requested_rate(A, members) == there.requested_rate(A, members) == 42
        here.requested({A: 5.0})
        there.merge(here.delta(there.digest()))
        assert there.requested_rate(A, members) == 17
        assert there.requested_rate(A, ["there"]) == 12, "an ended router does not count"

    def test_a_steady_stream_has_its_rate_times_its_cost(self):
        meter = DemandMeter(window_s=10)
        for second in range(200):
            for _ in range(3):
                meter.arrived(A, second)
                meter.finished(A, 50.0)
        assert meter.rates(200)[A] == pytest.approx(150, rel=0.06)

    def test_before_the_first_end_a_request_counts_with_the_first_cost(self):
        meter = DemandMeter(window_s=10, first_cost=70)
        meter.arrived(A, 0)
        assert meter.rates(0) == {A: 7.0}

    def test_a_client_that_stopped_is_reported_once_with_0_and_then_removed(self):
        meter = DemandMeter(window_s=10)
        meter.arrived(A, 0)
        meter.finished(A, 50)
        assert 0 < meter.rates(10)[A] < meter.rates(0)[A] * 1.01
        assert meter.rates(100) == {A: 0.0}
        assert meter.rates(101) == {}
        assert len(meter) == 0

    @pytest.mark.parametrize("requests", [1, 100, 100_000])
    def test_a_client_that_stopped_has_a_rate_of_0_soon_after_any_number_of_requests(
        self, requests
    ):
        meter = DemandMeter(window_s=10)
        for _ in range(requests):
            meter.arrived(A, 0)
            meter.finished(A, 50)
        assert meter.rates(29)[A] > 0
        assert meter.rates(30) == {A: 0.0}
        assert meter.rates(31) == {}

    def test_the_mean_cost_of_a_client_is_kept_longer_than_its_rate(self):
        meter = DemandMeter(window_s=10, first_cost=1000)
        for _ in range(100):
            meter.arrived(A, 0)
            meter.finished(A, 50)
        assert meter.rates(40) == {A: 0.0}
        meter.arrived(A, 45)
        assert 50 / 10 < meter.rates(45)[A] < 1000 / 10
        assert meter.rates(75) == {A: 0.0}

    def test_a_clock_that_jumps_back_is_harmless(self):
        meter = DemandMeter(window_s=10)
        meter.arrived(A, 1e9)
        meter.arrived(A, 0)
        assert meter.rates(1)[A] > 0
        assert meter.rates(200) == {A: 0.0}

    def test_the_end_of_an_unknown_request_is_ignored(self):
        meter = DemandMeter()
        meter.finished(A, 5)
        assert meter.rates(0) == {}

    @pytest.mark.parametrize("wrong", [{"window_s": 0}, {"first_cost": 0}])
    def test_meters_without_a_window_or_a_first_cost_are_refused(self, wrong):
        with pytest.raises(ValueError, match="must be positive"):
            DemandMeter(**wrong)
