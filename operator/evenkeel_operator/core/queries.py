"""The scaler's queries to Prometheus for one service, and the measurements in its answers. Pure.

Every router exports the same fleet-wide values: use `max` over routers, never `sum`. Latency counts clients within
their share only, so a client cannot grow the fleet by queueing behind itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from evenkeel_contract.names import SERVICE_LABEL
from evenkeel_contract.spec.scaling import Autoscaling

from evenkeel_operator.core import reasons
from evenkeel_operator.core.conditions import Note
from evenkeel_operator.core.demand import Asked
from evenkeel_operator.core.recommendation import Measurements
from evenkeel_operator.core.scaler import Blind

STALE_S: Final = 180.0
"""Three scrapes at one a minute. The metrics of routers change within seconds."""
RATE: Final = "2m"
"""Two scrapes at one a minute, plus the minute over which routers average demand."""
LEARNING: Final = "[3h:1m]"
"""Window for measured capacity: longer than a quiet hour, short enough to exclude yesterday's model."""
LEARNT_PART: Final = 0.95
"""Quantile of the window, not its maximum: a router that restores its ledger may report too much for a minute."""

AGE, ASKED, IN_FLIGHT = "age", "asked", "inFlight"
SEEN, SATURATED = "seen", "saturated"
QUEUE, TTFT = "queue", "ttft"


@dataclass(frozen=True, slots=True)
class Sample:
    """One series at one time."""

    labels: Mapping[str, str]
    value: float


Answers = Mapping[str, Sequence[Sample]]
"""By the name of the query."""


def series_of(namespace: str, name: str) -> str:
    """The labels of all series that a service's routers and engines export, as its PodMonitors have it."""
    label = re.sub(r"\W", "_", SERVICE_LABEL)  # as Prometheus spells it
    return f'namespace="{namespace}",{label}="{name}"'


def queries(namespace: str, name: str, scaling: Autoscaling) -> dict[str, str]:
    """PromQL by name; only what the spec needs."""
    of = series_of(namespace, name)
    found = {
        AGE: f"time() - max(timestamp(evenkeel_router_fleet_backlogged_clients{{{of}}}))",
        ASKED: f"max by (tenant, client) (evenkeel_router_service_requested{{{of}}}) > 0",
        IN_FLIGHT: f"sum(evenkeel_router_requests_in_flight{{{of}}})",
    }
    targets = scaling.targets
    if targets.service_per_replica is None:
        # The minimum over routers: the counter of a starting router jumps while it restores its ledger.
        total = f"evenkeel_router_tenant_service_total{{{of}}}"
        served = f"sum(min by (tenant) (rate({total}[{RATE}])))"
        live = f"count(max by (replica) (evenkeel_router_replica_routable{{{of}}}) == 1)"
        # Not at every sample: while a full batch decodes, no request waits until the first one ends.
        waiting = f"(evenkeel_router_fleet_backlogged_clients{{{of}}} > bool 0)[{RATE}:10s]"
        waits = f"max(avg_over_time({waiting})) >= 0.5"
        # A rate over a window longer than the data is too small, and would underestimate the capacity of a new fleet.
        each = f"{served} / {live} > 0 and count({total} offset {RATE})"
        found[SEEN] = f"quantile_over_time({LEARNT_PART}, ({each}){LEARNING})"
        found[SATURATED] = f"quantile_over_time({LEARNT_PART}, ({each} and {waits}){LEARNING})"
    share = "evenkeel_router_within_share_ttft_seconds"
    if targets.queue_time is not None:
        # Little's law: waiting requests divided by requests started per second.
        waiting = f"max(avg_over_time(evenkeel_router_within_share_waiting{{{of}}}[{RATE}]))"
        found[QUEUE] = f"{waiting} / sum(rate({share}_count{{{of}}}[{RATE}]))"
    if targets.ttft_p95 is not None:
        buckets = f"sum by (le) (rate({share}_bucket{{{of}}}[{RATE}]))"
        found[TTFT] = f"histogram_quantile(0.95, {buckets})"
    return found


def measurements(answers: Answers) -> Measurements | Blind:
    """The measurements; `Blind` if the service's routers have no recent series."""
    age_s = _one(answers, AGE)
    if age_s is None:
        message = (
            "Prometheus has no series of this service's routers: does it scrape them, with the labels of the "
            "PodMonitor?"
        )
        return Blind(Note(reasons.NO_DATA, message))
    if age_s > STALE_S:
        message = f"what Prometheus has of this service's routers is older than {STALE_S:.0f} s"
        return Blind(Note(reasons.DATA_STALE, message))
    return Measurements(
        asked=tuple(
            Asked(one.labels.get("tenant", ""), one.labels.get("client", ""), one.value)
            for one in answers.get(ASKED, ())
            if math.isfinite(one.value)
        ),
        in_flight=_one(answers, IN_FLIGHT) or 0.0,
        seen_per_s=_finite(answers, SEEN),
        saturated_per_s=_finite(answers, SATURATED),
        queue_s=_one(answers, QUEUE),
        ttft_p95_s=_one(answers, TTFT),
    )


def _one(answers: Answers, name: str) -> float | None:
    """The only sample; None without a sample or if it is NaN (0 / 0)."""
    found = next(iter(answers.get(name, ())), None)
    return None if found is None or math.isnan(found.value) else found.value


def _finite(answers: Answers, name: str) -> float | None:
    found = _one(answers, name)
    return found if found is not None and math.isfinite(found) else None
