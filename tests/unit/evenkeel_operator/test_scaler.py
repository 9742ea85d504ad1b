"""The built-in scaler: whose demand counts for how much, what is wished for, and what is done about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from evenkeel_contract.decode import decode
from evenkeel_contract.names import OTHER_CLIENTS
from evenkeel_contract.routerconfig import ClientConfig, TenantConfig
from evenkeel_contract.spec.autoscaling import Autoscaling
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.recommendation import (
    Asked,
    Fleet,
    Measurements,
    Parts,
    demand_of,
    parts_of,
    recommend,
)
from evenkeel_operator.core.scaling import (
    Decision,
    ScalerState,
    Scaling,
    Terms,
    started,
    step,
    surged,
)

BLIND = Note("NoData", "nothing there")
LEARNT = {"saturated_per_s": 1000.0}


def scaling(**changes: Any) -> Autoscaling:
    """Ten replicas at most, each good for 1000 weighted tokens per second, of which all may be used."""
    plain = {
        "maxReplicas": 10,
        "prometheus": {"url": "http://prometheus:9090"},
        "targets": {"utilizationPercent": 100, "servicePerReplica": 1000},
        **changes,
    }
    found, faults = decode(Autoscaling, plain)
    assert found is not None, [str(fault) for fault in faults]
    return found


def asked(*rates: float, tenant: str | None = None) -> tuple[Asked, ...]:
    """Clients, each of a tenant of its own unless they share one."""
    return tuple(
        Asked(tenant or f"tenant-{n}", f"client-{n}", rate) for n, rate in enumerate(rates)
    )


def tenants(**weights: int) -> Parts:
    return parts_of(TenantConfig(namespace="n", name=name, weight=w) for name, w in weights.items())


def demand(parts: Parts, *clients: Asked, cap: float = 4.0) -> float:
    return demand_of(clients, parts, usable_per_s=1000.0, cap_replicas=cap).replicas


def test_what_a_client_asks_for_counts_up_to_its_cap() -> None:
    assert demand(Parts(), Asked("a", "x", 2500)) == 2.5
    assert demand(Parts(), Asked("a", "x", 1e9)) == 4.0
    assert demand(Parts(), Asked("a", "x", 1e9), Asked("b", "y", 500)) == 4.5


def test_clients_of_one_tenant_count_each_up_to_its_own_cap() -> None:
    crowd = [Asked("a", f"client-{n}", 100.0) for n in range(90)]
    assert demand(Parts(), *crowd) == pytest.approx(9.0)
    assert demand(Parts(), *crowd, Asked("a", "greedy", 1e9)) == pytest.approx(9.0 + 4.0)


def test_caps_are_proportional_to_weight_and_at_most_that_of_the_heaviest() -> None:
    parts = tenants(heavy=4, light=1)
    assert demand(parts, Asked("heavy", "x", 1e9)) == 4.0
    assert demand(parts, Asked("light", "x", 1e9)) == 1.0
    assert demand(parts, Asked("anonymous", "anonymous", 1e9)) == 1.0  # of weight 1


def test_clients_of_a_tenant_have_parts_by_weight() -> None:
    named = (ClientConfig(name="chat", weight=4), ClientConfig(name="batch", weight=2))
    parts = parts_of([TenantConfig(namespace="n", name="a", clients=named)])
    assert demand(parts, Asked("a", "chat", 1e9)) == 4.0
    assert demand(parts, Asked("a", "batch", 1e9)) == 2.0
    assert demand(parts, Asked("a", "undeclared", 1e9)) == 1.0
    assert demand(parts, Asked("a", "batch", 1e9), Asked("a", "chat", 1e9)) == 6.0


def test_those_without_a_series_of_their_own_count_together_as_the_heaviest() -> None:
    named = (ClientConfig(name="chat", weight=4),)
    parts = parts_of([TenantConfig(namespace="n", name="a", clients=named)])
    assert demand(parts, Asked("a", OTHER_CLIENTS, 1e9)) == 4.0


FLEET = Fleet(wanted=4, ready=4)
WISHES: dict[str, tuple[dict[str, Any], Measurements, Fleet, tuple[int, str]]] = {
    "demand over capacity, rounded up": (
        {}, Measurements(asked=asked(3000, 2500)), FLEET, (6, "Demand")),
    "of which a part is usable": (
        {"targets": {"utilizationPercent": 50, "servicePerReplica": 1000}},
        Measurements(asked=asked(3000)), FLEET, (6, "Demand")),
    "a tenth too much changes nothing": (
        {}, Measurements(asked=asked(4400)), FLEET, (4, "Demand")),
    "a tenth too little neither": (
        {}, Measurements(asked=asked(3600)), FLEET, (4, "Demand")),
    "more than a tenth does": (
        {}, Measurements(asked=asked(4401)), FLEET, (5, "Demand")),
    "what waits is to be served within half a minute": (
        {}, Measurements(asked=(Asked("a", "x", 2000, 60_000), Asked("b", "y", 0, 30_000))), FLEET,
        (5, "Demand")),
    "what waits counts up to the cap of its client": (
        {"maxReplicasPerClient": 5}, Measurements(asked=(Asked("a", "x", 2000, 1e9),)), FLEET,
        (5, "Demand")),
    "what waits adds nothing without a capacity": (
        {"targets": {}}, Measurements(asked=(Asked("a", "x", 0, 1e9),), seen_per_s=500.0), FLEET,
        (4, "LearningCapacity")),
    "nobody asks": (
        {}, Measurements(), FLEET, (0, "Demand")),
    "nobody asks, and the last one is still served": (
        {}, Measurements(in_flight=1), FLEET, (1, "InUse")),
    "capacity is learnt from replicas at which requests waited": (
        {"targets": {"utilizationPercent": 100}},
        Measurements(asked=asked(6000), saturated_per_s=500.0, seen_per_s=1000.0), FLEET, (6, "Demand")),
    "what replicas did at leisure is enough to shrink by": (
        {"targets": {"utilizationPercent": 100}},
        Measurements(asked=asked(1000), seen_per_s=500.0), FLEET, (2, "Demand")),
    "and not to grow by": (
        {"targets": {"utilizationPercent": 100}},
        Measurements(asked=asked(6000), seen_per_s=500.0), FLEET, (4, "LearningCapacity")),
    "nothing is known of replicas": (
        {"targets": {}}, Measurements(asked=asked(6000)), FLEET, (4, "LearningCapacity")),
    "nothing is known, and there is none yet": (
        {"targets": {}}, Measurements(asked=asked(6000)), Fleet(0, 0), (1, "LearningCapacity")),
    "nothing is known, and nobody asks": (
        {"targets": {}}, Measurements(), FLEET, (0, "Demand")),
    "requests wait too long": (
        {"targets": {"servicePerReplica": 1000, "queueTime": "2s"}},
        Measurements(asked=asked(1000, 1000), queue_s=3.0), FLEET, (6, "QueueTime")),
    "first tokens come too late": (
        {"targets": {"servicePerReplica": 1000, "ttftP95": "1500ms"}},
        Measurements(asked=asked(1000, 1000), ttft_p95_s=2.25), FLEET, (6, "TtftP95")),
    "however late, no more than twice those that are ready": (
        {"targets": {"servicePerReplica": 1000, "ttftP95": "1500ms"}},
        Measurements(asked=asked(1000, 1000), ttft_p95_s=300.0), Fleet(4, 3), (6, "TtftP95")),
    "nor fewer than are starting": (
        {"targets": {"servicePerReplica": 1000, "ttftP95": "1500ms"}},
        Measurements(asked=asked(1000, 1000), ttft_p95_s=300.0), Fleet(8, 1), (8, "TtftP95")),
    "latency within a tenth of its target": (
        {"targets": {"servicePerReplica": 1000, "utilizationPercent": 100, "ttftP95": "1s"}},
        Measurements(asked=asked(1000, 1000), ttft_p95_s=1.1), FLEET, (2, "Demand")),
    "what is late for one client alone grows to its cap": (
        {"targets": {"servicePerReplica": 1000, "ttftP95": "1s"}, "maxReplicasPerClient": 5},
        Measurements(asked=asked(1000), ttft_p95_s=9.0), FLEET, (5, "TtftP95")),
}  # fmt: skip


@pytest.mark.parametrize("case", WISHES)
def test_the_recommendation_of_one_measurement(case: str) -> None:
    changes, figures, fleet, want = WISHES[case]
    recommendation = recommend(scaling(**changes), figures, Parts(), fleet)
    assert (recommendation.replicas, recommendation.reason) == want


class Life:
    """One operator's scaler of one service."""

    def __init__(self, replicas: int, **changes: Any) -> None:
        self.terms = Terms(scaling=scaling(**changes), ready=replicas)
        self.now_s = 1000.0
        self.state: ScalerState = started(replicas, now_s=self.now_s)

    def looks(self, seen: Measurements | Note, *, after_s: float = 15.0) -> Decision:
        self.now_s += after_s
        self.state, decision = step(self.state, self.terms, seen, now_s=self.now_s)
        return decision


def test_a_fleet_grows_with_its_clients_and_shrinks_when_the_window_is_over() -> None:
    life = Life(1)
    busy = Measurements(asked=asked(3000, 3000))
    counts = [life.looks(busy).replicas for _ in range(3)]
    assert counts == [5, 6, 6]  # 1 + 4 pods within 15 s, and then the rest
    assert life.looks(Measurements(), after_s=299.0 - 15.0).replicas == 6
    assert life.looks(Measurements(), after_s=31.0).replicas == 1


def test_one_greedy_client_grows_it_to_its_cap_and_says_so_as_demand() -> None:
    life = Life(1, maxReplicasPerClient="30%")
    decisions = [life.looks(Measurements(asked=asked(1e9))) for _ in range(5)]
    assert [decision.replicas for decision in decisions] == [3] * 5
    assert {(one.reason, one.note.reason, one.active) for one in decisions} == {
        ("Demand", "Scaling", True)
    }


def test_latency_counts_for_replicas_that_were_ready_when_requests_arrived() -> None:
    """Otherwise the fleet would double again once the new replicas are ready, by latencies from before."""
    life = Life(2, targets={"servicePerReplica": 1000, "ttftP95": "1s"})
    late = Measurements(asked=asked(1000, 1000), ttft_p95_s=9.0)
    assert life.looks(late).replicas == 4
    life.terms = replace(life.terms, ready=4)
    assert [life.looks(late).replicas for _ in range(8)] == [4] * 8
    assert life.looks(late).replicas == 8


def test_more_than_the_most_is_said() -> None:
    life = Life(10)
    decision = life.looks(Measurements(asked=asked(9000, 9000)))
    assert (decision.replicas, decision.reason, decision.note.reason) == (
        10,
        "AtMaximum",
        "AtMaximum",
    )


def test_who_cannot_see_holds_and_says_so() -> None:
    life = Life(6)
    for _ in range(100):
        decision = life.looks(BLIND)
        assert (decision.replicas, decision.active, decision.reason) == (6, False, "NoData")
    # Sight returns: a blind time is no recommendation for less.
    assert life.looks(Measurements()).replicas == 6
    assert life.looks(Measurements(), after_s=301.0).replicas == 1


def test_a_new_life_begins_with_what_lives_and_never_shrinks_at_once() -> None:
    life = Life(7)
    assert life.looks(Measurements()).replicas == 7
    assert life.looks(Measurements(), after_s=280.0).replicas == 7
    assert life.looks(Measurements(), after_s=10.0).replicas == 1


@pytest.mark.parametrize("seen", [BLIND, Measurements(asked=asked(5000))], ids=["blind", "seeing"])
def test_the_bounds_of_the_spec_hold_at_once_seen_or_not(seen: Measurements | Note) -> None:
    assert Life(20).looks(seen).replicas == 10
    assert Life(1, minReplicas=3).looks(BLIND).replicas == 3


def test_a_service_goes_to_zero_after_a_window_without_demand_or_requests() -> None:
    life = Life(1, minReplicas=0)
    assert life.looks(Measurements(in_flight=1), after_s=400.0).replicas == 1
    assert life.looks(Measurements(), after_s=290.0).replicas == 1
    assert life.looks(Measurements(), after_s=20.0).replicas == 0
    assert life.looks(BLIND).replicas == 0
    assert life.looks(Measurements(asked=asked(1.0))).replicas == 1


@pytest.mark.parametrize("seen", [BLIND, Measurements()], ids=["blind", "seeing"])
def test_a_request_that_waits_brings_the_first_one_whatever_the_policies_say(
    seen: Measurements | Note,
) -> None:
    slow = {"scaleUp": {"selectPolicy": "Disabled", "stabilizationWindowSeconds": 600}}
    life = Life(0, minReplicas=0, behavior=slow)
    assert life.looks(seen).replicas == 0
    life.terms = replace(life.terms, activation=True)
    decision = life.looks(seen)
    assert (decision.replicas, decision.reason) == (1, "Activated")
    assert life.looks(seen).replicas == 1
    life.terms = replace(life.terms, activation=False)
    assert life.looks(seen, after_s=290.0).replicas == 1  # as long as any other recommendation


def test_the_reason_is_that_of_the_followed_recommendation() -> None:
    life = Life(1)
    assert life.looks(Measurements(asked=asked(3000))).reason == "Demand"
    later = life.looks(Measurements(asked=asked(1000)))
    assert (later.replicas, later.reason) == (
        3,
        "Demand",
    )  # held by a recommendation within the window
    grows = Life(1, behavior={"scaleUp": {"policies": [
        {"type": "Pods", "value": 1, "periodSeconds": 60}]}})  # fmt: skip
    assert grows.looks(Measurements(asked=asked(9000))).reason == "RateLimited"


def pod_on(node: str, **metadata: str) -> dict[str, Any]:
    return {"metadata": {"name": "p", **metadata}, "spec": {"nodeName": node}}


SURGES: dict[str, tuple[int, list[dict[str, Any]], int]] = {
    "the only one must leave its node": (1, [pod_on("drained")], 2),
    "it is leaving, and its successor runs elsewhere": (
        1,
        [pod_on("drained", deletionTimestamp="x"), pod_on("other")],
        1,
    ),
    "it has no node yet": (1, [{"metadata": {"name": "p"}}], 1),
    "others remain ready": (2, [pod_on("drained"), pod_on("other")], 2),
    "none is wanted": (0, [pod_on("drained")], 0),
}


@pytest.mark.parametrize(("replicas", "pods", "want"), SURGES.values(), ids=SURGES)
def test_the_only_replica_on_a_cordoned_node_gets_a_second_one(
    replicas: int, pods: list[dict[str, Any]], want: int
) -> None:
    assert surged(Scaling(replicas, BLIND), pods, {"drained"}).replicas == want
