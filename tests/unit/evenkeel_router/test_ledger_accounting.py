"""Which incarnations live, what they are told of clients, and what is booked of what they did."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from evenkeel_contract.key import ClientKey, decode
from evenkeel_contract.reports import ClientReport
from evenkeel_contract.routerconfig import ClientConfig, TenantConfig
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.fleet.contract import NOTHING, Usage
from evenkeel_fairshare.ledger import CarryRules, Compactor, Ledger, ReplicaRow
from evenkeel_router.api.identity import UNPAID, WHOLE, Client, Paid, client_of
from evenkeel_router.ledger import accounting
from evenkeel_router.ledger.accounting import Accounting, Booking
from evenkeel_router.ledger.held_work import HeldWork, RelocationVerdict

from tests.support.ledger_worlds import stated

TENANT = TenantConfig(
    namespace="ns", name="t", weight=2, clients=(ClientConfig(name="a", weight=4),)
)
A, B = client_of(TENANT, "a"), client_of(TENANT, "b")


def books(router: str = "here") -> Accounting:
    ledger = Ledger(router, rules=CarryRules(quantum=100, overshoot=500))
    ledger.members = frozenset({router})
    return Accounting(ledger, cost=LinearCost(), return_s=30.0)


def meet(of: Accounting, replica: str, incarnation: str, now_s: float = 0.0) -> bool:
    return of.meets(replica, incarnation, policy="DLPM", now_s=now_s)


def report(client: str, service: float, deficit: float, seed: float = 0.0) -> ClientReport:
    return ClientReport(
        client, 0, 0, 0, service, service, service, 1, deficit, deficit, 0, 0, seed, seed
    )


def tell(of: Accounting, incarnation: str, *reports: ClientReport, sequence: int = 1) -> None:
    of.observe(incarnation, reports, policy="DLPM", sequence=sequence, since=0)


def sent(
    of: Accounting, replica: str = "r0", client: Client = A, *, paid: bool = False,
    now_s: float = 0.0,
) -> Booking:  # fmt: skip
    return of.sends(replica, client, paid=Paid(paid), now_s=now_s)


def key(of: Accounting, replica: str = "r0", client: Client = A, **how: Any) -> ClientKey:
    return decode(sent(of, replica, client, **how).key)


def test_what_a_client_owed_where_another_process_answers_now_it_starts_from() -> None:
    of = books()
    meet(of, "r0", "first")
    tell(of, "first", report(A.identity, 70, -60), report(B.identity, 20, -20))
    meet(of, "r0", "second", now_s=5.0)
    a, b = key(of, now_s=5.0), key(of, "r0", B)
    assert (a.seed, b.seed) == (-60, -20)
    assert a.tenant_seed < 0
    again = key(of, paid=True, now_s=99.0)
    assert (again.seed, again.tenant_seed, again.retried_by_fleet) == (-60, a.tenant_seed, True)


def test_a_key_has_no_seed_once_the_replica_knows_the_client() -> None:
    of = books()
    meet(of, "r0", "first")
    tell(of, "first", report(A.identity, 70, -60))
    meet(of, "r0", "second")
    tell(of, "second", report(A.identity, 0, -60, seed=-60))
    assert sent(of).key == A.key
    assert sent(of, paid=True).key == f"{A.key};f"


def test_what_is_carried_is_spread_over_those_who_join_together() -> None:
    of = books()
    meet(of, "r0", "old")
    tell(of, "old", report(A.identity, 90, -90))
    of.meets("r0", "new", policy="DLPM", now_s=100.0)
    of.meets("r1", "other", policy="DLPM", now_s=101.0)
    first, second = key(of, "r0", now_s=102.0), key(of, "r1", now_s=102.0)
    assert (first.seed, second.seed) == (-45, -45)


def test_policies_without_deficits_are_told_no_seeds_and_leave_no_debts() -> None:
    of = books()
    of.meets("r0", "vtc", policy="VTC", now_s=0.0)
    of.observe("vtc", [report(A.identity, 90, -9000)], policy="VTC", sequence=1, since=0)
    of.meets("r0", "next", policy="VTC", now_s=1.0)
    assert sent(of).key == A.key
    of.meets("r0", "fair", policy="DLPM", now_s=2.0)
    assert key(of).seed == 0


def test_a_request_is_open_until_it_ends_and_counts_what_it_used() -> None:
    of = books()
    meet(of, "r0", "one")
    booking = sent(of)
    assert of.ledger.served(A.identity) == 0
    of.ended(booking, Usage(30, 10, 5))
    assert of.ledger.served(A.identity) == 30


def test_a_retry_pays_its_output_only_and_nothing_pays_nothing() -> None:
    of = books()
    meet(of, "r0", "one")
    for usage in (Usage(30, 10, 5), NOTHING, None):
        of.ended(sent(of, paid=True), usage)
    assert of.ledger.served(A.identity) == 10


def test_what_was_used_counts_however_a_request_ended() -> None:
    of = books()
    meet(of, "r0", "one")
    used = (Usage(30, 10, 5), NOTHING, Usage(30, 10, 0), None)
    for usage, want in zip(used, (30, 30, 50, 50), strict=True):
        of.ended(sent(of), usage)
        assert of.ledger.served(A.identity) == want
    tell(of, "one", running(A.identity, 0, 4))
    of.failed(sent(of), Usage(30, 10, 0))  # by the last report it only waited
    assert of.ledger.served(A.identity) == 50


def running(client: str, running: int, waiting: int) -> ClientReport:
    return ClientReport(client, 0, 0, 0, 0, 0, 0, 0, 0, 0, waiting, running)


def test_of_what_a_crash_ends_only_what_was_running_is_paid_there() -> None:
    of = books()
    meet(of, "r0", "one")
    tell(of, "one", running(A.identity, 2, 4))
    bookings = [sent(of) for _ in range(6)]
    paid = [of.failed(booking, Usage(30, 10, 0)).input for booking in bookings]
    assert paid == [True, True, False, False, False, False]
    assert of.ledger.served(A.identity) == 2 * 20
    assert not of._open


def test_what_was_paid_once_is_paid_although_it_only_waited_the_second_time() -> None:
    of = books()
    meet(of, "r0", "one")
    tell(of, "one", running(A.identity, 0, 4))
    assert of.failed(sent(of, paid=True), Usage(30, 10, 0)) == Paid(True)
    assert of.failed(sent(of), Usage(30, 10, 0)) == UNPAID
    assert of.ledger.served(A.identity) == 0


def test_what_was_moved_is_paid_once_where_it_began_or_may_have_begun() -> None:
    of = books()
    meet(of, "r0", "one")
    tell(of, "one", running(A.identity, 0, 4))
    began, never, unheard = (sent(of) for _ in range(3))
    told = RelocationVerdict({began.number: Paid(True)}, frozenset({never.number}))
    estimate, served = Usage(30, 10, 0), of.ledger.served
    assert of.moved(began, told, estimate) == Paid(True)
    assert served(A.identity) == 20
    assert of.moved(never, told, estimate) == UNPAID
    assert served(A.identity) == 20
    assert of.moved(unheard, None, estimate) == Paid(True)
    assert served(A.identity) == 40
    assert not of._open


def test_output_that_a_relocated_request_has_paid_is_not_paid_again() -> None:
    of = books()
    meet(of, "r0", "one")
    tell(of, "one", running(A.identity, 0, 4))
    first = sent(of)
    paid = of.moved(first, RelocationVerdict({first.number: Paid(True, 7)}), Usage(30, 10, 0))
    assert paid == Paid(True, 7)
    assert of.ledger.served(A.identity) == 20
    again = of.sends("r0", A, paid=paid, now_s=0.0)
    assert decode(again.key).paid_output_tokens == 7
    of.ended(again, Usage(30, 10, 12))
    assert of.ledger.served(A.identity) == 20 + 2 * 5
    once_more = of.sends("r0", A, paid=paid, now_s=0.0)
    told = RelocationVerdict({once_more.number: Paid(True, 2)})
    assert of.moved(once_more, told, Usage(30, 10, 0)) == Paid(True, 9)
    and_again = of.sends("r0", A, paid=paid, now_s=0.0)
    told = RelocationVerdict({and_again.number: Paid(True, WHOLE)})
    assert of.moved(and_again, told, Usage(30, 10, 0)) == Paid(True, WHOLE)


def test_broken_off_requests_are_known_by_a_whole_report_since_the_drain() -> None:
    """Peers may have heard of the rest: asking for what is new to the ledger would leave it out."""
    of = books()
    meet(of, "r0", "one")
    tell(of, "one", running(A.identity, 1, 0), sequence=5)
    assert not of.is_incomplete("one")
    of.drains("r0")
    assert of.is_incomplete("one")
    broken_off = msgspec.structs.replace(running(A.identity, 1, 2), aborted=3, aborted_tokens=40)
    of.observe("one", [broken_off], policy="DLPM", sequence=6, since=5)
    assert of.is_incomplete("one")
    tell(of, "one", broken_off, sequence=6)
    assert not of.is_incomplete("one")
    assert of.held("one", A.identity) == HeldWork(0, 1, 2, 3, 40)
    of.drains("r0")
    assert not of.is_incomplete("one")  # said again


def test_where_no_report_ever_came_nothing_is_charged_twice() -> None:
    of = books()
    of.meets_unreported("r0", 0.0)
    paid = of.failed(sent(of), Usage(30, 10, 0))
    assert (paid.input, paid.booked) == (True, False)  # engines do not charge it again
    assert of.ledger.served(A.identity) == 0
    again = of.failed(of.sends("r0", A, paid=paid, now_s=0.0), Usage(30, 10, 0))
    assert again == paid
    of.ended(of.sends("r0", A, paid=again, now_s=0.0), Usage(30, 10, 4))
    assert of.ledger.served(A.identity) == 20 + 2 * 4  # once, by the attempt that succeeded


def test_what_began_where_nothing_is_booked_is_booked_by_the_next_attempt() -> None:
    of = books()
    paid = of.failed(sent(of), Usage(30, 10, 0), began=True)  # no process is known there yet
    assert (paid.input, paid.booked) == (True, False)
    meet(of, "r0", "one")
    paid = of.failed(sent(of), Usage(30, 10, 0), began=True)
    assert (paid.input, paid.booked) == (True, True)
    assert of.ledger.served(A.identity) == 20


def test_a_departed_incarnation_is_closed_when_nothing_is_open_there() -> None:
    of = books()
    meet(of, "r0", "first")
    booking = sent(of)
    meet(of, "r0", "second", now_s=1.0)
    of.close(2.0, settled=False)
    assert not of.ledger.replica_accounts["first"].closed_by
    of.ended(booking, None)
    of.close(3.0, settled=False)
    assert of.ledger.replica_accounts["first"].closed_by == {"here"}


def test_a_replica_that_left_the_configuration_may_come_back_for_a_while() -> None:
    of = books()
    meet(of, "r0", "one")
    tell(of, "one", report(A.identity, 5, -5))
    of.leaves("r0", 10.0)
    assert of.alive == frozenset()
    of.close(39.0, settled=True)
    assert meet(of, "r0", "one", now_s=39.5)
    assert of.alive == {"one"}
    of.leaves("r0", 50.0)
    of.close(80.0, settled=True)
    assert of.ledger.replica_accounts["one"].closed_by == {"here"}


def test_what_was_given_up_for_good_is_not_counted_again() -> None:
    of = books()
    meet(of, "r0", "one")
    tell(of, "one", report(A.identity, 5, -5))
    of.leaves("r0", 0.0)
    of.close(30.0, settled=True)
    compactor = Compactor(of.ledger)
    assert compactor.compact(["here"], live=(), now_s=30.0)
    compactor.collect(["here"])
    assert not meet(of, "r0", "one", now_s=31.0)
    assert of.incarnation("r0") == ""
    booking = sent(of, now_s=31.0)
    assert (booking.incarnation, booking.key) == ("", A.key)
    of.ended(booking, Usage(1, 0, 1))
    assert of.ledger.served(A.identity) == 5


def test_a_page_of_somebody_else_is_closed_once_nobody_takes_it_for_alive() -> None:
    here, there = books("here"), books("there")
    for one in (here, there):
        one.ledger.members = frozenset({"here", "there"})
    meet(there, "r0", "one")
    tell(there, "one", report(A.identity, 5, -5))
    here.close(0.0, settled=True)
    assert (
        not here.ledger.replica_accounts
    )  # and with nothing heard of the other, nothing is closed either
    here.ledger.merge(there.ledger.delta())
    here.close(1.0, settled=True)
    assert here.alive == {"one"}
    meet(there, "r0", "two", now_s=2.0)
    there.close(2.0, settled=True)
    here.ledger.merge(there.ledger.delta(here.ledger.digest()))
    here.close(3.0, settled=False)
    assert here.ledger.replica_accounts["one"].closed_by == {"here", "there"}
    assert here.alive == {"two"}


def test_a_router_that_has_just_started_takes_nobody_for_dead() -> None:
    of = books()
    tell(of, "from a file", report(A.identity, 5, -5))
    of.close(1.0, settled=False)
    assert not of.ledger.replica_accounts["from a file"].closed_by
    of.close(31.0, settled=True)
    assert of.ledger.replica_accounts["from a file"].closed_by == {"here"}


def test_replicas_without_reports_count_by_what_the_router_got() -> None:
    of = books()
    of.meets_unreported("r0", 0.0)
    first = of.incarnation("r0")
    booking = sent(of)
    assert booking.key == A.key
    of.ended(booking, Usage(4, 0, 3))
    of.leaves("r0", 1.0)
    of.meets_unreported("r0", 2.0)
    assert of.incarnation("r0") != first
    assert of.ledger.served(A.identity) == 10


def test_inter_token_latencies_are_kept_by_process_for_bounded_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accounting, "MAX_LATENCIES", 1)
    of = books()
    meet(of, "r0", "first")
    for name, tokens in ((A.identity, 3), (B.identity, 4), (A.identity, 9)):
        row = msgspec.structs.replace(report(name, 1, 0), itl_tokens=tokens, itl_s=tokens / 2)
        tell(of, "first", row, sequence=tokens)
    assert of.latency("first", A.identity) == (9, 4.5)
    assert of.latency("first", B.identity) == (0, 0.0)
    meet(of, "r0", "second", now_s=5.0)
    of.close(100.0, settled=True)
    assert of.latency("first", A.identity) == (0, 0.0)


def test_output_that_was_paid_elsewhere_and_not_made_here_gives_nothing_back() -> None:
    of = books()
    meet(of, "r0", "first")
    booking = of.sends("r0", A, paid=Paid(True, 8), now_s=0.0)
    of.ended(booking, Usage(100, 0, 5))
    assert of.received("first", A.identity) == 0.0
    booking = of.sends("r0", A, paid=Paid(True, 8), now_s=0.0)
    of.ended(booking, Usage(100, 0, 9))
    assert of.received("first", A.identity) == 2.0


def test_a_process_that_drained_and_comes_back_serves() -> None:
    of = books()
    meet(of, "r0", "first")
    of.drains("r0")
    of.leaves("r0", 1.0)
    assert of.is_draining("first"), "what waits there is moved"
    meet(of, "r0", "first", 2.0)
    assert not of.is_draining("first")


def test_what_is_received_counts_beyond_what_was_reported_before() -> None:
    of = books()
    meet(of, "r0", "first")
    tell(of, "first", report(A.identity, 70, 0))
    one = sent(of)
    tell(of, "first", report(A.identity, 80, 0), sequence=2)  # a part of it
    other = sent(of)
    assert of.keeps("first", A.identity)
    of.ended(one, Usage(10, 0, 5))
    of.ended(other, Usage(10, 0, 0))
    assert not of.keeps("first", A.identity)
    own = of.ledger.replica_accounts["first"].accounts["here"]
    assert stated(own, A.identity) == (70.0, 30.0)
    assert of.ledger.served(A.identity) == 100.0


def test_a_report_of_a_part_of_an_open_request_is_no_base() -> None:
    of = books()
    of.meets("r0", "first", policy="LPM", now_s=0.0)
    one = sent(of)
    tell(of, "first", report(A.identity, 15, 0))
    other = sent(of)
    of.ended(one, Usage(10, 0, 5))
    of.ended(other, Usage(10, 0, 0))
    assert stated(of.ledger.replica_accounts["first"].accounts["here"], A.identity) == (0.0, 30.0)
    assert of.ledger.served(A.identity) == 30.0


def test_what_is_received_where_a_gate_reports_is_all_that_counts() -> None:
    """The router writes both sides there, and its own total must not begin anew."""
    of = books()
    of.meets_unreported("r0", 0.0)
    name = of.unreported("r0")
    of.ledger.observe(name, since=0, sequence=1, rows=[ReplicaRow(A.identity, 9.0, 9.0, 1)])
    of.ended(sent(of), Usage(10, 0, 5))
    assert of.received(name, A.identity) == 20.0 == of.ledger.served(A.identity)
    assert of.keeps(name, A.identity)


def test_a_report_without_news_does_not_reach_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    of, told = books(), []
    meet(of, "r0", "one")
    observe = of.ledger.observe

    def noted(incarnation: str, **what: Any) -> None:
        told.append((what["since"], what["sequence"]))
        observe(incarnation, **what)

    monkeypatch.setattr(of.ledger, "observe", noted)

    def take(since: int, sequence: int) -> None:
        of.observe("one", (), policy="DLPM", sequence=sequence, since=since)

    tell(of, "one", report(A.identity, 70, -60), sequence=4)
    take(4, 4)
    take(2, 3)  # late
    assert told == [(0, 4)]
    take(4, 6)  # rows changed and were told in a piece before
    assert of.ledger.sequence("one") == 6
    of.drains("r0")
    take(0, 6)  # all that there is
    assert told == [(0, 4), (4, 6), (0, 6)]
    assert not of.is_incomplete("one")
