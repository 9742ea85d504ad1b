"""Service by client, and requested rates (design §6, §7)."""

from __future__ import annotations

from evenkeel_fairshare.ledger import Compactor, Ledger, ReplicaRow, ServiceIndex

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
