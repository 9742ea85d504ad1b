"""Clients that are aged out of closed totals (design R4, R6)."""

from __future__ import annotations

import pytest
from evenkeel_fairshare.ledger import CompactionRules, Compactor
from evenkeel_fairshare.ledger.balances import carried_balance

from tests.support.ledger_worlds import ALICE, content, ledger, one_router, report, row

BOB = "ns/t/bob"


class Debtor:
    """Alice left with a debt of 40 and is idle; Bob gets quanta of 100."""

    def __init__(self, rules: CompactionRules | None = None) -> None:
        self.ledger, self.compactor = one_router(rules)
        report(self.ledger, "gone", 1, row(ALICE, 70, deficit=-40))
        self.ledger.closed("gone")
        self.at = 0
        self.bob_served(0)
        self.compact(0)
        self.compact(1)

    def bob_served(self, quanta: int) -> None:
        self.at += 1
        served = 100.0 * quanta
        report(self.ledger, "alive", self.at, row(BOB, served, waiting=1))

    def compact(self, now_s: float) -> None:
        self.compactor.compact(["only"], live=["alive"], now_s=now_s)
        self.compactor.collect(["only"])

    def is_known(self) -> bool:
        return ALICE in self.ledger.closed_totals.clients


def test_a_debt_is_kept_until_the_client_missed_as_much_service():
    world = Debtor(CompactionRules(idle_s=10))
    for now_s in (20, 40, 60):
        world.compact(now_s)
    assert world.is_known(), "no client was served meanwhile"
    assert carried_balance(world.ledger, ALICE, ["alive"]) == 40
    world.bob_served(1)
    world.compact(80)
    assert world.is_known(), "service since the last version may be Alice's too"
    world.compact(100)
    assert not world.is_known()
    assert carried_balance(world.ledger, ALICE, ["alive"]) == 0


def test_service_of_others_before_the_debt_does_not_count():
    world = Debtor.__new__(Debtor)
    world.ledger, world.compactor = one_router(CompactionRules(idle_s=10))
    world.at = 0
    world.bob_served(5)
    report(world.ledger, "gone", 1, row(ALICE, 70, deficit=-40))
    world.ledger.closed("gone")
    for now_s in (0, 20, 40, 60):
        world.compact(now_s)
    assert world.is_known()


def test_a_client_with_work_between_two_versions_is_not_idle():
    world = Debtor(CompactionRules(idle_s=10))
    world.bob_served(1)
    report(world.ledger, "alive", 10, row(ALICE, 1))
    for now_s in (20, 40, 60):
        world.compact(now_s)
    assert world.is_known()


def test_a_client_that_waits_is_not_idle():
    world = Debtor(CompactionRules(idle_s=10))
    report(world.ledger, "alive", 10, row(ALICE, 0, waiting=1))
    for quanta in range(1, 5):
        world.bob_served(quanta)
        world.compact(20.0 * quanta)
    assert world.is_known()


def test_idle_time_before_a_new_debt_does_not_count():
    world = Debtor(CompactionRules(idle_s=10))
    world.bob_served(1)
    world.compact(20)
    report(world.ledger, "slow", 1, row(ALICE, 1, deficit=-30))
    world.ledger.closed("slow")
    world.ledger.touched.clear()  # the report has no work after the last version
    for now_s in (21, 40, 60):
        world.compact(now_s)
    assert world.is_known()
    assert carried_balance(world.ledger, ALICE, ["alive"]) == 70


def test_a_new_weight_counts_as_no_service():
    """Bob's debt of 300 is 300 quanta at weight 1 and 75 at weight 4. The difference is no service."""
    world = Debtor(CompactionRules(idle_s=10))
    report(world.ledger, "alive", 10, row(BOB, 300, deficit=-300, waiting=1))
    world.compact(15)
    world.ledger.weights = Heavy()
    report(world.ledger, "alive", 11, row(BOB, 300, deficit=-300, waiting=1))
    for now_s in (20, 40, 60):
        world.compact(now_s)
    assert world.is_known()


class Heavy:
    def client(self, client: str) -> float:
        return 4.0

    def tenant(self, tenant: str) -> float:
        return 1.0


def test_a_new_compactor_continues_with_new_idle_times():
    world = Debtor(CompactionRules(idle_s=10))
    world.bob_served(1)
    world.compact(20)
    world.compactor = Compactor(world.ledger, CompactionRules(idle_s=10))
    world.compact(21)
    assert world.is_known(), "for the new compactor the client is not idle for long enough"
    world.compact(40)
    assert not world.is_known()


@pytest.mark.parametrize(
    ("change", "stays"),
    [
        pytest.param("nothing", False, id="a client without a debt is removed"),
        pytest.param("seeded", True, id="a client with a seed at a live replica stays"),
    ],
)
def test_clients_are_aged_out_once_they_missed_as_much_as_their_debt(change, stays):
    world = Debtor(CompactionRules(idle_s=10))
    world.bob_served(1)
    if change == "seeded":
        world.ledger.promised("alive", ALICE, seed=-5, tenant_seed=0)
    world.compact(5)
    assert world.is_known(), "not idle for long enough"
    for now_s in (20, 40):
        world.compact(now_s)
    assert world.is_known() == stays
    if not stays:
        tenant = world.ledger.closed_totals.tenant("ns/t")
        assert tenant.service == 70, "the tenant keeps the service of its clients"


def test_too_many_clients_are_aged_out_smallest_debt_first():
    here, compactor = one_router(CompactionRules(idle_s=1e9, max_clients=2))
    report(here, "gone", 1, *(row(f"ns/t/{i}", 1, deficit=-10.0 * i) for i in range(5)))
    here.closed("gone")
    for now_s in range(3):
        compactor.compact(["only"], live=(), now_s=now_s)
    assert set(here.closed_totals.clients) == {"ns/t/3", "ns/t/4"}
    assert here.closed_totals.tenant("ns/t").service == 3


def test_a_client_that_was_aged_out_may_return_and_followers_agree():
    world = Debtor(CompactionRules(idle_s=10))
    here = world.ledger
    follower = ledger("follower")
    follower.merge(here.delta())
    world.bob_served(1)
    for now_s in (20, 40):
        world.compact(now_s)
    assert not world.is_known()
    early = ledger("early")
    early.merge(here.delta())
    report(here, "second", 1, row(ALICE, 9, deficit=-3))
    here.closed("second")
    world.compact(41)
    for reader in (follower, early):
        reader.merge(here.delta(reader.digest()))
        assert reader.served(ALICE) == 9
        assert carried_balance(reader, ALICE, ["alive"]) == 3
        assert content(reader)["closed clients"] == content(here)["closed clients"]
