"""Service by client, and requested rates (design §6, §7)."""

from __future__ import annotations

from evenkeel_fairshare.ledger import Compactor, Ledger, ReplicaRow

from tests.support.ledger_worlds import kept, ledger, recounted

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

    def test_it_stays_at_what_was_received_if_a_later_report_says_less(self):
        here = ledger("only")
        report(here, 1, a=10)
        here.received("alive", A, 7)
        report(here, 2, a=3)
        assert here.served(A) == 7.0
        assert kept(here) == recounted(here)

    def test_compaction_changes_no_service(self):
        here = ledger("only")
        report(here, 1, a=50, b=30)
        here.closed("alive")
        assert Compactor(here).compact(["only"], live=(), now_s=0)
        assert here.service == {A: 50, B: 30} == here.grown()

    def test_figures_are_those_of_the_last_call(self):
        here = ledger("only")
        report(here, 1, a=50, b=30)
        here.grown()
        report(here, 2, a=60)
        here.received("alive", "ns/t/c", 7)
        assert [here.counted_of(one) for one in (A, B)] == [50, 30]
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

    def test_a_client_that_is_silent_requests_nothing_and_costs_no_memory(self):
        here, there = ledger("here"), ledger("there")
        here.requested({A: 30.0}, part=0.5)
        here.requested({B: 4.0})
        for _ in range(3):
            here.requested({B: 4.0})
            there.merge(here.delta(there.digest()))
        for one in (here, there):
            assert (one.requested_rate(A, ["here"]), one.requested_rate(B, ["here"])) == (0, 4)
            assert set(one._demand["here"].rates) == {B}

    def test_a_late_row_of_a_silent_client_does_not_count(self):
        here, there, late = ledger("here"), ledger("there"), ledger("late")
        here.requested({A: 30.0})
        late.merge(here.delta())
        for _ in range(4):
            here.requested({})
        there.merge(here.delta())
        there.merge(late.delta())
        assert there.requested_rate(A, ["here"]) == 0
        late.merge(there.delta(late.digest()))
        assert late.requested_rate(A, ["here"]) == 0

    def test_a_round_in_pieces_loses_no_piece_that_comes_late(self):
        here, there = ledger("here"), ledger("there")
        for part, client in ((0.25, "ns/t/1"), (0.5, "ns/t/2"), (1.0, "ns/t/3")):
            here.requested({client: 1.0}, part=part)
            there.merge(here.delta(there.digest()))
        assert all(there.requested_rate(f"ns/t/{n}", ["here"]) == 1 for n in (1, 2, 3))
        here.requested({"ns/t/4": 1.0}, part=0.5)
        here.requested({"ns/t/5": 1.0}, part=0.25)  # another round, though that one did not end
        there.merge(here.delta(there.digest()))
        assert there.requested_rate("ns/t/5", ["here"]) == 1
