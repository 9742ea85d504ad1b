"""`status` of both resources. The operator writes it; users, `kubectl wait` and the HPA read it.

No field has a default in the CRD: an absent field is not known yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from evenkeel_contract.constraints import Length, Pattern, Range, Timestamp, UniqueBy
from evenkeel_contract.quantities import Duration
from evenkeel_contract.spec.common import Count, DnsName

ConditionName = Annotated[str, Pattern(r"[A-Z][A-Za-z0-9]*", "a name in CamelCase"), Length(1, 316)]
Generation = Annotated[int, Range(0, 2**53)]


class ServiceCondition(Enum):
    """The conditions of a FairInferenceService."""

    READY = "Ready"  # the service answers requests
    ENGINES_READY = "EnginesReady"
    ROUTER_READY = "RouterReady"
    SCALING_ACTIVE = "ScalingActive"
    PROGRESSING = "Progressing"  # the operator is applying a change
    DEGRADED = "Degraded"  # the service answers requests, but an object does not match the spec
    SPEC_VALID = "SpecValid"  # False: the last valid spec is in use


class TenantCondition(Enum):
    """The conditions of an InferenceTenant."""

    READY = "Ready"  # the routers of its services accept its API keys
    SPEC_VALID = "SpecValid"


class ConditionStatus(Enum):
    """Value of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One observation about the resource, as in Kubernetes."""

    type: ConditionName
    """Name of the condition, unique in the list."""
    status: ConditionStatus
    """Value of the condition: True, False or Unknown."""
    reason: ConditionName
    """Cause of the value, in one CamelCase word for programs."""
    message: Annotated[str, Length(0, 32768)] = ""
    """Cause of the value, in a sentence for people. It names the field and the fix."""
    last_transition_time: Annotated[str, Timestamp()]
    """Time of the last change of `status`."""
    observed_generation: Generation | None = None
    """Generation of the spec that the condition describes."""


Conditions = Annotated[tuple[Condition, ...], UniqueBy(("type",)), Length(0, 32)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterStatus:
    """The observed routers."""

    ready_replicas: Count = 0
    """Number of routers that are in sync and take requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FairnessStatus:
    """Fairness figures of the last minute, without client names. The operator updates them at most once a minute."""

    share_error_percent: Count | None = None
    """How much less service than its share the least served backlogged client got, in percent of its share."""
    max_lead: Duration | None = None
    """Largest lead of the most over the least served backlogged client, in time of fair service. Not set without a lead."""
    backlogged_clients: Count | None = None
    """Number of clients with waiting requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingStatus:
    """Last decision of the scaler."""

    desired: Count
    """Number of replicas that the scaler recommends."""
    reason: ConditionName
    """Cause of the recommendation, in one CamelCase word."""
    last_scale_time: Annotated[str, Timestamp()] | None = None
    """Time of the last change of the recommendation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """The observed state of a service."""

    observed_generation: Generation | None = None
    """Generation of the spec that this status describes."""
    replicas: Count | None = None
    """Number of replicas that exist."""
    ready_replicas: Count | None = None
    """Number of replicas that take requests."""
    selector: Annotated[str, Length(1, 2048)] | None = None
    """Label selector of the engine pods, as text. The HPA reads it."""
    url: Annotated[str, Length(1, 2048)] | None = None
    """Address that clients send requests to."""
    image: Annotated[str, Length(1, 1024)] | None = None
    """Engine image in use. It stays the same until the spec or annotation evenkeel.dev/upgrade changes it."""
    available_image: Annotated[str, Length(1, 1024)] | None = None
    """The operator's default engine image, if it differs from `image`. Annotation evenkeel.dev/upgrade switches to it."""
    router: RouterStatus | None = None
    """The observed routers."""
    conditions: Conditions = ()
    """Conditions of types Ready, EnginesReady, RouterReady, ScalingActive, Progressing, Degraded and SpecValid."""
    fairness: FairnessStatus | None = None
    """Fairness figures of the last minute."""
    scaling: ScalingStatus | None = None
    """Last decision of the scaler. Not set without `spec.autoscaling`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedBy:
    """A FairInferenceService that the tenant may use."""

    name: DnsName
    """Name of the service, in the tenant's namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantStatus:
    """The observed state of a tenant."""

    observed_generation: Generation | None = None
    """Generation of the spec that this status describes."""
    conditions: Conditions = ()
    """Conditions of types Ready and SpecValid."""
    services: Annotated[tuple[ServedBy, ...], UniqueBy(("name",)), Length(0, 1000)] = ()
    """Services of the namespace that select this tenant."""
