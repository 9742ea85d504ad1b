"""Service by client, and requested rates (design §6, §7)."""

from __future__ import annotations

import pytest
from evenkeel_fairshare.ledger import (
    Compactor,
    DemandMeter,
    Ledger,
    ReplicaRow,
    ServiceIndex,
    Totals,
)

from tests.support.ledger_worlds import ledger

A, B = "ns/t/a", "ns/t/b"


def report(to: Ledger, at: int, **served: float) -> None:
    rows = [ReplicaRow(f"ns/t/{name}", Totals(service=service)) for name, service in served.items()]
    to.observe("alive", since=0, sequence=at, rows=rows)


class TestServiceIndex:
    def test_only_clients_that_changed_are_looked_at(self):
        here = ledger("only")
        index = ServiceIndex(here)
        report(here, 1, a=50, b=30)
        assert dict(index.refresh()) == {A: 50, B: 30}
        report(here, 2, a=60)
        assert dict(index.refresh()) == {A: 10}
        assert index.clients() == {A: 60, B: 30}

    def test_folding_a_page_moves_no_service(self):
        here = ledger("only")
        index = ServiceIndex(here)
        report(here, 1, a=50, b=30)
        dict(index.refresh())
        here.closed("alive")
        Compactor(here).compact(["only"], live=(), now_s=0)
        here.stale.update((A, B))
        assert dict(index.refresh()) == {A: 0, B: 0}
        assert index.clients() == {A: 50, B: 30}

    def test_a_ledger_that_already_knows_something_is_taken_over(self):
        here = ledger("only")
        report(here, 1, a=50, b=30)
        index = ServiceIndex(here)
        dict(index.refresh())
        assert index.clients() == {A: 50, B: 30}

    def test_a_look_that_is_cut_short_goes_on_next_time(self):
        here = ledger("only")
        index = ServiceIndex(here)
        report(here, 1, a=50, b=30)
        first = next(index.refresh())
        assert dict([first, *index.refresh()]) == {A: 50, B: 30}


class TestDemand:
    def test_every_router_says_the_same_fleet_wide_figure(self):
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
        assert there.requested_rate(A, ["there"]) == 12, "a router that is gone asks for nothing"

    def test_a_steady_stream_shows_its_rate_times_its_cost(self):
        meter = DemandMeter(window_s=10)
        for second in range(200):
            for _ in range(3):
                meter.arrived(A, second)
                meter.finished(A, 50.0)
        assert meter.rates(200)[A] == pytest.approx(150, rel=0.06)

    def test_before_anything_finished_a_request_counts_at_the_first_cost(self):
        meter = DemandMeter(window_s=10, first_cost=70)
        meter.arrived(A, 0)
        assert meter.rates(0) == {A: 7.0}

    def test_a_client_that_stopped_fades_is_said_to_want_nothing_once_and_is_forgotten(self):
        meter = DemandMeter(window_s=10)
        meter.arrived(A, 0)
        meter.finished(A, 50)
        assert 0 < meter.rates(10)[A] < meter.rates(0)[A] * 1.01
        assert meter.rates(100) == {A: 0.0}
        assert meter.rates(101) == {}
        assert len(meter) == 0

    @pytest.mark.parametrize("requests", [1, 100, 100_000])
    def test_however_much_it_asked_for_a_client_that_stopped_wants_nothing_soon(self, requests):
        meter = DemandMeter(window_s=10)
        for _ in range(requests):
            meter.arrived(A, 0)
            meter.finished(A, 50)
        assert meter.rates(29)[A] > 0
        assert meter.rates(30) == {A: 0.0}
        assert meter.rates(31) == {}

    def test_what_its_requests_cost_is_known_for_longer(self):
        meter = DemandMeter(window_s=10, first_cost=1000)
        for _ in range(100):
            meter.arrived(A, 0)
            meter.finished(A, 50)
        assert meter.rates(40) == {A: 0.0}
        meter.arrived(A, 45)
        assert 50 / 10 < meter.rates(45)[A] < 1000 / 10
        assert meter.rates(75) == {A: 0.0}

    def test_a_clock_that_jumps_back_breaks_nothing(self):
        meter = DemandMeter(window_s=10)
        meter.arrived(A, 1e9)
        meter.arrived(A, 0)
        assert meter.rates(1)[A] > 0
        assert meter.rates(200) == {A: 0.0}

    def test_what_finishes_unasked_is_not_remembered(self):
        meter = DemandMeter()
        meter.finished(A, 5)
        assert meter.rates(0) == {}

    @pytest.mark.parametrize("wrong", [{"window_s": 0}, {"first_cost": 0}])
    def test_meters_that_measure_nothing_are_refused(self, wrong):
        with pytest.raises(ValueError, match="must be positive"):
            DemandMeter(**wrong)
