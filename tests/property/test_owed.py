"""What a client is owed: routers and experiments find the same, and so do several routers.

Requests come and are admitted between whole seconds, when replicas report; all requests of one client cost the same. So a router
knows as much as an experiment does.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from evenkeel_contract.routerconfig import ClientConfig, TenancyConfig, TenantConfig
from evenkeel_fairshare.ledger import CarryRules, Ledger, ReplicaRow
from evenkeel_router.ledger.fairness import Fairness, FleetFigures
from evenkeel_router.ledger.weights import ConfiguredWeights
from evenkeel_simulator.traffic.owed import owed_service, service_of
from evenkeel_simulator.traffic.records import Record
from evenkeel_simulator.traffic.workload import Client
from hypothesis import given
from hypothesis import strategies as st

END_S = 12
WEIGHTS = ConfiguredWeights(
    TenancyConfig(
        tenants=(
            TenantConfig(
                namespace="ns", name="t", weight=2, clients=(ClientConfig(name="a", weight=3),)
            ),
            TenantConfig(namespace="ns", name="u", weight=1),
        )
    )
)
CLIENTS = {
    name: Client(name, tenant, WEIGHTS.client(name), WEIGHTS.tenant(tenant))
    for name, tenant in (("ns/t/a", "ns/t"), ("ns/t/b", "ns/t"), ("ns/u/c", "ns/u"))
}
REPLICAS = ("r0", "r1")


def served(client: str, replica: int, arrival: int, waits: int, tokens: int) -> Record:
    """A request that arrives in second `arrival`, is admitted `waits` seconds later, and ends within that second."""
    admitted_s = arrival + waits + 0.5
    return Record(
        id="", program="", client=client, replica=replica, status="finished", arrival_s=arrival + 0.25,
        admitted_s=admitted_s, first_token_s=admitted_s + 0.25, finished_s=admitted_s + 0.25, input_tokens=tokens,
        cached_tokens=0, extend_tokens=tokens, output_tokens=0, retractions=0,
    )  # fmt: skip


@st.composite
def runs(draw: st.DrawFn) -> list[Record]:
    records = []
    for client in CLIENTS:
        tokens = draw(st.integers(1, 200))
        records.append(served(client, 0, 0, 0, tokens))  # routers know its cost from then on
        for _ in range(draw(st.integers(0, 8))):
            arrival = draw(st.integers(1, END_S - 1))
            waits = draw(st.integers(0, END_S - 1 - arrival))
            records.append(served(client, draw(st.integers(0, 1)), arrival, waits, tokens))
    return records


class Router:
    def __init__(self, name: str) -> None:
        self.ledger = Ledger(name, rules=CarryRules(quantum=100, overshoot=500), weights=WEIGHTS)
        self.ledger.members = frozenset({"one", "other"})
        self.fairness = Fairness(self.ledger)

    def read(self, replica: str, records: Sequence[Record], at_s: int) -> None:
        """The replica's report of second `at_s`."""
        rows = []
        for client in CLIENTS:
            own = [one for one in records if one.client == client]
            admitted = [one for one in own if (one.admitted_s or 0) <= at_s]
            waiting = sum(one.arrival_s <= at_s < (one.admitted_s or 0) for one in own)
            service = sum(map(service_of, admitted))
            row = ReplicaRow(client, service, requests=len(admitted), waiting=waiting)
            rows.append(row)
        self.ledger.observe(replica, since=at_s, sequence=at_s + 1, rows=rows)

    def look(self, at_s: int) -> FleetFigures:
        for _ in self.fairness.steps(REPLICAS, WEIGHTS, at_s):
            pass
        return self.fairness.now


def assert_equal_but_for_rounding(one: object, other: object) -> None:
    """Routers add up the same numbers in different orders."""
    one, other = msgspec.to_builtins(one), msgspec.to_builtins(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_equal_but_for_rounding(one[name], other[name])
    elif isinstance(one, list):  # a set has no order
        assert sorted(one) == sorted(other)
    else:
        assert one == (pytest.approx(other) if isinstance(other, float) else other)


@given(runs())
def test_routers_and_experiments_find_the_same(records: list[Record]) -> None:
    """Each of two routers reads one replica; the rest comes from the other router."""
    one, other = Router("one"), Router("other")
    for at_s in range(END_S + 1):
        for router, number in ((one, 0), (other, 1)):
            at = [record for record in records if record.replica == number]
            router.read(REPLICAS[number], at, at_s)
        one.ledger.merge(other.ledger.delta(one.ledger.digest()))
        other.ledger.merge(one.ledger.delta(other.ledger.digest()))
        found = one.look(at_s)
        assert_equal_but_for_rounding(found, other.look(at_s))
    owed = owed_service(records, CLIENTS, END_S)
    of_router = {client: figures.owed for client, figures in found.clients.items()}
    assert of_router == pytest.approx(owed.service)
    # So the verdict is the same.
    assert found.given_over_owed == pytest.approx(dict(owed.shares.given_over_owed))
    worst = owed.shares.least < 1
    if worst:
        assert found.took.keys() == owed.shares.took.keys()
        for client, taken in found.took.items():
            same = owed.shares.took[client]
            assert (taken.given, taken.owed) == pytest.approx((same.given, same.owed))
