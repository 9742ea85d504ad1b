"""The scalers of the scaling laboratory: the operator's own decision core, and what users would take instead.

All follow `spec.autoscaling.behavior` (limits per period, stabilisation windows) by the operator's implementation of
autoscaling/v2, except the panic window, which has its own rules.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Final

from evenkeel_contract.spec.autoscaling import Autoscaling
from evenkeel_fairshare.measures import percentile
from evenkeel_operator.core import reasons
from evenkeel_operator.core.recommendation import (
    LEARNT_PART,
    LEAST_SATURATED_S,
    TOLERANCE,
    Asked,
    Measurements,
    Parts,
    Recommendation,
)
from evenkeel_operator.core.scaling import (
    History,
    ScalerState,
    Terms,
    apply_behavior,
    started,
    step,
)

from evenkeel_laboratory.experiments.fleet_watch import Observation

INTERVAL_S: Final = 15.0
"""Interval of the operator and of the HorizontalPodAutoscaler."""
LEARNING_S: Final = 3 * 3600.0
"""The window of the operator's query for capacity."""
SAMPLE_S: Final = 60.0


class OperatorScaler:
    """The decision core of Evenkeel's operator, with the measurements that its queries would return."""

    name = "evenkeel"
    interval_s = INTERVAL_S

    def __init__(self, scaling: Autoscaling, parts: Parts, *, replicas: int) -> None:
        self._scaling = scaling
        self._parts = parts
        self._state = started(replicas, now_s=0.0)
        self._seen: deque[tuple[float, float]] = deque()
        """(time, service per second of a replica): the samples of the capacity query."""

    def decide(self, seen: Observation) -> int:
        """One query and one step."""
        if seen.seen_per_s is not None and (
            not self._seen or seen.now_s - self._seen[-1][0] >= SAMPLE_S
        ):
            self._seen.append((seen.now_s, seen.seen_per_s))
        while self._seen and self._seen[0][0] < seen.now_s - LEARNING_S:
            self._seen.popleft()
        rates = [rate for _, rate in self._seen if rate > 0]
        saturated = seen.saturated_s > LEAST_SATURATED_S
        found = Measurements(
            asked=tuple(
                Asked(
                    tenant.rpartition("/")[2],
                    client,
                    seen.asked_per_s.get(name, 0.0),
                    seen.waiting_service.get(name, 0.0),
                )
                for name in {**seen.asked_per_s, **seen.waiting_service}
                for tenant, _, client in (name.rpartition("/"),)
            ),
            in_flight=seen.in_flight,
            seen_per_s=percentile(rates, 100 * LEARNT_PART) if rates else None,
            saturated_per_s=seen.saturated_service / seen.saturated_s if saturated else None,
            queue_s=seen.queue_s,
            ttft_p95_s=seen.ttft_p95_s,
        )
        terms = Terms(scaling=self._scaling, parts=self._parts, ready=seen.ready)
        self._state, decision = step(self._state, terms, found, now_s=seen.now_s)
        return decision.replicas


class QueueScaler:
    """A HorizontalPodAutoscaler on the number of waiting requests per replica."""

    interval_s = INTERVAL_S

    def __init__(self, scaling: Autoscaling, *, target: float, replicas: int) -> None:
        self.name = f"hpa queue {target:g}"
        self._scaling = scaling
        self._target = target
        self._state = ScalerState(replicas, History())

    def decide(self, seen: Observation) -> int:
        """The HorizontalPodAutoscaler's formula for a metric with an average value per pod."""
        present = self._state.replicas
        ratio = seen.waiting / (self._target * max(1, seen.ready))
        wanted = present
        if abs(ratio - 1.0) > TOLERANCE:
            wanted = ceil(seen.waiting / self._target)
        wanted = max(1, wanted)
        decided, history = apply_behavior(
            self._scaling, self._state.history, Recommendation(wanted, reasons.DEMAND),
            present=present, now_s=seen.now_s,
        )  # fmt: skip
        self._state = replace(self._state, replicas=decided.replicas, history=history)
        return decided.replicas


@dataclass(slots=True)
class PanicScaler:
    """Concurrency with a panic window, as Knative's autoscaler has it: a stable window of a minute, a panic window of 6 s.

    Panic begins when the panic window wants twice the ready replicas. It ends after a stable window without that, and
    until then the number does not fall.
    """

    scaling: Autoscaling
    target: float
    """Requests in flight per replica, of which 70 % are aimed at."""
    name: str = field(init=False)
    interval_s: float = 2.0
    _readings: deque[tuple[float, int]] = field(default_factory=deque)
    _panic_until_s: float = 0.0
    _panic_replicas: int = 0

    def __post_init__(self) -> None:
        self.name = f"panic window {self.target:g}"

    def decide(self, seen: Observation) -> int:
        """One tick of the autoscaler."""
        self._readings.append((seen.now_s, seen.in_flight))
        while self._readings[0][0] <= seen.now_s - 60.0:
            self._readings.popleft()
        stable, panic = self._wanted(seen.now_s, 60.0), self._wanted(seen.now_s, 6.0)
        ready = max(1, seen.ready)
        if panic >= 2 * ready:
            self._panic_until_s = seen.now_s + 60.0
        if seen.now_s < self._panic_until_s:
            self._panic_replicas = max(self._panic_replicas, panic)
            wanted = self._panic_replicas
        else:
            self._panic_replicas = 0
            wanted = max(stable, ceil(ready / 2))  # at most half of them leave at a time
        return min(max(wanted, self.scaling.min_replicas, 1), self.scaling.max_replicas)

    def _wanted(self, now_s: float, window_s: float) -> int:
        values = [count for at_s, count in self._readings if at_s > now_s - window_s]
        return ceil(sum(values) / len(values) / (0.7 * self.target) - 1e-9)


class StaticScaler:
    """A fleet of one size."""

    interval_s = 3600.0

    def __init__(self, replicas: int) -> None:
        self.name = f"static {replicas}"
        self.replicas = replicas

    def decide(self, seen: Observation) -> int:
        """The same number always."""
        return self.replicas
