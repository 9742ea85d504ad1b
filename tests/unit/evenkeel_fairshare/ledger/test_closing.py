"""What a departed incarnation served and what its clients owed there (design R3, R6)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from evenkeel_fairshare.ledger import CarryRules, EqualWeights, ReplicaRow, Totals
from evenkeel_fairshare.ledger.closing import close, counted, finish
from evenkeel_fairshare.ledger.replica_account import ReplicaAccount

ALICE, BOB, CAROL = "ns/t/alice", "ns/t/bob", "ns/u/carol"
RULES = CarryRules(quantum=100, overshoot=500)


def totals(service: float) -> Totals:
    return Totals(service=service, normalised=service, tenant_normalised=service, requests=1)


def reported(*rows: ReplicaRow) -> ReplicaAccount:
    account = ReplicaAccount()
    account.observe(since=0, sequence=1, rows=rows)
    return account


def row(client: str, service: float, deficit: float, **state: float) -> ReplicaRow:
    return ReplicaRow(client, totals(service), deficit=deficit, waiting=1, **state)


def owed(account: ReplicaAccount, rules: CarryRules = RULES) -> dict[str, float]:
    return dict(finish(close(account, rules, EqualWeights())).clients)


def test_what_is_counted_is_the_larger_of_what_was_reported_and_what_all_received():
    account = reported(row(ALICE, 10, 0))
    assert counted(account, ALICE).service == 10
    account.receive("a", ALICE, totals(7))
    assert counted(account, ALICE).service == 10
    account.receive("b", ALICE, totals(5))
    assert counted(account, ALICE).service == 12


def test_each_figure_is_counted_by_itself():
    account = reported(ReplicaRow(ALICE, Totals(extend_tokens=9, output_tokens=1)))
    account.receive("a", ALICE, Totals(extend_tokens=2, output_tokens=4))
    assert counted(account, ALICE)[:3] == (9, 0, 4)


def test_a_last_deficit_is_what_was_owed():
    assert owed(reported(row(ALICE, 1, -40), row(BOB, 1, 60))) == {ALICE: 40, BOB: -60}


def test_what_was_seeded_goes_back_if_nothing_happened():
    account = reported(row(ALICE, 0, -300, seed=-300), row(BOB, 0, 0))
    assert owed(account) == {ALICE: 0, BOB: 0}, "the ledger's own seed and its return cancel out"


def test_service_after_the_last_report_is_owed_too():
    account = reported(row(ALICE, 10, 60), row(BOB, 10, 60))
    account.receive("a", ALICE, totals(90))
    assert owed(account) == {ALICE: 20, BOB: -60}


def test_quanta_that_nobody_saw_are_the_fewest_that_explain_what_was_served():
    """Alice received 990 more: with a debt of 500 at most, she was given 400 meanwhile, and so was Bob."""
    account = reported(row(ALICE, 10, 90), row(BOB, 10, -350))
    account.receive("a", ALICE, totals(1000))
    assert owed(account) == {ALICE: 500, BOB: -50}


def test_whoever_had_nothing_queued_got_no_quanta():
    account = reported(row(ALICE, 10, 90), row(BOB, 10, -350)._replace(waiting=0))
    account.receive("a", ALICE, totals(1000))
    assert owed(account) == {ALICE: 500, BOB: 350}


def test_no_more_credit_is_left_behind_than_a_deficit_can_hold():
    account = reported(row(ALICE, 10, 90), row(BOB, 10, 90))
    account.receive("a", ALICE, totals(1000))
    assert owed(account) == {ALICE: 500, BOB: -100}
    assert owed(account, CarryRules(quantum=100, overshoot=500, crash_loss=50))[BOB] == -150


def test_whoever_was_never_reported_owes_what_was_received():
    account = ReplicaAccount()
    account.promise("a", ALICE, seed=-70, tenant_seed=-20)
    account.receive("a", ALICE, totals(30))
    closing = finish(close(account, RULES, EqualWeights()))
    assert closing.clients == {ALICE: 30}
    assert closing.tenants == {"ns/t": 30}


def test_a_page_without_anybody_leaves_nothing():
    assert owed(ReplicaAccount()) == {}


@dataclass(frozen=True)
class Weighted:
    def client(self, client: str) -> float:
        return 4.0 if client == ALICE else 1.0

    def tenant(self, tenant: str) -> float:
        return 2.0


def test_quanta_are_by_weight():
    account = reported(row(ALICE, 10, 90), row(BOB, 10, -350))
    account.receive("a", ALICE, totals(1000))
    closing = finish(close(account, RULES, Weighted()))
    assert closing.clients == {ALICE: 500, BOB: 350 - 400 / 4}


def test_tenants_owe_by_themselves():
    account = reported(
        row(ALICE, 10, -40)._replace(tenant_deficit=-200, tenant_seed=-10),
        row(BOB, 10, 60)._replace(tenant_deficit=-200, tenant_seed=-10),
        row(CAROL, 10, -70)._replace(tenant_deficit=30),
    )
    account.receive("a", BOB, totals(15))
    assert finish(close(account, RULES, EqualWeights())).tenants == {"ns/t": 195, "ns/u": -30}


class TestDraining:
    def test_is_reckoned_from_the_mark(self):
        """Afterwards Alice runs on, everybody leaves, and credit and refills say nothing any more."""
        account = reported(row(ALICE, 10, 90), row(BOB, 10, 60))
        account.mark("a")
        account.observe(since=1, sequence=2, rows=[row(ALICE, 40, 0), row(BOB, 10, 0)])
        assert owed(account) == {ALICE: -60, BOB: -60}

    def test_counts_from_the_first_mark_of_a_router(self):
        account = reported(row(ALICE, 10, 90))
        account.mark("a")
        account.observe(since=1, sequence=2, rows=[row(ALICE, 40, 0)])
        account.mark("a")
        assert owed(account) == {ALICE: -60}

    def test_is_reckoned_from_the_same_mark_by_all(self):
        account = reported(row(ALICE, 10, 90))
        account.mark("b")
        account.observe(since=1, sequence=2, rows=[row(ALICE, 40, 80)])
        account.mark("a")
        assert owed(account) == {ALICE: -80}, "the first in the alphabet, whichever came first"

    def test_may_begin_before_anything_was_reported(self):
        account = ReplicaAccount()
        account.promise("a", ALICE, seed=50, tenant_seed=0)
        account.mark("a")
        account.observe(since=0, sequence=2, rows=[row(ALICE, 40, 0, seed=50)])
        assert owed(account) == {ALICE: 40}


@pytest.mark.parametrize(
    "wrong", [{"quantum": 0}, {"overshoot": 0}, {"overshoot": -1}, {"crash_loss": -1}]
)
def test_rules_that_describe_no_range_are_refused(wrong):
    with pytest.raises(ValueError, match="must be positive"):
        CarryRules(**{"quantum": 1, "overshoot": 1, **wrong})
