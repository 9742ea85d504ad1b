"""Queries of Prometheus, measurements, demand, and a recommended number of replicas (design §6). Pure.

Every router exports the same fleet-wide values: use `max` over routers, never `sum`. Latency counts clients within
their share only, so a client cannot grow the fleet by queueing behind itself.

The rule: the fleet serves what clients request, and within half a minute what waits; each client counts up to its cap.

Demand is counted in replicas of usable capacity, so a client's cap does not grow with the fleet. Caps belong to
clients, not to tenants; a tenant's weight is part of each of its clients' caps (R9). What waits is part of demand for two
reasons. It grows at once, while routers average requests over a minute. And it grows until capacity suffices, also if the
known capacity of a replica is too high.

The highest of several recommendations counts: demand over usable capacity, queue time and time to first token where
they exceed their targets, and one replica while requests are served or wait. Demand adds replicas only if capacity is
known: configured, or measured while requests waited. A replica's throughput without waiting requests is a lower bound.
It suffices to remove replicas, not to add any.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from evenkeel_contract.names import OTHER_CLIENTS, SERVICE_SERIES_LABEL
from evenkeel_contract.routerconfig import TenantConfig
from evenkeel_contract.spec.autoscaling import Autoscaling

from evenkeel_operator.core import reasons
from evenkeel_operator.core.reasons import Note

CATCH_UP_S: Final = 30.0
"""Time in which the fleet is to serve what waits: two intervals of the scaler. A shorter time would count a single long prompt
that waits for the engine's iteration as much as a steady load."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The demand of one client at all routers together."""

    tenant: str
    client: str
    """`OTHER_CLIENTS` stands for the tenant's clients without a series of their own."""
    service_per_s: float
    """r_i, weighted tokens per second."""
    waiting: float = 0.0
    """Weighted tokens that its waiting requests will cost."""

    @property
    def demand_per_s(self) -> float:
        """Weighted tokens per second that serve what it requests, and within `CATCH_UP_S` what waits."""
        return self.service_per_s + self.waiting / CATCH_UP_S


@dataclass(frozen=True, slots=True)
class _Tenant:
    part: float
    """Weight of the tenant over that of the heaviest tenant: above 0, at most 1."""
    default: float
    """Share of the tenant's weight for a client that the tenant does not name."""
    clients: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Parts:
    """Relative weights: the part of `maxReplicasPerClient` for each client, at most 1."""

    tenants: Mapping[str, _Tenant] = field(default_factory=dict)
    stranger: float = 1.0
    """Relative weight of a tenant that has none of its own: the anonymous one, or one that is gone."""

    def client(self, tenant: str, client: str) -> float:
        """The weight of a client. Clients that share a series count as the heaviest of them."""
        known = self.tenants.get(tenant)
        if known is None:
            return self.stranger
        if client == OTHER_CLIENTS:
            return known.part
        return known.part * known.clients.get(client, known.default)


def parts_of(tenants: Iterable[TenantConfig]) -> Parts:
    """Relative weights, from the weights that routers use."""
    listed = list(tenants)
    heaviest = max((float(tenant.weight) for tenant in listed), default=1.0)
    return Parts(
        {tenant.name: _tenant(tenant, heaviest) for tenant in listed}, min(1.0, 1.0 / heaviest)
    )


def _tenant(tenant: TenantConfig, heaviest: float) -> _Tenant:
    named = {client.name: float(client.weight) for client in tenant.clients}
    most = max((*named.values(), float(tenant.default_client_weight)))
    return _Tenant(
        part=tenant.weight / heaviest,
        default=tenant.default_client_weight / most,
        clients={name: weight / most for name, weight in named.items()},
    )


@dataclass(frozen=True, slots=True)
class Demand:
    """Demand of all clients, in replicas."""

    replicas: float
    """Σ min(d_i, cap_i): d_i is what client i requests, and what waits over `CATCH_UP_S`."""
    ceiling: float
    """Σ cap_i of the clients with demand: the limit of every recommendation to grow."""


def demand_of(
    asked: Iterable[Asked], parts: Parts, *, usable_per_s: float, cap_replicas: float
) -> Demand:
    """`usable_per_s` is the usable capacity of a replica; `cap_replicas` is `maxReplicasPerClient`, for weight 1."""
    found = [
        (one.demand_per_s / usable_per_s, cap_replicas * parts.client(one.tenant, one.client))
        for one in asked
        if one.demand_per_s > 0
    ]
    return Demand(
        replicas=sum(min(wanted, cap) for wanted, cap in found),
        ceiling=sum(cap for _, cap in found),
    )


TOLERANCE: Final = 0.1
"""How far demand or latency may be off without anything changing, as in the HorizontalPodAutoscaler."""
STEEPEST: Final = 2.0
"""Largest factor by which exceeded latency grows the fleet: waiting times rise much faster than load does."""
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
    """Weighted tokens per second that such a replica did while requests waited: `evenkeel_fairshare.saturation`."""
    queue_s: float | None = None
    """How long requests of clients within their share wait at replicas."""
    ttft_p95_s: float | None = None
    """95th percentile of the time to the first token of requests of clients within their share, seconds."""

    @property
    def longest_s(self) -> float:
        """The longer latency: so long ago the first of the measured requests arrived, before the window."""
        return max(self.queue_s or 0.0, self.ttft_p95_s or 0.0)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The replicas as they are."""

    wanted: int
    """What was decided last."""
    ready: int
    """Replicas that took requests ever since the first of the measured requests arrived: the latencies belong to these."""


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
    asks = any(one.demand_per_s > 0 for one in seen.asked)
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
    """Capacity of one replica, weighted tokens per second; None: unknown."""
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

    It uses ready replicas, so that the number does not grow further while new replicas load weights, or while requests count
    that arrived before these were ready. The caps of the
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


STALE_S: Final = 180.0
"""Three scrapes at one a minute. The metrics of routers change within seconds."""
LATENCY_S: Final = 120.0
"""Window of both latencies: two scrapes at one a minute."""
LONGEST_S: Final = 300.0
"""A longer latency counts as this one where the arrival of the measured requests matters."""
RATE: Final = f"{LATENCY_S:.0f}s"
LEARNING: Final = "3h"
"""Window for measured capacity: longer than a quiet hour, short enough to exclude yesterday's model."""
LEARNT_PART: Final = 0.95
"""Quantile of the window, not its maximum: a router that restores its ledger may report too much for a minute."""
LEAST_SATURATED_S: Final = 10.0
"""Seconds with waiting requests that give a capacity. The input of a long prompt counts at its start, so a second alone has no
rate."""

LABELS = "labels"
AGE, ASKED, WAITING, IN_FLIGHT = "age", "asked", "waiting", "inFlight"
SEEN, SATURATED = "seen", "saturated"
QUEUE, TTFT = "queue", "ttft"


@dataclass(frozen=True, slots=True)
class Sample:
    """One series at one time."""

    labels: Mapping[str, str]
    value: float


Answers = Mapping[str, Sequence[Sample]]
"""Name of the query → samples of its answer."""


def series_of(namespace: str, name: str) -> str:
    """The labels of all series that a service's routers and engines export, as its PodMonitors have it."""
    return f'namespace="{namespace}",{SERVICE_SERIES_LABEL}="{name}"'


def queries(namespace: str, name: str, scaling: Autoscaling) -> dict[str, str]:
    """PromQL by name; only what the spec needs."""
    of = series_of(namespace, name)
    found = {
        AGE: f"time() - max(timestamp(evenkeel_router_fleet_backlogged_clients{{{of}}}))",
        ASKED: f"max by (tenant, client) (evenkeel_router_service_requested{{{of}}}) != 0",
        WAITING: f"max by (tenant, client) (evenkeel_router_service_waiting{{{of}}}) != 0",
        IN_FLIGHT: f"sum(evenkeel_router_requests_in_flight{{{of}}})",
    }
    targets = scaling.targets
    if targets.service_per_replica is None:
        # The minimum over routers: the counter of a starting router jumps while it restores its ledger.
        total = f"evenkeel_router_tenant_service_total{{{of}}}"
        served = f"sum(min by (tenant) (rate({total}[{RATE}])))"
        live = f"count(max by (replica) (evenkeel_router_replica_routable{{{of}}}) == 1)"
        # A rate over a window longer than the data is too small, and would underestimate the capacity of a new fleet.
        each = f"{served} / {live} > 0 and count({total} offset {RATE})"
        found[SEEN] = f"quantile_over_time({LEARNT_PART}, ({each})[{LEARNING}:1m])"
        service, seconds = (
            f"sum(increase(evenkeel_router_saturated_{what}_total{{{of}}}[{LEARNING}]))"
            for what in ("service", "seconds")
        )
        found[SATURATED] = f"{service} / ({seconds} > {LEAST_SATURATED_S:g})"
    share = "evenkeel_router_within_share_ttft_seconds"
    if targets.queue_time is not None:
        # Little's law: waiting requests divided by requests started per second.
        waiting = f"max(avg_over_time(evenkeel_router_within_share_waiting{{{of}}}[{RATE}]))"
        found[QUEUE] = f"{waiting} / sum(rate({share}_count{{{of}}}[{RATE}]))"
    if targets.ttft_p95 is not None:
        buckets = f"sum by (le) (rate({share}_bucket{{{of}}}[{RATE}]))"
        found[TTFT] = f"histogram_quantile(0.95, {buckets})"
    return found


def labels_query() -> dict[str, str]:
    """The labels of all routers that Prometheus scrapes: for `without_series`."""
    series = "evenkeel_router_fleet_backlogged_clients"
    return {LABELS: f"count by (namespace, {SERVICE_SERIES_LABEL}) ({series})"}


def without_series(found: Sequence[Sample], namespace: str, name: str) -> Note:
    """Why there are no series of a service's routers: which label is missing, or that no router is scraped."""
    wanted = {"namespace": namespace, SERVICE_SERIES_LABEL: name}
    if not found:
        message = "Prometheus has no series of any router: it scrapes none of them."
        return Note(reasons.NO_DATA, message)
    missing = {
        label
        for one in found
        for label in wanted
        if not one.labels.get(label)
        and all(one.labels.get(other) in (None, "", wanted[other]) for other in wanted)
    }
    if missing:
        listed = " and ".join(label for label in wanted if label in missing)
        message = (
            f"Prometheus has series of routers without the label {listed}. Add it by relabeling, as "
            "docs/how-to/monitoring.md shows."
        )
    else:
        labels = ", ".join(f'{label}="{value}"' for label, value in wanted.items())
        message = f"Prometheus has series of other services' routers, but none with {labels}."
    return Note(reasons.NO_DATA, message)


def measurements(answers: Answers) -> Measurements | Note:
    """The measurements; a note if the service's routers have no recent series, or if their demand is no number: dropping
    such values would look like no demand, and remove replicas."""
    age_s = _one(answers, AGE)
    if age_s is None:
        message = (
            "Prometheus has no series of this service's routers: does it scrape them, with the labels of the "
            "PodMonitor?"
        )
        return Note(reasons.NO_DATA, message)
    if age_s > STALE_S:
        message = f"what Prometheus has of this service's routers is older than {STALE_S:.0f} s"
        return Note(reasons.DATA_STALE, message)
    demand = (one for name in (ASKED, WAITING, IN_FLIGHT) for one in answers.get(name, ()))
    if not all(math.isfinite(one.value) for one in demand):
        message = "Prometheus answers NaN or infinity for the demand at this service's routers."
        return Note(reasons.NOT_A_NUMBER, message)
    rates, waiting = _by_client(answers, ASKED), _by_client(answers, WAITING)
    return Measurements(
        asked=tuple(
            Asked(*client, rates.get(client, 0.0), waiting.get(client, 0.0))
            for client in {**rates, **waiting}
        ),
        in_flight=_one(answers, IN_FLIGHT) or 0.0,
        seen_per_s=_finite(answers, SEEN),
        saturated_per_s=_finite(answers, SATURATED),
        queue_s=_one(answers, QUEUE),
        ttft_p95_s=_one(answers, TTFT),
    )


def _by_client(answers: Answers, name: str) -> dict[tuple[str, str], float]:
    """Values by (tenant, client)."""
    return {
        (one.labels.get("tenant", ""), one.labels.get("client", "")): one.value
        for one in answers.get(name, ())
    }


def _one(answers: Answers, name: str) -> float | None:
    """The only sample; None without a sample or if it is NaN (0 / 0)."""
    found = next(iter(answers.get(name, ())), None)
    return None if found is None or math.isnan(found.value) else found.value


def _finite(answers: Answers, name: str) -> float | None:
    found = _one(answers, name)
    return found if found is not None and math.isfinite(found) else None
