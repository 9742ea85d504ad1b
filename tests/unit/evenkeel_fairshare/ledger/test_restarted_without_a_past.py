"""After the loss of all routers, old balances are void: older seeds are neither debt nor credit (R8)."""

from __future__ import annotations

import pytest
from evenkeel_fairshare.ledger import CarryRules, Compactor, Ledger, ReplicaRow, Seed, promise
from evenkeel_fairshare.ledger.balances import carried_balance, carried_balance_of_tenant

ALICE, TENANT = "ns/t/alice", "ns/t"
RULES = CarryRules(quantum=10_000, overshoot=10_000)


def ledger(router: str) -> Ledger:
    return Ledger(router, rules=RULES)


def report(
    to: Ledger, incarnation: str, *, deficit: float, seed: float = 0.0, sequence: int = 1
) -> None:
    row = ReplicaRow(
        ALICE, service=1, deficit=deficit, tenant_deficit=deficit,
        seed=seed, tenant_seed=seed, waiting=1,
    )  # fmt: skip
    to.observe(incarnation, since=to.sequence(incarnation), sequence=sequence, rows=[row])


def compact(of: Ledger, *live: str) -> None:
    """As the only router."""
    compactor = Compactor(of)
    assert compactor.compact([of.router], live=live, now_s=0)
    compactor.collect([of.router])


def past(debt: float) -> Ledger:
    """A client left a debt at an ended replica, and r2 took it over."""
    here = ledger("router-a")
    report(here, "gone", deficit=-debt)
    assert promise(here, ALICE, "r2", live=["r2"]) == Seed(-debt, -debt)
    report(here, "r2", deficit=-debt, seed=-debt)
    return here


@pytest.mark.parametrize("seed", [-5000.0, 8000.0])
@pytest.mark.parametrize("compactions", [0, 1, 2])
def test_a_seed_from_before_the_loss_is_no_debt_of_the_opposite_sign(seed, compactions):
    here = ledger("router-b")
    report(here, "r2", deficit=seed, seed=seed)
    for _ in range(compactions):
        compact(here, "r2")
    assert promise(here, ALICE, "r3", live=["r2", "r3"]) == Seed(0, 0)


def test_the_final_deficit_of_a_replica_from_before_the_loss_counts_in_full():
    here = ledger("router-b")
    report(here, "r2", deficit=-300, seed=-5000)
    assert promise(here, ALICE, "r3", live=["r3"]) == Seed(-300, -300)


@pytest.mark.parametrize("debt", [5000.0, -8000.0])
@pytest.mark.parametrize("compactions", [0, 1, 2])
def test_a_router_that_starts_alone_agrees_with_a_peer_after_their_exchange(debt, compactions):
    there, here = past(debt), ledger("router-b")
    for _ in range(3):
        compact(there, "r2")
    report(here, "r2", deficit=-debt, seed=-debt)
    for _ in range(compactions):
        compact(here, "r2")
    promise(here, ALICE, "r3", live=["r2", "r3"])
    for one, other in ((here, there), (there, here)):
        one.merge(other.delta(one.digest()))
    for one in (here, there):
        assert carried_balance(one, ALICE, ["r2", "r3"]) == 0
        assert carried_balance_of_tenant(one, TENANT, ["r2", "r3"]) == 0
        assert carried_balance(one, ALICE, ["r3"]) == debt, "r2 leaves its final deficit"


def test_a_store_that_is_read_late_leads_to_the_same_balances():
    before, here = past(5000), ledger("router-b")
    compact(before, "r2")
    report(here, "r2", deficit=-4000, seed=-5000)
    assert carried_balance(here, ALICE, ["r2"]) == 0
    for part in before.parts():
        here.merge(part)
    assert carried_balance(here, ALICE, ["r2"]) == 0
    assert carried_balance(here, ALICE, []) == 4000


def test_a_seed_of_a_crashed_router_counts_in_a_ledger_with_closed_totals():
    here = past(5000)
    report(here, "gone-too", deficit=-700)
    compact(here, "r2")
    report(here, "r3", deficit=-700, seed=-700)  # promised by a router that crashed at once
    assert carried_balance(here, ALICE, ["r2", "r3"]) == 0
    assert promise(here, ALICE, "r4", live=["r2", "r3", "r4"]).client == 0


def test_baselines_end_when_their_incarnations_are_compacted():
    here = ledger("router-b")
    report(here, "r2", deficit=-300, seed=-5000)
    compact(here, "r2")
    assert here.closed_totals.baselines == {"r2"}
    here.closed("r2")
    compact(here)
    assert not here.closed_totals.baselines
    assert promise(here, ALICE, "r3", live=["r3"]) == Seed(-300, -300)
