"""Engine seconds of tenants over services of unequal size and speed: spreading buys nothing, and no engine idles (R22)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from evenkeel_fairshare.across_services import FLOOR, ServiceRates, weights_in_services
from evenkeel_fairshare.tenancy import divided
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.examples import examples

INTERVAL_S = 5.0
STEPS = 400
Rates = Mapping[str, Mapping[str, float]]
"""Service → tenant → rate."""


@dataclass(frozen=True)
class Gateway:
    """Services with constant demand. Rates are weighted tokens per second."""

    weights: Mapping[str, float]
    capacity: Mapping[str, float]
    token_cost_s: Mapping[str, float]
    demand: Rates

    def served(self, service: str, weights: Mapping[str, float]) -> dict[str, float]:
        """What tenants get in a service: their demand, at most in shares of the weights."""
        most = {f"ns/{name}/c": rate for name, rate in self.demand[service].items()}
        parts = divided(
            self.capacity[service],
            most,
            client=lambda _: 1.0,
            tenant=lambda name: weights[name.removeprefix("ns/")],
        )
        return {client.split("/")[1]: rate for client, rate in parts.items()}

    def alone(self) -> Rates:
        """What tenants get if each service uses the global weights."""
        return {service: self.served(service, self.weights) for service in self.demand}

    def local(self, rates: Rates) -> Rates:
        """The weights inside the services."""
        seen = {
            service: ServiceRates(
                served=own,
                waiting={
                    name: (self.demand[service][name] - rate) * INTERVAL_S
                    for name, rate in own.items()
                },
                token_cost_s=self.token_cost_s[service],
            )
            for service, own in rates.items()
        }
        return weights_in_services(seen, self.weights.__getitem__, interval_s=INTERVAL_S)

    def step(self, rates: Rates) -> Rates:
        """All services use new weights."""
        return {
            service: self.served(service, weights) for service, weights in self.local(rates).items()
        }

    def settled(self) -> Rates:
        """What tenants get after many steps."""
        rates = self.alone()
        for _ in range(STEPS):
            rates = self.step(rates)
        return rates

    def seconds(self, rates: Rates) -> dict[str, float]:
        """Each tenant's engine seconds per second over all services, over its weight."""
        return {
            name: sum(
                own.get(name, 0.0) * self.token_cost_s[service] for service, own in rates.items()
            )
            / weight
            for name, weight in self.weights.items()
        }


@st.composite
def gateways(draw: st.DrawFn) -> Gateway:
    weights = {
        f"t{n}": draw(st.sampled_from((1.0, 1.0, 2.0, 5.0))) for n in range(draw(st.integers(1, 6)))
    }
    capacity: dict[str, float] = {}
    token_cost_s: dict[str, float] = {}
    demand: dict[str, dict[str, float]] = {}
    for n in range(draw(st.integers(1, 5))):
        engine_seconds = draw(st.floats(1.0, 10.0))  # replicas times GPUs
        token_cost_s[f"s{n}"] = draw(st.sampled_from((1e-4, 1e-3, 1e-2)))
        capacity[f"s{n}"] = engine_seconds / token_cost_s[f"s{n}"]
        wanted = draw(st.lists(st.sampled_from(sorted(weights)), min_size=1, unique=True))
        demand[f"s{n}"] = {
            name: capacity[f"s{n}"] * min(1.0, draw(st.floats(0.05, 1.5))) for name in wanted
        }
    return Gateway(weights, capacity, token_cost_s, demand)


@examples(30)
@given(gateways())
def test_who_waits_is_owed_no_less_than_those_who_are_served(gateway: Gateway) -> None:
    """The bound of `across_services`."""
    rates = gateway.settled()
    level = gateway.seconds(rates)
    for service, demand in gateway.demand.items():
        cost_s = gateway.token_cost_s[service]
        waits = [
            name for name, most in demand.items() if (most - rates[service][name]) * cost_s > 0.02
        ]
        for one in waits:
            above_floor = [
                name
                for name in demand
                if rates[service][name] * cost_s
                > 2 * FLOOR * level[one] * gateway.weights[name] + 0.02
            ]
            for other in above_floor:
                assert level[other] <= level[one] * 1.1 + 0.05


@given(
    st.lists(st.tuples(st.floats(1.0, 10.0), st.sampled_from((1e-4, 1e-2))), min_size=2, max_size=4)
)
def test_spreading_over_models_buys_nothing(services: list[tuple[float, float]]) -> None:
    """One tenant floods all services, and another one of equal weight only the largest."""
    names = [f"s{n}" for n in range(len(services))]
    capacity = {
        name: seconds / cost_s for name, (seconds, cost_s) in zip(names, services, strict=True)
    }
    largest = max(names, key=lambda name: services[names.index(name)][0])
    demand = {name: {"everywhere": most} for name, most in capacity.items()}
    demand[largest]["only"] = capacity[largest]
    costs = {name: cost_s for name, (_, cost_s) in zip(names, services, strict=True)}
    gateway = Gateway({"everywhere": 1.0, "only": 1.0}, capacity, costs, demand)
    seconds = gateway.seconds(gateway.settled())
    elsewhere = sum(seconds for seconds, _ in services) - services[names.index(largest)][0]
    own = services[names.index(largest)][0]
    # What nobody else wants is his; of the rest he gets only what makes both equal, and the floor.
    fairest = max(elsewhere, (elsewhere + own) / 2)
    assert seconds["everywhere"] == pytest.approx(fairest, rel=0.02, abs=2 * FLOOR * own)


@given(gateways())
def test_no_service_leaves_anything_undone(gateway: Gateway) -> None:
    rates = gateway.alone()
    for _ in range(5):
        rates = gateway.step(rates)
        for service, demand in gateway.demand.items():
            possible = min(gateway.capacity[service], sum(demand.values()))
            assert sum(rates[service].values()) == pytest.approx(possible)


@given(gateways())
def test_weights_inside_a_service_keep_their_sum_and_none_is_zero(gateway: Gateway) -> None:
    rates = gateway.alone()
    for own in gateway.local(rates).values():
        assert sum(own.values()) == pytest.approx(sum(gateway.weights[name] for name in own))
        assert min(own.values()) > 0


@given(gateways(), st.sampled_from((0.01, 100.0)))
def test_weights_depend_on_engine_seconds_alone(gateway: Gateway, factor: float) -> None:
    """A model with other tokens, or another price of them, changes nothing as long as they take the same time."""
    (service, *_) = gateway.demand
    assume(len(gateway.demand) > 1)
    other = Gateway(
        gateway.weights,
        {**gateway.capacity, service: gateway.capacity[service] * factor},
        {**gateway.token_cost_s, service: gateway.token_cost_s[service] / factor},
        {
            **gateway.demand,
            service: {name: rate * factor for name, rate in gateway.demand[service].items()},
        },
    )
    found, expected = other.local(other.alone()), gateway.local(gateway.alone())
    for name, own in expected.items():
        assert found[name] == pytest.approx(own, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("factor", [1e-6, 0.01, 0.1, 0.3, 3.0, 7.0])
def test_rounding_decides_nothing_where_a_demand_ends_with_the_capacity(factor: float) -> None:
    """One tenant of "both" would take all of it, and no more. The other one has so much elsewhere that only its floor is left."""
    here, there = (
        Gateway(
            weights={"a": 2.0, "b": 1.0},
            capacity={"both": 1000.0 * size, "one": 15000.0, "other": 20000.0},
            token_cost_s={"both": 1e-3 / size, "one": 1e-4, "other": 1e-4},
            demand={
                "both": {"a": 1000.0 * size, "b": 1000.0 * size},
                "one": {"a": 15000.0},
                "other": {"b": 20000.0},
            },
        )
        for size in (1.0, factor)
    )
    expected = here.local(here.alone())["both"]
    assert there.local(there.alone())["both"] == pytest.approx(expected, rel=1e-6)


@given(gateways())
def test_one_service_uses_the_global_weights(gateway: Gateway) -> None:
    (service, *_) = gateway.demand
    alone = Gateway(
        gateway.weights,
        {service: gateway.capacity[service]},
        {service: gateway.token_cost_s[service]},
        {service: gateway.demand[service]},
    )
    (own,) = alone.local(alone.alone()).values()
    assert own == pytest.approx({name: gateway.weights[name] for name in own})


def test_a_service_that_serves_all_takes_no_part_of_a_step() -> None:
    """What a tenant uses there counts at once, in whole: another service needs no second step."""
    gateway = Gateway(
        weights={"a": 1.0, "b": 1.0},
        capacity={"full": 2.0, "idle": 1.0},
        token_cost_s={"full": 1.0, "idle": 1.0},
        demand={"full": {"a": 2.0, "b": 2.0}, "idle": {"a": 0.5}},
    )
    first = gateway.alone()
    assert gateway.seconds(first) == {"a": 1.5, "b": 1.0}
    assert gateway.seconds(gateway.step(first)) == pytest.approx({"a": 1.25, "b": 1.25})


def test_a_service_without_waiting_requests_has_the_global_weights() -> None:
    """Sums in engine seconds differ by rounding, which is no demand."""
    served = {"a": 500.0, "b": 50.0, "c": 50.0}
    for cost_s in (1e-4, 1e-3, 0.07, 0.1, 0.3):
        rates = {
            "s": ServiceRates(served=served, waiting={}, token_cost_s=cost_s),
            "other": ServiceRates(served={"a": 1e6}, waiting={}, token_cost_s=cost_s),
        }
        found = weights_in_services(rates, lambda _: 1.0, interval_s=INTERVAL_S)
        assert found["s"] == dict.fromkeys(served, 1.0)
