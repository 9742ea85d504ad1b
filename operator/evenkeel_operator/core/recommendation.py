"""The number of replicas that one set of measurements recommends. Pure.

The highest of several recommendations counts: demand over usable capacity, queue time and time to first token where
they exceed their targets, and one replica while requests are served or wait.

Demand adds replicas only if capacity is known: configured, or measured while requests waited. A replica's throughput
without waiting requests is a lower bound. It suffices to remove replicas, not to add any.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from evenkeel_contract.spec.scaling import Autoscaling

from evenkeel_operator.core import reasons
from evenkeel_operator.core.demand import Asked, Demand, Parts, demand_of

TOLERANCE: Final = 0.1
"""How far demand or latency may be off without anything changing, as in the HorizontalPodAutoscaler."""
STEEPEST: Final = 2.0
"""By which factor exceeded latency grows the fleet at most: waiting times rise much faster than load does."""
_ROUNDING: Final = 1e-9
"""Tolerance of floating-point sums: a demand of 8 replicas gives 8 replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Prometheus' measurements of one service."""

    asked: tuple[Asked, ...] = ()
    in_flight: float = 0.0
    """Requests that have not ended, those held by routers included."""
    seen_per_s: float | None = None
    """Weighted tokens per second that a routable replica did when there was work."""
    saturated_per_s: float | None = None
    """The same while requests waited all the time."""
    queue_s: float | None = None
    """How long requests of clients within their share wait at replicas."""
    ttft_p95_s: float | None = None
    """Likewise, their time to the first token."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The replicas as they are."""

    wanted: int
    """What was decided last."""
    ready: int
    """Replicas that take requests; the others are no capacity yet."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A number, unbounded, and why (a word of `reasons`)."""

    replicas: int
    reason: str


def recommend(
    scaling: Autoscaling, seen: Measurements, parts: Parts, fleet: Fleet
) -> Recommendation:
    """The highest recommendation of all; the first named of equal ones gives the reason."""
    per_replica = _capacity(scaling, seen)
    asks = any(one.service_per_s > 0 for one in seen.asked)
    least = (
        Recommendation(1, reasons.IN_USE)
        if asks or seen.in_flight > 0
        else Recommendation(0, reasons.DEMAND)
    )
    if per_replica is None:
        # Nothing was served yet: keep the present replicas.
        return Recommendation(max(1, fleet.wanted), reasons.LEARNING) if asks else least
    demand = demand_of(
        seen.asked,
        parts,
        usable_per_s=per_replica * scaling.targets.utilization_percent / 100,
        cap_replicas=scaling.max_replicas_per_client.of(scaling.max_replicas),
    )
    by_demand = _by_demand(demand.replicas, fleet.wanted)
    if by_demand.replicas > fleet.wanted and not _is_proven(scaling, seen):
        by_demand = Recommendation(fleet.wanted, reasons.LEARNING)
    recommendations = (by_demand, *_by_latency(scaling, seen, demand, fleet), least)
    return max(recommendations, key=lambda recommendation: recommendation.replicas)


def _capacity(scaling: Autoscaling, seen: Measurements) -> float | None:
    """Of one replica, weighted tokens per second."""
    given = scaling.targets.service_per_replica
    if given is not None:
        return float(given.value)
    # Both were measured, so neither exceeds the capacity of a replica.
    learnt = max(seen.saturated_per_s or 0.0, seen.seen_per_s or 0.0)
    return learnt if learnt > 0 else None


def _is_proven(scaling: Autoscaling, seen: Measurements) -> bool:
    return scaling.targets.service_per_replica is not None or bool(seen.saturated_per_s)


def _by_demand(replicas: float, wanted: int) -> Recommendation:
    if wanted and abs(replicas / wanted - 1.0) <= TOLERANCE + _ROUNDING:
        return Recommendation(wanted, reasons.DEMAND)
    return Recommendation(ceil(replicas - _ROUNDING), reasons.DEMAND)


def _by_latency(
    scaling: Autoscaling, seen: Measurements, demand: Demand, fleet: Fleet
) -> tuple[Recommendation, ...]:
    """A minimum for each exceeded target: ready replicas times the excess, never below the present number.

    It uses ready replicas, so that the number does not grow further while new replicas load weights. The caps of the
    clients with demand limit it too, since short bursts of a client count as within its share.
    """
    targets = scaling.targets
    ceiling = ceil(demand.ceiling - _ROUNDING)
    return tuple(
        Recommendation(
            min(ceiling, max(fleet.wanted, ceil(fleet.ready * min(STEEPEST, over)))), reason
        )
        for target, seen_s, reason in (
            (targets.queue_time, seen.queue_s, reasons.QUEUE_TIME),
            (targets.ttft_p95, seen.ttft_p95_s, reasons.TTFT),
        )
        if target is not None and seen_s is not None
        for over in (seen_s / target.seconds,)
        if over > 1.0 + TOLERANCE
    )
