"""Compaction of ended incarnations, and two writers at once (design R3, R6)."""

from __future__ import annotations

import pytest
from evenkeel_fairshare.ledger import Compactor, Ledger
from evenkeel_fairshare.ledger.balances import carried_balance, carried_balance_of_tenant
from evenkeel_fairshare.ledger.closed_totals import MAX_LINEAGE, Rank

from tests.support.ledger_worlds import content, ledger, one_router, report, row

ALICE, BOB = "ns/t/alice", "ns/t/bob"


def exchange(*ledgers: Ledger) -> None:
    """Merge all ledgers with each other. Ledgers without a member list get one with all of them."""
    routers = frozenset(one.router for one in ledgers)
    for one in ledgers:
        one.members = one.members or routers
    for _ in range(2):
        for here in ledgers:
            for there in ledgers:
                here.merge(there.delta(here.digest()))


def test_a_single_router_compacts_and_removes_an_account_at_once():
    here, compactor = one_router()
    report(here, "gone", 1, row(ALICE, 70, deficit=-40), row(BOB, 30, deficit=10))
    here.closed("gone")
    assert compactor.compact(["only"], live=(), now_s=0)
    compactor.collect(["only"])
    assert not here.replica_accounts
    assert here.served(ALICE) == 70
    assert carried_balance(here, ALICE, ()) == 40
    assert carried_balance(here, BOB, ()) == -10
    # Both rows have the tenant's last deficit. Rows of one report agree; here the larger value counts.
    assert carried_balance_of_tenant(here, "ns/t", ()) == -10


def test_without_changes_no_version_is_written():
    here, compactor = one_router()
    assert not compactor.compact(["only"], live=(), now_s=0)
    assert here.closed_totals.rank == Rank()


def test_an_account_is_compacted_only_after_every_member_closed_it():
    here, compactor = ledger("a"), None
    compactor = Compactor(here)
    there = ledger("b")
    report(here, "gone", 1, row(ALICE, 1))
    exchange(here, there)
    here.closed("gone")
    compactor.compact(["a", "b"], live=(), now_s=0)
    assert "gone" not in here.closed_totals.folded
    there.received("gone", ALICE, 5)
    there.closed("gone")
    exchange(here, there)
    compactor.compact(["a", "b"], live=(), now_s=1)
    assert "gone" in here.closed_totals.folded
    assert here.served(ALICE) == 5


def test_an_account_that_one_router_removed_does_not_return_from_another():
    """Routers remove accounts at different moments."""
    here, there = ledger("a"), ledger("b")
    compactors = {one.router: Compactor(one) for one in (here, there)}
    report(here, "gone", 1, row(ALICE, 5))
    exchange(here, there)
    for one in (here, there):
        one.closed("gone")
    exchange(here, there)
    compactors["a"].compact(["a", "b"], live=(), now_s=0)
    exchange(here, there)
    compactors["a"].collect(["a", "b"])
    exchange(here, there)
    assert (list(here.replica_accounts), list(there.replica_accounts)) == ([], ["gone"])
    # Later versions at one router do not change this.
    report(here, "alive", 1, row(BOB, 1))
    assert compactors["a"].compact(["a", "b"], live=["alive"], now_s=1)
    here.merge(there.delta(here.digest()))
    assert "gone" not in here.replica_accounts
    exchange(here, there)
    compactors["b"].collect(["a", "b"])
    exchange(here, there)
    assert (list(here.replica_accounts), list(there.replica_accounts)) == (["alive"], ["alive"])
    assert here.served(ALICE) == there.served(ALICE) == 5


def test_a_new_router_gets_an_account_of_closed_totals_that_it_lacks():
    here, new_router = ledger("a"), ledger("b")
    report(here, "gone", 1, row(ALICE, 5))
    here.closed("gone")
    Compactor(here).compact(["a"], live=(), now_s=0)
    new_router.merge(next(iter(here.parts(new_router.digest()))))
    assert new_router.served(ALICE) == 5


def test_a_live_replica_that_all_routers_closed_by_mistake_is_not_compacted():
    here, compactor = one_router()
    report(here, "alive", 1, row(ALICE, 1))
    here.closed("alive")
    compactor.compact(["only"], live=["alive"], now_s=0)
    assert "alive" not in here.closed_totals.folded


def test_only_the_first_of_the_members_writes():
    here, there = ledger("a"), ledger("b")
    exchange(here, there)
    report(there, "gone", 1, row(ALICE, 1))
    assert not Compactor(there).compact(["a", "b"], live=(), now_s=0)


def test_a_new_router_without_answers_of_members_does_not_write():
    """Its empty versions could have higher numbers than those of the others."""
    new_router = ledger("a")
    compactor = Compactor(new_router)
    for at in range(1, 9):
        report(new_router, "alive", at, row(ALICE, at))
        assert not compactor.compact(["a", "b"], live=["alive"], now_s=at)


def test_a_new_router_with_an_old_snapshot_writes_once_all_members_list_it():
    """According to its old snapshot all members have its version."""
    first, second = ledger("b"), ledger("c")
    report(first, "gone", 1, row(ALICE, 5))
    exchange(first, second)
    snapshot = first.delta()
    first.closed("gone")
    second.closed("gone")
    exchange(first, second)
    compactor = Compactor(first)
    compactor.compact(["b", "c"], live=(), now_s=0)
    exchange(first, second)
    for one in (first, second):
        Compactor(one).collect(["b", "c"])
        assert not one.replica_accounts
    new_router = ledger("a")
    new_router.merge(snapshot)
    second_writer = Compactor(new_router)
    for at in (1, 2, 3):
        report(new_router, "alive", at, row(BOB, at))
        assert not second_writer.compact(["a", "b", "c"], live=["alive"], now_s=at)
    for one in (first, second):
        one.members = frozenset("abc")
    exchange(first, second, new_router)
    assert second_writer.compact(["a", "b", "c"], live=["alive"], now_s=4)
    for here in (first, second, new_router):
        assert here.served(ALICE) == 5


def test_a_competing_version_loses_no_service():
    """b takes a for gone and compacts an account. Before any exchange, a writes two versions without it."""
    a, b, c = ledger("a"), ledger("b"), ledger("c")
    report(b, "gone", 1, row(ALICE, 5))
    exchange(a, b, c)
    for one in (a, c):
        one.closed("gone")
    exchange(a, b, c)
    b.received("gone", ALICE, 7)
    b.closed("gone")
    first_writer = Compactor(b)
    assert first_writer.compact(["b", "c"], live=(), now_s=0)
    first_writer.collect(["b", "c"])
    assert b.closed_totals.folded == {"gone": 1}

    second_writer = Compactor(a)
    for at in (1, 2):
        report(a, "alive", at, row(BOB, at))
        assert second_writer.compact(["a", "b", "c"], live=["alive"], now_s=at)
    assert a.closed_totals.rank > b.closed_totals.rank

    b.members = frozenset("abc")
    exchange(a, b, c)
    assert b.closed_totals.rank == a.closed_totals.rank
    for here in (a, b, c):
        assert here.served(ALICE) == 7
        here.closed("gone")
    exchange(a, b, c)
    assert second_writer.compact(["a", "b", "c"], live=["alive"], now_s=3)
    exchange(a, b, c)
    for here in (a, b, c):
        Compactor(here).collect(["a", "b", "c"])
        assert "gone" not in here.replica_accounts
        assert here.served(ALICE) == 7


def test_an_account_is_kept_until_every_member_s_closed_totals_contain_it():
    here, there = ledger("a"), ledger("b")
    report(here, "gone", 1, row(ALICE, 1))
    exchange(here, there)
    here.closed("gone")
    there.closed("gone")
    exchange(here, there)
    compactor = Compactor(here)
    compactor.compact(["a", "b"], live=(), now_s=0)
    compactor.collect(["a", "b"])
    assert "gone" in here.replica_accounts
    exchange(here, there)
    compactor.collect(["a", "b"])
    assert "gone" not in here.replica_accounts


def test_a_late_delta_of_a_compacted_account_changes_nothing():
    here, compactor = one_router()
    report(here, "gone", 1, row(ALICE, 5))
    late = here.delta()
    here.closed("gone")
    compactor.compact(["only"], live=(), now_s=0)
    compactor.collect(["only"])
    here.merge(late)
    assert here.served(ALICE) == 5
    compactor.collect(["only"])
    assert not here.replica_accounts


def test_a_follower_gets_a_delta_of_closed_totals_or_all_rows():
    here, compactor = one_router()
    near, far = ledger("near"), ledger("far")
    for at in range(MAX_LINEAGE + 3):
        name = f"gone-{at}"
        report(here, name, 1, row(ALICE, 1), row(f"ns/t/{at}", 1))
        here.closed(name)
        compactor.compact(["only"], live=(), now_s=at)
        compactor.collect(["only"])
        if at == 0:
            far.merge(here.delta())
        if at:
            delta = here.delta(near.digest())
            assert len(delta.closed_totals.clients.names) <= 3
        near.merge(here.delta(near.digest()))
    assert here.delta(far.digest()).closed_totals.base is None
    far.merge(here.delta(far.digest()))
    for follower in (near, far):
        assert content(follower)["closed clients"] == content(here)["closed clients"]
        assert content(follower)["closed tenants"] == content(here)["closed tenants"]


def test_only_the_accounts_of_ended_routers_are_kept():
    here, there = ledger("a"), ledger("b")
    there.requested({ALICE: 5.0})
    there.received("alive", ALICE, 4)
    exchange(here, there)
    assert here.requested_rate(ALICE, ["a", "b"]) == 5
    Compactor(here).collect(["a"])
    assert here.requested_rate(ALICE, ["a", "b"]) == 0
    assert here.adopted.keys() == {"a"}
    assert here.served(ALICE) == 4


def test_a_report_between_two_steps_goes_into_the_next_version():
    here, compactor = one_router()
    report(here, "gone", 1, row(ALICE, 70, deficit=-40))
    here.closed("gone")
    steps = compactor.steps(["only"], live=["alive"], now_s=0)
    while here.touched:  # until the compactor has taken the changed clients
        next(steps)
    report(here, "alive", 1, row(BOB, 5, waiting=1))
    assert set(steps) == {None}
    assert here.closed_totals.rank.height == 1
    assert BOB in here.touched
    assert here.served(ALICE) == 70
    assert here.served(BOB) == 5
    assert compactor.compact(["only"], live=["alive"], now_s=1)
    assert not here.touched


def test_another_version_between_two_steps_wins_and_counts_all_once():
    here, there = ledger("a"), ledger("b")
    for one in (here, there):
        report(one, "gone", 1, row(ALICE, 70, deficit=-40))
        one.closed("gone")
    compactor = Compactor(here)
    steps = compactor.steps(["a"], live=(), now_s=0)
    next(steps)
    assert Compactor(there).compact(["b"], live=(), now_s=0)
    here.merge(there.delta(here.digest()))
    with pytest.raises(StopIteration) as ended:
        while True:
            next(steps)
    assert ended.value.value is False
    assert here.closed_totals.rank == Rank(1, "b")
    assert ALICE in here.touched
    assert compactor.compact(["a"], live=(), now_s=1)
    assert here.served(ALICE) == 70
    assert carried_balance(here, ALICE, ()) == 40


def test_an_abandoned_compaction_leaves_all_changes_to_the_next():
    here, compactor = one_router()
    report(here, "gone", 1, row(ALICE, 70, deficit=-40))
    here.closed("gone")
    steps = compactor.steps(["only"], live=(), now_s=0)
    next(steps)
    steps.close()
    assert here.closed_totals.rank == Rank()
    assert ALICE in here.touched
    assert compactor.compact(["only"], live=(), now_s=1)
    assert here.closed_totals.client(ALICE).service == 70
