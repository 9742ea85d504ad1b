"""Totals: what is charged to whom."""

import pytest
from evenkeel_contract.key import ClientKeyError
from evenkeel_contract.names import OTHER_CLIENTS
from evenkeel_contract.routerconfig import TenantConfig
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.fleet.contract import Usage
from evenkeel_router.api.identity import Client, client_of, names_of
from evenkeel_router.fleet.replicas import Replicas
from evenkeel_router.ledger.estimates import TokenRatio
from evenkeel_router.ledger.totals import (
    Histogram,
    ReplicaTotals,
    RequestTotals,
    ttft_histogram,
)
from evenkeel_router.settings import Settings

from tests.support.fakes import replicas
from tests.support.routers import config_for


def client(name: str, tenant: str = "t") -> Client:
    return client_of(TenantConfig(namespace="ns", name=tenant), name)


def test_a_value_counts_up_to_its_bound() -> None:
    histogram = Histogram((1, 10))
    for value in (0.5, 1, 1.5, 10, 11):
        histogram.new.append(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.total == 24


def test_service_is_what_was_computed_weighted() -> None:
    accounts = RequestTotals(LinearCost(1.0, 2.0))
    totals = accounts.of(client("a"))
    first, second = ReplicaTotals(), ReplicaTotals()
    assert accounts.settle(totals, first, Usage(100, 60, 10)) == 40 + 20
    assert accounts.settle(totals, second, Usage(10, 0, 0)) == 10
    assert totals.input_tokens == 110
    assert totals.cached_tokens == 60
    assert (first.input_tokens, first.cached_tokens, first.output_tokens) == (100, 60, 10)
    assert second.input_tokens == 10


def test_the_totals_of_a_replica_end_when_it_leaves_the_configuration() -> None:
    fleet = Replicas(Settings(config_for(*replicas(2))))
    fleet.configured = {replica.name: replica for replica in replicas(2)}
    fleet.totals["r0"].requests = fleet.totals["r1"].requests = 1
    fleet.remove("r1")
    assert list(fleet.totals) == ["r0"]
    assert fleet.totals["r1"].requests == 0


def test_clients_beyond_the_cap_share_one_account_of_their_tenant() -> None:
    accounts = RequestTotals(LinearCost(), max_clients=2)
    first = accounts.of(client("a"))
    accounts.of(client("b"))
    assert [names_of(totals.identity)[1] for totals in accounts.clients()] == ["a", "b"]
    late = accounts.of(client("c"))
    assert late is accounts.of(client("d"))
    assert late is not accounts.of(client("e", tenant="u"))
    assert accounts.of(client("a")) is first
    assert [names_of(totals.identity) for totals in accounts.clients()] == [
        ("t", "a"),
        ("t", "b"),
        ("t", OTHER_CLIENTS),
        ("u", OTHER_CLIENTS),
    ]


@pytest.mark.parametrize("name", ["other", "*", "%2A", "", "a"])
def test_no_client_shares_the_account_of_the_other_clients_by_its_name(name: str) -> None:
    """Names are any text from a trusted proxy; an empty one is refused."""
    accounts = RequestTotals(LinearCost(), max_clients=1)
    if not name:
        with pytest.raises(ClientKeyError):
            client(name)
        return
    named = accounts.of(client(name))
    others = accounts.of(client("another"))
    assert named is not others
    assert named.identity != others.identity
    assert [names_of(one.identity)[1] for one in (named, others)] == [name, OTHER_CLIENTS]


def test_distributions_are_by_tenant_and_tenants_beyond_the_cap_share_one() -> None:
    accounts = RequestTotals(LinearCost(), max_tenants=2)
    for tenant in ("t", "u", "v", "w"):
        for name in ("a", "b"):
            accounts.of(client(name, tenant=tenant)).ended(1.0, 0.5)
    assert [(one.tenant, sum(one.ttft_s.counts)) for one in accounts.distributions()] == [
        ("t", 2),
        ("u", 2),
        ("", 4),
    ]
    assert [names_of(totals.identity)[0] for totals in accounts.clients()] == list("ttuuvvww")


def test_bytes_per_token_are_learnt_from_what_replicas_report() -> None:
    ratio = TokenRatio()
    assert ratio.estimate(400) == 100
    assert ratio.estimate(0) == 1
    for _ in range(1000):
        ratio.learn(1000, 500)
    assert 480 <= ratio.estimate(1000) <= 500


def test_the_threshold_of_the_objective_is_a_bucket_bound() -> None:
    histogram = ttft_histogram(1.7)
    assert 1.7 in histogram.bounds
    assert list(histogram.bounds) == sorted(histogram.bounds)
    for value in (1.7, 1.71):
        histogram.new.append(value)
    at = list(histogram.bounds).index(1.7)
    assert histogram.counts[at : at + 2] == [1, 1]
    assert ttft_histogram(2).bounds == ttft_histogram(None).bounds


def test_what_never_came_counts_and_has_no_duration() -> None:
    histogram = ttft_histogram(None)
    histogram.never()
    assert (sum(histogram.counts), histogram.counts[-1], histogram.total) == (1, 1, 0)
