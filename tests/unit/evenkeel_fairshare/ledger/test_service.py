"""Service by client, and requested rates (design §6, §7)."""

from __future__ import annotations

from evenkeel_fairshare.ledger import Compactor, Ledger, ReplicaRow

from tests.support.ledger_worlds import ledger

A, B = "ns/t/a", "ns/t/b"


def report(to: Ledger, at: int, **served: float) -> None:
    rows = [ReplicaRow(f"ns/t/{name}", service=service) for name, service in served.items()]
    to.observe("alive", since=0, sequence=at, rows=rows)


class TestService:
    def test_only_changed_clients_are_updated(self):
        here = ledger("only")
        report(here, 1, a=50, b=30)
        assert here.grown() == {A: 50, B: 30}
        report(here, 2, a=60)
        assert here.grown() == {A: 10}
        assert here.service == {A: 60, B: 30}

    def test_compaction_changes_no_service(self):
        here = ledger("only")
        report(here, 1, a=50, b=30)
        here.closed("alive")
        assert Compactor(here).compact(["only"], live=(), now_s=0)
        assert here.service == {A: 50, B: 30} == here.counted() | here.grown()

    def test_figures_are_those_of_the_last_call(self):
        here = ledger("only")
        report(here, 1, a=50, b=30)
        here.grown()
        report(here, 2, a=60)
        here.received("alive", "ns/t/c", 7)
        assert here.counted() == {A: 50, B: 30}
        assert here.service == {A: 60, B: 30, "ns/t/c": 7}

    def test_a_sum_that_only_rounding_is_left_of_ends(self):
        here = ledger("only")
        for n in range(10):
            here.received("alive", A, 0.1 * (n + 1))
        here.grow({A: -5.5})
        assert here.service == {}


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
