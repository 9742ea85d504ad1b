"""What a client that waits has asked for, from one moment to the next."""

from __future__ import annotations

from math import e, inf

import pytest
from evenkeel_fairshare.ledger import Ledger, ReplicaRow
from evenkeel_fairshare.ledger.replica_account import ReplicaAccount
from evenkeel_router.ledger.backlog import MEMORY_S, look

from tests.support.ledger_worlds import ALICE, ledger, report


def accounts(of: Ledger, *names: str) -> list[ReplicaAccount]:
    return [of.replica_accounts[name] for name in names]


def row(service: float, requests: float, *, running: float = 0, waiting: float = 0) -> ReplicaRow:
    return ReplicaRow(ALICE, service, service, requests, running=running, waiting=waiting)


def test_what_finished_long_ago_counts_less() -> None:
    here = ledger("r")
    report(here, "one", 1, row(100.0, 4, running=2, waiting=3))
    first = look(ALICE, accounts(here, "one"), None, 0.0)
    assert (first.waiting, first.admitted, first.finished) == (3, 4, 2)
    assert first.request_cost == 50.0
    report(here, "one", 2, row(180.0, 7, running=1, waiting=2))
    now = look(ALICE, accounts(here, "one"), first, MEMORY_S)
    assert now.recent_finished == pytest.approx(1 / e + 4)
    assert now.recent_service == pytest.approx(50.0 / e + 80.0)
    assert now.asked_since(first) == pytest.approx((2 + 3) * now.request_cost)


def test_after_a_replica_has_departed_all_before_counts_as_one_request() -> None:
    here = ledger("r")
    report(here, "one", 1, row(100.0, 4, running=2, waiting=3))
    report(here, "two", 1, row(900.0, 3, waiting=1))
    before = look(ALICE, accounts(here, "one", "two"), None, 0.0)
    after = look(ALICE, accounts(here, "one"), before, 1.0)
    assert after == look(ALICE, accounts(here, "one"), None, 1.0)
    assert after.recent_service == 50.0


def test_the_cost_of_a_request_is_unknown_until_one_has_finished() -> None:
    here = ledger("r")
    report(here, "one", 1, row(0.0, 0, waiting=3))
    assert look(ALICE, accounts(here, "one"), None, 0.0).request_cost == inf
