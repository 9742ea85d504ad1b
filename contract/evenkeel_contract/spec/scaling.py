"""The number of replicas and the promises to clients: `spec.autoscaling` and `spec.slo`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from evenkeel_contract.constraints import Length, Range, Url
from evenkeel_contract.quantities import CountOrPercent, Duration, Quantity
from evenkeel_contract.spec.common import Count, Percent, Positive, SecretKeyRef


class SelectPolicy(Enum):
    """Which of several scaling policies counts."""

    MAX = "Max"
    MIN = "Min"
    DISABLED = "Disabled"  # no scaling in this direction


class ScalingPolicyType(Enum):
    """What a scaling policy counts in."""

    PODS = "Pods"
    PERCENT = "Percent"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPolicy:
    """A bound on the change within a period."""

    type: ScalingPolicyType
    """What `value` counts."""
    value: Positive
    """Pods, or percent of the present number."""
    period_seconds: Annotated[int, Range(1, 1800)]
    """How long the bound holds for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleUpRules:
    """Growing, as in autoscaling/v2."""

    stabilization_window_seconds: Annotated[int, Range(0, 3600)] = 0
    """The lowest wish of this window counts."""
    select_policy: SelectPolicy = SelectPolicy.MAX
    """Which of the policies counts."""
    policies: Annotated[tuple[ScalingPolicy, ...], Length(1, 16)] = (
        ScalingPolicy(type=ScalingPolicyType.PERCENT, value=100, period_seconds=15),
        ScalingPolicy(type=ScalingPolicyType.PODS, value=4, period_seconds=15),
    )
    """Bounds on the change within a period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleDownRules:
    """Shrinking, as in autoscaling/v2."""

    stabilization_window_seconds: Annotated[int, Range(0, 3600)] = 300
    """The highest wish of this window counts."""
    select_policy: SelectPolicy = SelectPolicy.MAX
    """Which of the policies counts."""
    policies: Annotated[tuple[ScalingPolicy, ...], Length(1, 16)] = (
        ScalingPolicy(type=ScalingPolicyType.PERCENT, value=100, period_seconds=15),
    )
    """Bounds on the change within a period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behavior:
    """How fast the number may change."""

    scale_up: ScaleUpRules = field(default_factory=ScaleUpRules)
    """How fast it may grow."""
    scale_down: ScaleDownRules = field(default_factory=ScaleDownRules)
    """How fast it may shrink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prometheus:
    """Where the scaler reads."""

    url: Annotated[str, Url(), Length(1, 2048)]
    """One that the operator's settings allow."""
    token_secret_ref: SecretKeyRef | None = None
    """A bearer token, where the server wants one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What the scaler aims at; the highest wish of all counts."""

    utilization_percent: Percent = 75
    """Demand of all clients, each cut at its cap, over the replicas' capacity."""
    queue_time: Duration | None = None
    """Grow where requests of clients within their share wait longer at replicas, on average."""
    ttft_p95: Duration | None = None
    """Grow where clients within their share wait longer for the first token."""
    service_per_replica: Quantity | None = None
    """Capacity in weighted tokens per second; absent: learnt from saturated replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaling:
    """Replicas follow demand, within what each client may ask for."""

    min_replicas: Count = 1
    """0 lets an idle service vanish; the next request waits for a replica."""
    max_replicas: Positive
    """The most replicas, whatever the demand."""
    max_replicas_per_client: CountOrPercent = CountOrPercent.from_plain("100%")
    """What one client may make the fleet grow to, times its relative weight: a number, or a share of `maxReplicas`. What
    several clients ask for adds up, each up to its own."""
    prometheus: Prometheus
    """Where the scaler reads."""
    targets: Targets = field(default_factory=Targets)
    """What the scaler aims at."""
    behavior: Behavior = field(default_factory=Behavior)
    """How fast the number may change."""
    drain_timeout: Duration = Duration.from_plain("300s")
    """How long a replica that leaves may finish its work."""

    @property
    def wakes(self) -> bool:
        """Whether it may stand at zero, until a request wants a replica."""
        return self.min_replicas == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TtftObjective:
    """Time to the first token, over requests of clients within their share."""

    threshold: Duration
    """A request is good when its first token comes within it."""
    objective_percent: Annotated[int, Range(1, 99)] = 99
    """The share of requests that shall be good."""
    window: Duration = Duration.from_plain("720h")
    """What the share is taken over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FairnessObjective:
    """How far the service of backlogged clients may drift apart."""

    max_lead: Duration = Duration.from_plain("60s")
    """Of the most over the least served, in time of fair service."""
    max_share_error_percent: Percent = 15
    """How far the share of a backlogged client may be from the one its weight gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What to alert about."""

    ttft: TtftObjective | None = None
    """Absent: no objective, no alert."""
    fairness: FairnessObjective = field(default_factory=FairnessObjective)
    """How far the service of backlogged clients may drift apart."""
    alert_labels: Mapping[str, str] = field(default_factory=dict)
    """Added to every alert of this service."""
