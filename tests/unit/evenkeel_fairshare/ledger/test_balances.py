"""Carried balances of clients, and their seeds at new replicas (design R5)."""

from __future__ import annotations

from evenkeel_fairshare.ledger import (
    Ledger,
    ReplicaRow,
    Seed,
    position,
    position_of_tenant,
    promise,
)
from evenkeel_fairshare.ledger.balances import carried_balance

from tests.support.ledger_worlds import ledger

ALICE, BOB = "ns/t/alice", "ns/t/bob"


def left_behind(deficit: float, tenant_deficit: float = 0.0, to: Ledger | None = None) -> Ledger:
    here = to or ledger("a")
    row = ReplicaRow(ALICE, service=1, deficit=deficit, tenant_deficit=tenant_deficit, waiting=1)
    here.observe(f"gone-{len(here.replica_accounts)}", since=0, sequence=1, rows=[row])
    return here


def test_a_new_replica_takes_over_the_balance_of_an_ended_one():
    here = left_behind(-300, -120)
    assert promise(here, ALICE, "new", live=["new"]) == Seed(-300, -120)
    assert carried_balance(here, ALICE, ["new"]) == 0
    assert promise(here, BOB, "new", live=["new"]) == Seed(0, -120), "the tenant was promised that"


def test_a_credit_is_returned():
    assert promise(left_behind(70, 40), ALICE, "new", live=["new"]) == Seed(70, 40)


def test_a_second_call_returns_the_same_seed():
    here = left_behind(-300)
    first = promise(here, ALICE, "new", live=["new"])
    left_behind(-50, to=here)
    assert promise(here, ALICE, "new", live=["new"]) == first


def test_a_replica_takes_at_most_its_largest_debt_and_the_next_the_rest():
    here = left_behind(-300)
    left_behind(-300, to=here)
    assert promise(here, ALICE, "new", live=["new"]).client == -500
    assert promise(here, ALICE, "next", live=["new", "next"]).client == -100
    assert promise(here, ALICE, "last", live=["new", "next", "last"]).client == 0


def test_a_replica_returns_at_most_one_quantum_of_credit():
    here = left_behind(70)
    left_behind(60, to=here)
    assert promise(here, ALICE, "new", live=["new"]).client == 100
    assert promise(here, ALICE, "next", live=["new", "next"]).client == 30


def test_joiners_share_the_carried_balance():
    here = left_behind(-300, -90)
    both = ["new", "next"]
    assert promise(here, ALICE, "new", live=both, joiners=both) == Seed(-150, -45)
    assert promise(here, ALICE, "next", live=both, joiners=both) == Seed(-150, -45)


def test_the_first_seed_counts():
    here = left_behind(-300)
    promise(here, ALICE, "new", live=["new"])
    applied = ReplicaRow(ALICE, deficit=-200, seed=-200)
    here.observe("new", since=0, sequence=1, rows=[applied])
    assert carried_balance(here, ALICE, ["new"]) == 100
    assert promise(here, ALICE, "new", live=["new"]).client == -200


def test_the_promise_of_another_router_is_not_repeated():
    here, there = left_behind(-300), ledger("b")
    there.merge(here.delta())
    promise(here, ALICE, "new", live=["new", "next"])
    there.merge(here.delta(there.digest()))
    assert promise(there, ALICE, "next", live=["new", "next"]).client == 0


def test_the_larger_debt_counts_until_the_replica_reports_its_seed():
    here, there = ledger("a"), ledger("b")
    here.promised("new", ALICE, seed=-50, tenant_seed=-50)
    there.promised("new", ALICE, seed=-80, tenant_seed=-80)
    here.merge(there.delta())
    assert promise(here, ALICE, "new", live=["new"]) == Seed(-80, -80)


def test_seeds_are_whole_tokens_within_the_range():
    here = left_behind(-300.75)
    assert promise(here, ALICE, "new", live=["new"]).client == -300


def test_position_is_the_carried_balance_less_deficits_at_replicas():
    here = left_behind(-300, -40)
    row = ReplicaRow(ALICE, deficit=-120, tenant_deficit=25, waiting=1)
    here.observe("alive", since=0, sequence=1, rows=[row])
    assert position(here, ALICE, ["alive"]) == 300 + 120
    assert position_of_tenant(here, "ns/t", ["alive"]) == 40 - 25


def test_a_replica_taken_for_dead_by_mistake_counts_again_at_once():
    here = left_behind(-300)
    assert carried_balance(here, ALICE, []) == 300
    assert carried_balance(here, ALICE, ["gone-0"]) == 0
