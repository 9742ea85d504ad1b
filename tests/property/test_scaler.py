"""The built-in scaler under any load: bounds, caps, monotony, blindness, and autoscaling/v2's behaviour, step by step."""

from __future__ import annotations

import math
from dataclasses import replace
from math import ceil

from evenkeel_contract.routerconfig import ClientConfig, TenantConfig
from evenkeel_contract.spec.autoscaling import (
    Autoscaling,
    Behavior,
    Prometheus,
    ScaleDownRules,
    ScaleUpRules,
    ScalingPolicy,
    ScalingPolicyType,
    SelectPolicy,
    Targets,
)
from evenkeel_contract.values import CountOrPercent, Duration, Quantity
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.recommendation import (
    Asked,
    Fleet,
    Measurements,
    Parts,
    Recommendation,
    demand_of,
    parts_of,
    recommend,
)
from evenkeel_operator.core.scaling import History, Terms, apply_behavior, started, step
from hypothesis import given
from hypothesis import strategies as st

windows = st.sampled_from([0, 15, 40, 300])
policies = st.lists(
    st.builds(
        ScalingPolicy,
        type=st.sampled_from(ScalingPolicyType),
        value=st.sampled_from([1, 2, 10, 50, 100, 150]),
        period_seconds=st.sampled_from([15, 60, 200]),
    ),
    min_size=1,
    max_size=3,
).map(tuple)
behaviors = st.builds(
    Behavior,
    scale_up=st.builds(
        ScaleUpRules,
        stabilization_window_seconds=windows,
        select_policy=st.sampled_from(SelectPolicy),
        policies=policies,
    ),
    scale_down=st.builds(
        ScaleDownRules,
        stabilization_window_seconds=windows,
        select_policy=st.sampled_from(SelectPolicy),
        policies=policies,
    ),
)
targets = st.builds(
    Targets,
    utilization_percent=st.integers(1, 100),
    queue_time=st.none() | st.just(Duration.from_plain("2s")),
    ttft_p95=st.none() | st.just(Duration.from_plain("1s")),
    service_per_replica=st.none() | st.just(Quantity.from_plain(1000)),
)


@st.composite
def scalings(draw: st.DrawFn) -> Autoscaling:
    most = draw(st.integers(1, 40))
    cap = draw(st.integers(1, most) | st.integers(1, 100).map(lambda percent: f"{percent}%"))
    return Autoscaling(
        min_replicas=draw(st.integers(0, most)),
        max_replicas=most,
        max_replicas_per_client=CountOrPercent.from_plain(cap),
        prometheus=Prometheus(url="http://prometheus:9090"),
        targets=draw(targets),
        behavior=draw(behaviors),
    )


rates = st.sampled_from([0.0, 1e-9, 1.0, 900.0, 5e3, 1e6, 1e12])
latencies = st.none() | st.sampled_from([0.0, 1.0, 2.5, 100.0, math.inf])
capacities = st.none() | st.sampled_from([1e-6, 50.0, 1000.0])
NAMES = ("one", "two", "other")
askers = st.lists(
    st.builds(Asked, st.sampled_from(("a", "b", "c")), st.sampled_from(NAMES), rates),
    max_size=6,
    unique_by=lambda one: (one.tenant, one.client),
).map(tuple)


def figures_of(asked: st.SearchStrategy[tuple[Asked, ...]]) -> st.SearchStrategy[Measurements]:
    return st.builds(
        Measurements,
        asked=asked,
        in_flight=st.sampled_from([0.0, 3.0]),
        seen_per_s=capacities,
        saturated_per_s=capacities,
        queue_s=latencies,
        ttft_p95_s=latencies,
    )


weights = st.integers(1, 9)
parts = st.builds(
    lambda tenants: parts_of(tenants),
    st.lists(
        st.builds(
            lambda name, weight, default, one: TenantConfig(
                namespace="n",
                name=name,
                weight=weight,
                default_client_weight=default,
                clients=(ClientConfig(name="one", weight=one),),
            ),
            st.sampled_from(("a", "b")),
            weights,
            weights,
            weights,
        ),
        max_size=2,
        unique_by=lambda tenant: tenant.name,
    ),
)
BLIND = st.just(Note("NoData", ""))
gaps = st.sampled_from([1.0, 15.0, 16.0, 61.0, 299.0, 900.0])


@given(
    scalings(),
    parts,
    st.integers(0, 60),
    st.lists(st.tuples(gaps, figures_of(askers) | BLIND, st.integers(0, 60), st.booleans())),
)
def test_the_number_stays_in_bounds_and_waiting_requests_never_stay_at_zero(
    scaling: Autoscaling,
    shares: Parts,
    live: int,
    looks: list[tuple[float, Measurements, int, bool]],
) -> None:
    state, now_s = started(live, now_s=0.0), 0.0
    for gap_s, seen, ready, activation in looks:
        now_s += gap_s
        terms = Terms(scaling=scaling, parts=shares, ready=ready, activation=activation)
        state, decision = step(state, terms, seen, now_s=now_s)
        assert scaling.min_replicas <= decision.replicas <= scaling.max_replicas
        assert decision.replicas > 0 or not activation
        assert decision.active is isinstance(seen, Measurements)


@given(scalings(), st.integers(0, 60), st.lists(gaps, min_size=1))
def test_without_data_the_number_stays(scaling: Autoscaling, live: int, looks: list[float]) -> None:
    held = min(max(live, scaling.min_replicas), scaling.max_replicas)
    state, now_s = started(live, now_s=0.0), 0.0
    for gap_s in looks:
        now_s += gap_s
        blind = Note("NoData", "")
        state, decision = step(state, Terms(scaling=scaling), blind, now_s=now_s)
        assert decision.replicas == held
        assert (decision.active, decision.note.reason) == (False, "NoData")


@given(
    scalings(),
    parts,
    st.lists(st.tuples(gaps, figures_of(askers), st.integers(0, 60)), min_size=1),
)
def test_the_fleet_never_grows_beyond_the_caps_of_clients_with_demand(
    scaling: Autoscaling, shares: Parts, looks: list[tuple[float, Measurements, int]]
) -> None:
    """Nor does their latency, though bursts count as within their share."""
    cap = scaling.max_replicas_per_client.of(scaling.max_replicas)
    caps = [
        sum(cap * shares.client(one.tenant, one.client) for one in seen.asked if one.service_per_s)
        for _, seen, _ in looks
    ]
    most = max(1, scaling.min_replicas, ceil(max(caps) - 1e-6))
    state, now_s = started(scaling.min_replicas, now_s=0.0), 0.0
    for gap_s, seen, ready in looks:
        now_s += gap_s
        terms = Terms(scaling=scaling, parts=shares, ready=ready)
        state, decision = step(state, terms, seen, now_s=now_s)
        assert decision.replicas <= most


@given(parts, askers, st.sampled_from(("a", "b", "c")), st.sampled_from(NAMES), rates)
def test_a_further_client_adds_at_most_its_cap(
    shares: Parts, asked: tuple[Asked, ...], tenant: str, client: str, rate: float
) -> None:
    others = tuple(one for one in asked if (one.tenant, one.client) != (tenant, client))
    more = Asked(tenant, client, rate)
    before = demand_of(others, shares, usable_per_s=1000.0, cap_replicas=3.0)
    after = demand_of((*others, more), shares, usable_per_s=1000.0, cap_replicas=3.0)
    cap = 3.0 * shares.client(tenant, client)
    assert before.replicas - 1e-9 <= after.replicas <= before.replicas + cap + 1e-9
    assert after.replicas <= after.ceiling + 1e-9


@given(
    scalings(),
    parts,
    figures_of(askers),
    st.tuples(st.integers(0, 40), st.integers(0, 40)),
    st.floats(1.0, 100.0),
)
def test_who_asks_for_more_never_gets_less(
    scaling: Autoscaling, shares: Parts, seen: Measurements, fleet: tuple[int, int], factor: float
) -> None:
    more = tuple(replace(one, service_per_s=one.service_per_s * factor) for one in seen.asked)
    now = Fleet(*fleet)
    before = recommend(scaling, seen, shares, now)
    after = recommend(scaling, replace(seen, asked=more), shares, now)
    assert before.replicas <= after.replicas


class Naive:
    """autoscaling/v2 as its documentation says it, with a memory of everything that ever was."""

    def __init__(self, scaling: Autoscaling, replicas: int) -> None:
        self.scaling = scaling
        self.replicas = replicas
        self.recommendations: list[tuple[float, int]] = []
        self.counts: list[tuple[float, int]] = [(-math.inf, replicas)]

    def wants(self, recommendation: int, now_s: float) -> int:
        self.recommendations.append((now_s, recommendation))
        low, high = self.scaling.min_replicas, self.scaling.max_replicas
        if low <= self.replicas <= high:
            aim = self.allowed(self.steady(now_s), now_s)
        else:
            aim = self.replicas
        self.replicas = min(max(aim, low), high)
        self.counts.append((now_s, self.replicas))
        return self.replicas

    def steady(self, now_s: float) -> int:
        up, down = self.scaling.behavior.scale_up, self.scaling.behavior.scale_down
        newest = self.recommendations[-1][1]
        recent_up = [
            w for at, w in self.recommendations if at > now_s - up.stabilization_window_seconds
        ]
        recent_down = [
            w for at, w in self.recommendations if at > now_s - down.stabilization_window_seconds
        ]
        aim = max(self.replicas, min([newest, *recent_up]))
        return min(aim, max([newest, *recent_down]))

    def allowed(self, aim: int, now_s: float) -> int:
        rules = (
            self.scaling.behavior.scale_up
            if aim > self.replicas
            else self.scaling.behavior.scale_down
        )
        if aim == self.replicas:
            return aim
        sign = 1 if aim > self.replicas else -1
        steps = []
        for policy in rules.policies:
            start = [count for at, count in self.counts if at <= now_s - policy.period_seconds][-1]
            if policy.type is ScalingPolicyType.PODS:
                reach = start + sign * policy.value
            elif sign > 0:
                reach = -(-start * (100 + policy.value) // 100)
            else:
                reach = math.trunc(start * (100 - policy.value) / 100)
            steps.append(sign * (reach - self.replicas))
        if rules.select_policy is SelectPolicy.DISABLED:
            most = 0
        else:
            most = max(steps) if rules.select_policy is SelectPolicy.MAX else min(steps)
        if sign > 0 and self.replicas == 0:
            most = max(most, 1)
        return self.replicas + sign * min(abs(aim - self.replicas), max(0, most))


@given(
    scalings(),
    st.integers(0, 60),
    st.lists(st.tuples(gaps, st.integers(0, 60)), min_size=1, max_size=30),
)
def test_recommendations_become_numbers_as_in_autoscaling_v2(
    scaling: Autoscaling, live: int, looks: list[tuple[float, int]]
) -> None:
    naive = Naive(scaling, live)
    history, present, now_s = History(), live, 0.0
    for gap_s, recommendation in looks:
        now_s += gap_s
        decided, history = apply_behavior(
            scaling, history, Recommendation(recommendation, "X"), present=present, now_s=now_s
        )
        present = decided.replicas
        assert present == naive.wants(recommendation, now_s)
