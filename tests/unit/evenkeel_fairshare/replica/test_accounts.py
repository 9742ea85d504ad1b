"""Totals per client: cumulative, bounded, and none lost (R3)."""

from __future__ import annotations

from collections import Counter

from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.replica.accounts import Accounts
from evenkeel_fairshare.replica.contract import Request
from hypothesis import given
from hypothesis import strategies as st

COSTS = LinearCost(1.0, 2.0)


def admitted(accounts: Accounts, client: str, *, extend: int = 3) -> Request:
    request = Request(
        id="r",
        client=client,
        tenant=client.rpartition("/")[0],
        arrival_s=0.0,
        input_tokens=extend,
        max_output_tokens=9,
    )
    request.extend_tokens = extend
    accounts.admitted(request, charged=True)
    return request


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
def test_whoever_comes_rows_are_bounded_never_fall_and_miss_nothing(
    requests: list[tuple[str, int, int, int]], max_clients: int
) -> None:
    accounts = Accounts(COSTS, max_clients=max_clients)
    served: Counter[str] = Counter()
    before: dict[str, float] = {}
    for tenant, number, extend, output in requests:
        request = admitted(accounts, f"ns/{tenant}/{number}", extend=extend)
        request.output_tokens = output
        accounts.left(request)
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
