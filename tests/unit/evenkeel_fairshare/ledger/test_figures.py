"""Levels, lifts, leads, intervals and requested rates (design R4, §6, §7)."""

from __future__ import annotations

import pytest
from evenkeel_fairshare.ledger import (
    DemandMeter,
    Figures,
    Ledger,
    ReplicaRow,
    Sealer,
    Totals,
)
from evenkeel_fairshare.ledger.levels import Levels

from tests.support.ledger_worlds import ledger

A, B, C = "ns/t/a", "ns/t/b", "ns/u/c"


class Served(dict):
    """Service by name, as levels ask for it."""

    def __call__(self, name: str) -> float:
        return self.get(name, 0.0)


class TestLevels:
    def test_the_level_is_the_least_of_those_who_wait_and_only_rises(self):
        levels, served = Levels(), Served(a=0, b=0)
        levels.observe("s", ["a", "b"], served)
        served.update(a=50, b=30)
        levels.observe("s", ["a", "b"], served)
        assert levels.levels["s"] == 30
        assert levels.lead("s", "a", served) == 20
        levels.observe("s", ["a"], served)
        assert levels.levels["s"] == 50
        levels.observe("s", ["a", "b"], served)
        assert levels.levels["s"] == 50

    def test_whoever_comes_back_is_lifted_to_the_level(self):
        levels, served = Levels(), Served(a=0, b=0)
        levels.observe("s", ["a", "b"], served)
        levels.observe("s", ["a"], served)
        served["a"] = 1000
        levels.observe("s", ["a"], served)
        levels.observe("s", ["a", "b"], served)
        assert levels.lead("s", "b", served) == 0
        assert levels.lead("s", "a", served) == 0, "b is owed nothing for the time it was away"

    def test_whoever_comes_back_ahead_stays_ahead(self):
        levels, served = Levels(), Served(a=0, b=0)
        levels.observe("s", ["a", "b"], served)
        served.update(a=10, b=100)
        levels.observe("s", ["a"], served)
        levels.observe("s", ["a", "b"], served)
        assert levels.lead("s", "b", served) == 90

    def test_what_was_taken_while_nobody_waited_is_nobodys_loss(self):
        levels, served = Levels(), Served(a=0, b=0)
        levels.observe("s", ["a", "b"], served)
        levels.observe("s", [], served)
        served["a"] = 1000
        levels.observe("s", ["a", "b"], served)
        assert levels.lead("s", "a", served) == levels.lead("s", "b", served) == 0

    def test_lifts_and_levels_merge_by_maximum(self):
        here, there = ledger("here"), ledger("there")
        here.levels.levels.raise_to("s", 5)
        there.levels.levels.raise_to("s", 7)
        there.levels.lifts.raise_to(A, 3)
        here.merge(there.delta(here.digest()))
        there.merge(here.delta(there.digest()))
        for one in (here, there):
            assert one.levels.levels["s"] == 7
            assert one.levels.lifts[A] == 3
        assert there.delta(here.digest()).lifts == {}, "only what changed is sent again"


def totals(service: float, weight: float = 1.0) -> Totals:
    return Totals(service=service, normalised=service, tenant_normalised=service / weight)


def report(to: Ledger, at: int, **served: float) -> None:
    rows = [
        ReplicaRow(client, totals(served[client[-1]], 4.0 if client == C else 1.0), waiting=1)
        for client in (A, B, C)
        if client[-1] in served
    ]
    to.observe("alive", since=0, sequence=at, rows=rows)


class TestFigures:
    def test_clients_lead_within_their_tenant_and_tenants_within_the_service(self):
        here = ledger("only")
        figures = Figures(here)
        report(here, 1, a=0, b=0, c=0)
        figures.observe(figures.waiting(["alive"]))
        report(here, 2, a=50, b=30, c=200)
        figures.observe(figures.waiting(["alive"]))
        assert (figures.lead(A), figures.lead(B)) == (20, 0)
        assert (figures.lead_of_tenant("ns/t"), figures.lead_of_tenant("ns/u")) == (30, 0)

    def test_folding_a_page_moves_no_figure(self):
        here = ledger("only")
        figures = Figures(here)
        report(here, 1, a=50, b=30, c=200)
        figures.observe([A])
        before = [figures.served_tenant("ns/t"), figures.served_tenant("ns/u"), figures.served(A)]
        here.closed("alive")
        Sealer(here).seal(["only"], live=(), now_s=0)
        figures.observe([A])
        after = [figures.served_tenant("ns/t"), figures.served_tenant("ns/u"), figures.served(A)]
        assert before == after == [80, 50, 50]

    def test_a_ledger_that_already_knows_something_is_taken_over(self):
        here = ledger("only")
        report(here, 1, a=50, b=30)
        figures = Figures(here)
        figures.observe([])
        assert figures.served_tenant("ns/t") == 80

    def test_nobody_waits_at_a_replica_that_is_not_alive(self):
        here = ledger("only")
        report(here, 1, a=50)
        assert Figures(here).waiting([]) == set()
        assert Figures(here).waiting(["alive"]) == {A}


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
