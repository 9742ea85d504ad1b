"""The part `autoscaling` of a FairInferenceService's spec."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from evenkeel_contract.spec.parts import Count, Percent, Positive, SecretKeyRef
from evenkeel_contract.values import CountOrPercent, Duration, Length, Quantity, Range, Url


class SelectPolicy(Enum):
    """Which of several scaling policies applies."""

    MAX = "Max"
    MIN = "Min"
    DISABLED = "Disabled"  # no scaling in this direction


class ScalingPolicyType(Enum):
    """Unit of a scaling policy's value."""

    PODS = "Pods"
    PERCENT = "Percent"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPolicy:
    """Limits the change of the number of replicas within a period."""

    type: ScalingPolicyType
    """Unit of `value`: replicas (Pods) or percent of the current number (Percent)."""
    value: Positive
    """Largest change within the period, in the unit of `type`."""
    period_seconds: Annotated[int, Range(1, 1800)]
    """Length of the period in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleUpRules:
    """Limits of scaling up, with the meaning of autoscaling/v2."""

    stabilization_window_seconds: Annotated[int, Range(0, 3600)] = 0
    """Window in seconds. The scaler uses the lowest recommendation of this window."""
    select_policy: SelectPolicy = SelectPolicy.MAX
    """Which policy applies: the one that allows most change (Max), least change (Min), or no change (Disabled)."""
    policies: Annotated[tuple[ScalingPolicy, ...], Length(1, 16)] = (
        ScalingPolicy(type=ScalingPolicyType.PERCENT, value=100, period_seconds=15),
        ScalingPolicy(type=ScalingPolicyType.PODS, value=4, period_seconds=15),
    )
    """Limits of the change within a period. By default replicas may double, or grow by 4, every 15 seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleDownRules:
    """Limits of scaling down, with the meaning of autoscaling/v2."""

    stabilization_window_seconds: Annotated[int, Range(0, 3600)] = 300
    """Window in seconds. The scaler uses the highest recommendation of this window."""
    select_policy: SelectPolicy = SelectPolicy.MAX
    """Which policy applies: the one that allows most change (Max), least change (Min), or no change (Disabled)."""
    policies: Annotated[tuple[ScalingPolicy, ...], Length(1, 16)] = (
        ScalingPolicy(type=ScalingPolicyType.PERCENT, value=100, period_seconds=15),
    )
    """Limits of the change within a period. By default any number of replicas may leave at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behavior:
    """How fast the number of replicas may change."""

    scale_up: ScaleUpRules = field(default_factory=ScaleUpRules)
    """Limits of scaling up."""
    scale_down: ScaleDownRules = field(default_factory=ScaleDownRules)
    """Limits of scaling down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prometheus:
    """Prometheus server that the scaler reads."""

    url: Annotated[str, Url(), Length(1, 2048)]
    """Address of the server. The operator reads only addresses that its administrator allows."""
    token_secret_ref: SecretKeyRef | None = None
    """Secret entry with a bearer token. If not set, requests carry no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Targets of the scaler. Each set target yields a recommendation, and the highest one applies."""

    utilization_percent: Percent = 75
    """Target for demand divided by the replicas' capacity, in percent. Demand is the sum over clients of requested service,
    and of waiting service divided by 30 seconds. Each client counts up to its cap."""
    queue_time: Duration | None = None
    """Target for the mean wait at replicas, over requests of clients within their share. If not set, it is not a target."""
    ttft_p95: Duration | None = None
    """Target for the 95th percentile of time to first token, over clients within their share.
    If not set, it is not a target."""
    service_per_replica: Quantity | None = None
    """Capacity of one replica in weighted tokens per second. If not set, the scaler measures it at replicas where requests wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaling:
    """Lets the operator choose the number of replicas by demand, with a cap for each client."""

    min_replicas: Count = 1
    """Smallest number of replicas. With 0 an idle service has no replica, and the next request waits for one to start."""
    max_replicas: Positive
    """Largest number of replicas, whatever the demand."""
    max_replicas_per_client: CountOrPercent = CountOrPercent.from_plain("100%")
    """Cap on the replicas that the demand of one client may start, as a number or a percentage of `maxReplicas`.
    The cap is multiplied by the client's relative weight. The demands of several clients add up."""
    prometheus: Prometheus
    """Prometheus server that the scaler reads."""
    targets: Targets = field(default_factory=Targets)
    """Targets of the scaler."""
    behavior: Behavior = field(default_factory=Behavior)
    """How fast the number of replicas may change."""
    drain_timeout: Duration = Duration.from_plain("300s")
    """Time that a draining replica gets to finish its requests. Then its pod is deleted."""

    @property
    def wakes(self) -> bool:
        """Whether the service may have no replica until a request needs one."""
        return self.min_replicas == 0
