"""Service and final deficits of an ended incarnation (design R3, R6)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from evenkeel_fairshare.ledger import CarryRules, EqualWeights, Ledger, ReplicaRow
from evenkeel_fairshare.ledger.closing import close, finish
from evenkeel_fairshare.ledger.replica_account import ReplicaAccount

ALICE, BOB, CAROL = "ns/t/alice", "ns/t/bob", "ns/u/carol"
RULES = CarryRules(quantum=100, overshoot=500)


def reported(*rows: ReplicaRow) -> ReplicaAccount:
    account = ReplicaAccount()
    account.observe(since=0, sequence=1, rows=rows)
    return account


def at(account: ReplicaAccount, router: str) -> Ledger:
    """The ledger of a router that knows the account as `x`."""
    ledger = Ledger(router, rules=RULES)
    ledger.replica_accounts["x"] = account
    return ledger


def row(client: str, service: float, deficit: float, **state: float) -> ReplicaRow:
    return ReplicaRow(client, service, service, 1, deficit, waiting=1, **state)


def balances(account: ReplicaAccount, rules: CarryRules = RULES) -> dict[str, float]:
    return dict(finish(close(account, rules, EqualWeights())).clients)


def test_the_larger_of_reported_and_received_service_counts():
    account = reported(row(ALICE, 10, 0))
    assert account.served(ALICE) == 10
    account.received("a", ALICE, 7)
    assert account.served(ALICE) == 10
    account.received("b", ALICE, 5)
    assert account.served(ALICE) == 12


def test_a_last_deficit_is_the_balance():
    assert balances(reported(row(ALICE, 1, -40), row(BOB, 1, 60))) == {ALICE: 40, BOB: -60}


def test_an_unused_seed_leaves_no_balance():
    account = reported(row(ALICE, 0, -300, seed=-300), row(BOB, 0, 0))
    assert balances(account) == {ALICE: 0, BOB: 0}, (
        "the ledger's own seed and its return cancel out"
    )


def test_service_after_the_last_report_is_owed_too():
    account = reported(row(ALICE, 10, 60), row(BOB, 10, 60))
    account.received("a", ALICE, 90)
    assert balances(account) == {ALICE: 20, BOB: -60}


def test_unreported_quanta_are_the_fewest_that_explain_the_service():
    """Alice received 990 more. Her debt is at most 500, so she got quanta of 400 meanwhile, and so did Bob."""
    account = reported(row(ALICE, 10, 90), row(BOB, 10, -350))
    account.received("a", ALICE, 1000)
    assert balances(account) == {ALICE: 500, BOB: -50}


def test_a_client_without_a_queue_got_no_quanta():
    account = reported(row(ALICE, 10, 90), row(BOB, 10, -350)._replace(waiting=0))
    account.received("a", ALICE, 1000)
    assert balances(account) == {ALICE: 500, BOB: 350}


def test_a_client_that_was_served_after_its_last_report_got_quanta():
    account = reported(row(ALICE, 10, 90)._replace(waiting=0), row(BOB, 10, -350))
    account.received("a", ALICE, 1000)
    assert balances(account) == {ALICE: 500, BOB: -50}


def test_a_credit_stays_within_the_range_of_deficits():
    account = reported(row(ALICE, 10, 90), row(BOB, 10, 90))
    account.received("a", ALICE, 1000)
    assert balances(account) == {ALICE: 500, BOB: -100}
    assert balances(account, CarryRules(quantum=100, overshoot=500, crash_loss=50))[BOB] == -150


def test_a_client_that_was_never_reported_owes_the_received_service():
    account = ReplicaAccount()
    at(account, "a").promised("x", ALICE, seed=-70, tenant_seed=-20)
    account.received("a", ALICE, 30)
    closing = finish(close(account, RULES, EqualWeights()))
    assert closing.clients == {ALICE: 30}
    assert closing.tenants == {"ns/t": 30}


def test_an_account_without_clients_leaves_no_balance():
    assert balances(ReplicaAccount()) == {}


@dataclass(frozen=True)
class Weighted:
    def client(self, client: str) -> float:
        return 4.0 if client == ALICE else 1.0

    def tenant(self, tenant: str) -> float:
        return 2.0


def test_quanta_are_by_weight():
    account = reported(row(ALICE, 10, 90), row(BOB, 10, -350))
    account.received("a", ALICE, 1000)
    closing = finish(close(account, RULES, Weighted()))
    assert closing.clients == {ALICE: 500, BOB: 350 - 400 / 4}


def test_tenants_have_their_own_balances():
    account = reported(
        row(ALICE, 10, -40)._replace(tenant_deficit=-200, tenant_seed=-10),
        row(BOB, 10, 60)._replace(tenant_deficit=-200, tenant_seed=-10),
        row(CAROL, 10, -70)._replace(tenant_deficit=30),
    )
    account.received("a", BOB, 15)
    assert finish(close(account, RULES, EqualWeights())).tenants == {"ns/t": 195, "ns/u": -30}


class TestDraining:
    def test_balances_start_from_the_mark(self):
        """After the mark Alice still runs and other clients leave, so later credit and refills do not count."""
        account = reported(row(ALICE, 10, 90), row(BOB, 10, 60))
        account.mark("a")
        account.observe(since=1, sequence=2, rows=[row(ALICE, 40, 0), row(BOB, 10, 0)])
        assert balances(account) == {ALICE: -60, BOB: -60}

    def test_only_the_first_mark_of_a_router_counts(self):
        account = reported(row(ALICE, 10, 90))
        account.mark("a")
        account.observe(since=1, sequence=2, rows=[row(ALICE, 40, 0)])
        account.mark("a")
        assert balances(account) == {ALICE: -60}

    def test_all_routers_use_the_same_mark(self):
        account = reported(row(ALICE, 10, 90))
        account.mark("b")
        account.observe(since=1, sequence=2, rows=[row(ALICE, 40, 80)])
        account.mark("a")
        assert balances(account) == {ALICE: -80}, "the first in the alphabet, whichever came first"

    def test_a_mark_may_come_before_the_first_report(self):
        account = ReplicaAccount()
        at(account, "a").promised("x", ALICE, seed=50, tenant_seed=0)
        account.mark("a")
        account.observe(since=0, sequence=2, rows=[row(ALICE, 40, 0, seed=50)])
        assert balances(account) == {ALICE: 40}


@pytest.mark.parametrize(
    "wrong", [{"quantum": 0}, {"overshoot": 0}, {"overshoot": -1}, {"crash_loss": -1}]
)
def test_rules_without_a_valid_range_are_refused(wrong):
    with pytest.raises(ValueError, match="must be positive"):
        CarryRules(**{"quantum": 1, "overshoot": 1, **wrong})
