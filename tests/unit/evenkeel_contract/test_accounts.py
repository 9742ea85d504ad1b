"""Totals per client: cumulative, bounded, and none lost (R3)."""

from __future__ import annotations

from collections import Counter

import pytest
from evenkeel_contract.reportbook import Accounts
from evenkeel_contract.reports import unserved
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.replica.contract import Request
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.support.costs import QuadraticCost
from tests.support.replica import request

COSTS = LinearCost(1.0, 2.0)


def admitted(accounts: Accounts, client: str, *, extend: int = 3) -> Request:
    one = Request(
        id="r",
        client=client,
        tenant=client.rpartition("/")[0],
        arrival_s=0.0,
        input_tokens=extend,
        max_output_tokens=9,
    )
    one.extend_tokens = extend
    accounts.admitted(one, charged=True)
    return one


def test_clients_beyond_the_bound_share_a_row_of_their_tenant() -> None:
    accounts = Accounts(COSTS, max_clients=2)
    for client in ("ns/a/1", "ns/a/2", "ns/a/3", "ns/b/4", "ns/b/5", "ns/a/1"):
        admitted(accounts, client)
    assert {client: totals.requests for client, totals in accounts.clients.items()} == {
        "ns/a/1": 2,
        "ns/a/2": 1,
        "ns/a/*": 1,
        "ns/b/*": 2,
    }


REQUESTS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(1, 50), st.integers(0, 20)),
    max_size=60,
)


@given(REQUESTS, st.integers(1, 8))
def test_rows_are_bounded_never_fall_and_miss_nothing(
    requests: list[tuple[str, int, int, int]], max_clients: int
) -> None:
    accounts = Accounts(COSTS, max_clients=max_clients)
    served: Counter[str] = Counter()
    before: dict[str, float] = {}
    for tenant, number, extend, output in requests:
        one = admitted(accounts, f"ns/{tenant}/{number}", extend=extend)
        one.output_tokens = output
        accounts.left(one)
        served[tenant] += extend + 2 * output
        now = {client: totals.service for client, totals in accounts.clients.items()}
        assert all(now[client] >= service for client, service in before.items())
        before = now
    assert len(before) <= max_clients + 2
    got: Counter[str] = Counter()
    for client, service in before.items():
        got[client.split("/")[1]] += int(service)
    assert got == served
    assert all(totals.running == 0 for totals in accounts.clients.values())


# What is booked, and when. An output token costs 2.


def test_an_admission_is_booked_with_its_input() -> None:
    accounts = Accounts(LinearCost())
    accounts.admitted(
        request("one", extend=60, matched=40, client_weight=2, tenant_weight=3), charged=True
    )
    assert accounts.clients == {
        "a": structs.replace(
            unserved("a"),
            extend_tokens=60,
            cached_tokens=40,
            service=60,
            normalised=30,
            tenant_normalised=20,
            requests=1,
            running=1,
        )
    }


def test_a_request_that_is_not_charged_is_counted_and_costs_nothing() -> None:
    accounts = Accounts(LinearCost())
    accounts.admitted(request("one", extend=60, matched=40), charged=False)
    assert accounts.clients["a"] == structs.replace(
        unserved("a"), extend_tokens=60, cached_tokens=40, requests=1, running=1
    )


def test_output_is_booked_once_however_often_it_is_settled() -> None:
    accounts = Accounts(LinearCost())
    one = request("one", client_weight=2, tenant_weight=4)
    accounts.admitted(one, charged=False)
    for tokens in (0, 3, 3, 4):
        one.output_tokens = tokens
        accounts.settle(one)
    totals = accounts.clients["a"]
    assert (totals.output_tokens, totals.service, totals.normalised, totals.tenant_normalised) == (
        4,
        8,
        4,
        2,
    )


def test_time_between_tokens_adds_up_however_often_it_is_settled() -> None:
    accounts = Accounts(LinearCost())
    one, two = request("one"), request("two")
    for each in (one, two):
        accounts.admitted(each, charged=False)
    for tokens, at_s in ((1, 10.0), (3, 10.5), (3, 10.5), (4, 12.0)):
        if tokens == 1:
            one.first_token(at_s)
        one.output_tokens, one.token_s = tokens, at_s
        accounts.settle(one)
    two.first_token(20.0)
    two.output_tokens, two.token_s = 3, 20.25  # settled once, at the end
    accounts.left(two)
    totals = accounts.clients["a"]
    assert (totals.itl_tokens, totals.itl_s) == (3 + 2, 2.0 + 0.25)


def test_who_leaves_is_settled_and_runs_no_more() -> None:
    accounts = Accounts(LinearCost())
    one, two = request("one"), request("two")
    for each in (one, two):
        accounts.admitted(each, charged=True)
    one.output_tokens = 5
    accounts.left(one)
    assert accounts.clients["a"] == structs.replace(
        unserved("a"),
        extend_tokens=200,
        output_tokens=5,
        service=210,
        normalised=210,
        tenant_normalised=210,
        requests=2,
        running=1,
        itl_tokens=4,
    )


def test_tokens_of_all_admissions_add_up() -> None:
    accounts = Accounts(LinearCost())
    accounts.admitted(request("one", extend=1, matched=20), charged=True)
    accounts.admitted(request("two", extend=3, matched=40), charged=True)
    totals = accounts.clients["a"]
    assert (totals.requests, totals.extend_tokens, totals.cached_tokens) == (2, 4, 60)


def test_clients_have_accounts_of_their_own() -> None:
    accounts = Accounts(LinearCost())
    accounts.admitted(request("one", "a", extend=10), charged=True)
    accounts.admitted(request("two", "b", extend=20), charged=True)
    assert {client: totals.service for client, totals in accounts.clients.items()} == {
        "a": 10,
        "b": 20,
    }


def test_a_copy_stays_as_it_was() -> None:
    accounts = Accounts(LinearCost())
    one = request("one")
    accounts.admitted(one, charged=True)
    before = accounts.copy()
    accounts.left(one)
    assert before["a"].running == 1 and accounts.copy()["a"].running == 0


def test_a_general_cost_sums_to_the_cost_of_the_request() -> None:
    cost = QuadraticCost(extend=1, output=2, product=0.5, output_squared=1)
    accounts = Accounts(cost)
    one = request("one", extend=30)
    accounts.admitted(one, charged=True)
    for one.output_tokens in (2, 7, 11):
        accounts.settle(one)
    want = cost.input_cost(30) + cost.output_cost(30, 0, 11)
    assert accounts.clients["a"].service == pytest.approx(want)


def test_output_that_was_paid_elsewhere_is_counted_and_not_charged() -> None:
    """R11, whenever it is booked."""
    accounts = Accounts(COSTS)
    one = admitted(accounts, "ns/t/a")
    one.paid_output_tokens = 5
    totals = accounts.clients["ns/t/a"]
    one.output_tokens = 3
    accounts.settle(one)
    assert (totals.output_tokens, totals.service) == (3, 3)
    one.output_tokens = 7
    accounts.left(one)
    assert (totals.output_tokens, totals.service) == (7, 3 + 2 * 2)


def test_aborted_requests_are_counted_with_their_charged_tokens() -> None:
    accounts = Accounts(COSTS)
    for paid, output in ((0, 4), (5, 7), (5, 3)):
        one = admitted(accounts, "ns/t/a")
        one.paid_output_tokens, one.output_tokens = paid, output
        accounts.left(one)
        accounts.aborted(one)
    totals = accounts.clients["ns/t/a"]
    assert (totals.aborted, totals.aborted_tokens, totals.running) == (3, 4 + 2, 0)
