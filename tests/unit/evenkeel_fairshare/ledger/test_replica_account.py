"""The account of a replica: sent in parts, what routers received beyond its reports, and rows that are asked for anew."""

from __future__ import annotations

import pytest
from evenkeel_fairshare.ledger import Ledger, ReplicaRow
from evenkeel_fairshare.ledger.router_account import RouterAccount, floor_of

from tests.support.ledger_worlds import (
    ALICE,
    BOB,
    kept,
    ledger,
    look,
    nothing_open,
    recounted,
    report,
    stated,
)


def test_only_the_last_part_of_a_router_account_has_its_head() -> None:
    account = RouterAccount(head=3.0)
    for version, client in enumerate(("ns/t/a", "ns/t/b", "ns/t/c"), start=1):
        account.clients.add(client, float(version), 1, 5.0)
    parts = list(account.delta("r", 0.0).split(1))
    assert [part.head for part in parts] == [0.0, 0.0, 3.0]
    copy = RouterAccount()
    for part in parts:
        copy.merge(part)
    assert (copy.head, sorted(copy.clients)) == (3.0, ["ns/t/a", "ns/t/b", "ns/t/c"])


def reported(client: str, service: float, seed: float = 0.0) -> ReplicaRow:
    return ReplicaRow(client, service, service, 1, seed=seed, tenant_seed=seed)


class TestBase:
    def test_it_is_what_was_reported_when_the_first_request_was_sent(self) -> None:
        here = ledger("here")
        here.begins("r", ALICE)  # no report, no account: the base is 0
        report(here, "r", 1, reported(ALICE, 30.0))
        here.begins("r", ALICE)
        report(here, "r", 2, reported(ALICE, 70.0))
        here.received("r", ALICE, 40.0)
        here.begins("r", ALICE)
        assert stated(_own(here), ALICE) == (30.0, 40.0)
        assert here.served(ALICE) == 70.0

    def test_what_is_not_counted_yet_is_not_added_to_a_report_that_has_it(self) -> None:
        here = ledger("here")
        report(here, "r", 1, reported(BOB, 1.0))
        here.begins("r", ALICE)
        report(here, "r", 2, reported(ALICE, 40.0))
        here.received("r", ALICE, 40.0)
        here.begins("r", ALICE)
        here.received("r", ALICE, 5.0)
        assert (stated(_own(here), ALICE), here.served(ALICE)) == ((0.0, 45.0), 45.0)

    def test_it_is_no_news(self) -> None:
        here, there = ledger("here"), ledger("there")
        report(here, "r", 1, reported(ALICE, 30.0))
        there.merge(here.delta())
        here.begins("r", ALICE)
        assert here.delta(there.digest()).replica_accounts == ()
        assert kept(here) == recounted(here)


class TestFloor:
    @pytest.mark.parametrize(
        ("statements", "floor"),
        [
            ([], 0.0),
            ([(10.0, 5.0)], 15.0),
            ([(0.0, 5.0), (30.0, 4.0)], 34.0),
            ([(30.0, 4.0), (0.0, 40.0)], 44.0),
            ([(0.0, 40.0), (0.0, 30.0), (100.0, 2.0), (90.0, 3.0)], 102.0),
            ([(7.0, 1.0), (7.0, 2.0)], 10.0),
        ],
    )
    def test_it_is_the_most_that_statements_prove(
        self, statements: list[tuple[float, float]], floor: float
    ) -> None:
        assert floor_of(statements) == floor

    def test_what_several_routers_received_adds_up(self) -> None:
        here, there = ledger("here"), ledger("there")
        for of in (here, there):
            of.received("r", ALICE, 30.0)
        report(here, "r", 1, reported(ALICE, 50.0))
        here.merge(there.delta())
        assert here.served(ALICE) == 60.0
        here.received("r", ALICE, 5.0)
        assert here.served(ALICE) == 65.0
        assert kept(here) == recounted(here)

    def test_a_row_with_a_promise_begins_anew_at_what_is_reported(self) -> None:
        here = ledger("here")
        here.promised("r", ALICE, seed=-5.0, tenant_seed=0.0)
        here.received("r", ALICE, 30.0)
        report(here, "r", 1, reported(ALICE, 40.0, seed=-5.0))
        for _ in range(3):
            look(here, {"r"})
        assert stated(_own(here), ALICE) == (40.0, 0.0)
        here.received("r", ALICE, 5.0)
        assert here.served(ALICE) == 45.0

    def test_rows_of_an_ended_process_stay(self) -> None:
        here = ledger("here")
        here.received("r", ALICE, 30.0)
        report(here, "r", 1, reported(ALICE, 30.0))
        here.closed("r")
        for _ in range(3):
            look(here, {"r"})
        assert stated(_own(here), ALICE) == (0.0, 30.0)


class TestReread:
    """The rows of a replica are asked for anew, after routers have dropped what these cover."""

    def silent(self) -> Ledger:
        here = ledger("here")
        here.received("r", ALICE, 30.0)
        report(here, "r", 9, reported(ALICE, 30.0, seed=-5.0), reported(BOB, 20.0))
        for _ in range(3):
            look(here, {"r"})
        here.grown()
        assert not _own(here).clients
        here.reread("r")
        return here

    def test_no_service_falls_meanwhile(self) -> None:
        here = self.silent()
        assert (here.served(ALICE), here.served(BOB), here.sequence("r")) == (30.0, 20.0, 0)
        assert kept(here) == recounted(here)
        here.observe("r", since=0, sequence=5, rows=[reported(ALICE, 30.0, seed=-5.0)])
        assert (here.served(ALICE), here.served(BOB)) == (30.0, 20.0)  # another page follows
        here.observe("r", since=5, sequence=9, rows=[reported(BOB, 20.0)])
        assert (here.served(ALICE), here.served(BOB)) == (30.0, 20.0)
        assert set(here.grown().values()) == {0.0}
        assert kept(here) == recounted(here)

    def test_what_is_received_meanwhile_counts_beyond_what_was_known(self) -> None:
        here = self.silent()
        here.received("r", ALICE, 5.0)
        assert here.served(ALICE) == 30.0  # it may be a part of that
        here.received("r", ALICE, 27.0)
        assert here.served(ALICE) == 32.0
        assert kept(here) == recounted(here)

    def test_no_client_gets_another_seed_meanwhile(self) -> None:
        here = self.silent()
        assert here.is_reported("r", ALICE)
        assert here.replica_accounts["r"].seed(ALICE) == -5.0
        assert dict(here.seeds.unpromised) == {ALICE: {"r": -5.0}}

    @pytest.mark.parametrize("head", [9, 7], ids=["with the last number", "whose last row is gone"])
    def test_what_the_replica_has_no_longer_goes_with_the_last_answer(self, head: int) -> None:
        here = self.silent()
        rest = reported("ns/t/*", 20.0)
        here.observe("r", since=0, sequence=head, rows=[reported(ALICE, 31.0), rest])
        here.observe("r", since=head, sequence=head, rows=[])
        assert (here.served(ALICE), here.served(BOB), here.served("ns/t/*")) == (31.0, 0.0, 20.0)
        assert kept(here) == recounted(here)

    def test_a_row_that_was_given_back_ends_with_its_mark(self) -> None:
        here = self.silent()
        rows = [reported(ALICE, 30.0), ReplicaRow(f"{BOB}*"), reported("ns/t/*", 20.0)]
        here.observe("r", since=0, sequence=5, rows=rows)
        assert (here.served(ALICE), here.served(BOB), here.served("ns/t/*")) == (30.0, 0.0, 20.0)
        assert kept(here) == recounted(here)

    def test_rows_of_a_peer_replace_those_from_before(self) -> None:
        """The client was given back there, and has returned."""
        here, there = self.silent(), ledger("there")
        report(there, "r", 11, reported(BOB, 3.0), reported("ns/t/*", 20.0))
        here.merge(there.delta())
        assert (here.served(ALICE), here.served(BOB)) == (30.0, 3.0)
        assert kept(here) == recounted(here)

    def test_an_answer_to_an_earlier_question_is_not_the_last(self) -> None:
        here = self.silent()
        here.observe("r", since=9, sequence=9, rows=[])
        here.observe("r", since=9, sequence=10, rows=[reported(ALICE, 31.0)])
        assert (here.served(ALICE), here.served(BOB), here.sequence("r")) == (31.0, 20.0, 0)

    def test_a_second_silence_before_the_last_answer_changes_nothing(self) -> None:
        here = self.silent()
        here.observe("r", since=0, sequence=5, rows=[reported(ALICE, 30.0)])
        here.reread("r")
        assert (here.served(ALICE), here.served(BOB)) == (30.0, 20.0)
        here.observe("r", since=0, sequence=5, rows=[reported(ALICE, 30.0)])
        assert here.served(BOB) == 20.0
        here.observe("r", since=5, sequence=9, rows=[reported(BOB, 20.0)])
        assert set(here.grown().values()) == {0.0}


def test_a_promise_ends_with_the_row_that_the_replica_gives_back() -> None:
    """Otherwise the client would get the same seed again when it returns, though it paid that debt."""
    here = ledger("here")
    here.promised("r", ALICE, seed=-5.0, tenant_seed=0.0)
    report(here, "r", 1, reported(ALICE, 30.0, seed=-5.0))
    here.observe("r", since=1, sequence=2, rows=[reported(ALICE, 30.0)])  # the policy forgot it
    here.observe("r", since=2, sequence=4, rows=[ReplicaRow(f"{ALICE}*"), reported("ns/t/*", 30.0)])
    for _ in range(2):
        for _ in here.forget_idle({"r"}, nothing_open):
            pass
    assert here.replica_accounts["r"].seed(ALICE) is None
    assert kept(here) == recounted(here)


def _own(here: Ledger) -> RouterAccount:
    return here.replica_accounts["r"].account(here.router)
