"""What the operator counts of itself: `evenkeel_operator_*` (design §8)."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

REGISTRY: Final = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)

PASSES: Final = Counter(
    "evenkeel_operator_pass_total",
    "Passes over a resource, by what became of them.",
    ["kind", "outcome"],
    registry=REGISTRY,
)
PASS_SECONDS: Final = Histogram(
    "evenkeel_operator_pass_seconds",
    "Time of a pass, waiting for the API server included.",
    ["kind"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    registry=REGISTRY,
)
WRITES: Final = Counter(
    "evenkeel_operator_write_total",
    "Mutating calls to the API server, rehearsals included; at rest there are none but the Lease's.",
    ["verb"],
    registry=REGISTRY,
)
WAITING: Final = Gauge(
    "evenkeel_operator_waiting",
    "Resources that wait for a pass.",
    registry=REGISTRY,
)
LEADER: Final = Gauge(
    "evenkeel_operator_leader",
    "1 where this process is the one that acts.",
    registry=REGISTRY,
)
