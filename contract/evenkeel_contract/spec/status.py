"""What the operator says about both resources: `status`. Written by it, read by people, `kubectl wait`, HPA.

Nothing here has a default in the CRD: what is absent is not known yet.
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

    READY = "Ready"  # requests are answered
    ENGINES_READY = "EnginesReady"
    ROUTER_READY = "RouterReady"
    SCALING_ACTIVE = "ScalingActive"
    PROGRESSING = "Progressing"  # what is wanted is being brought about
    DEGRADED = "Degraded"  # it serves, but not as promised
    SPEC_VALID = "SpecValid"  # False: the last good spec is what runs


class TenantCondition(Enum):
    """The conditions of an InferenceTenant."""

    READY = "Ready"  # its API keys are known to the routers of its services
    SPEC_VALID = "SpecValid"


class ConditionStatus(Enum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One statement about the resource, as in Kubernetes."""

    type: ConditionName
    """What the statement is about; unique."""
    status: ConditionStatus
    """Whether it holds."""
    reason: ConditionName
    """Why, in one CamelCase word for programs."""
    message: Annotated[str, Length(0, 32768)] = ""
    """Why, in a sentence for people: names the field and the fix."""
    last_transition_time: Annotated[str, Timestamp()]
    """When `status` changed last."""
    observed_generation: Generation | None = None
    """The generation of the spec that the statement is about."""


Conditions = Annotated[tuple[Condition, ...], UniqueBy(("type",)), Length(0, 32)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterStatus:
    """The routers as they are."""

    ready_replicas: Count = 0
    """Routers that are in sync and take requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FairnessStatus:
    """How evenly clients are served: at most once a minute, and without their names."""

    share_error_percent: Count | None = None
    """The largest distance of a backlogged client's share from the one its weight gives."""
    max_lead: Duration | None = None
    """Of the most over the least served backlogged client, in time of fair service; absent: none."""
    backlogged_clients: Count | None = None
    """Clients that had work waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingStatus:
    """What the built-in scaler decided."""

    desired: Count
    """How many replicas it wants."""
    reason: ConditionName
    """Why, in one CamelCase word."""
    last_scale_time: Annotated[str, Timestamp()] | None = None
    """When the wanted number changed last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """What is, as the operator saw it last."""

    observed_generation: Generation | None = None
    """The generation of the spec that this status is about."""
    replicas: Count | None = None
    """Replicas that exist."""
    ready_replicas: Count | None = None
    """Replicas that take requests."""
    selector: Annotated[str, Length(1, 2048)] | None = None
    """The label selector of the replicas' pods, as text; what an HPA reads."""
    url: Annotated[str, Length(1, 2048)] | None = None
    """Where clients send requests."""
    image: Annotated[str, Length(1, 1024)] | None = None
    """The engine image in use; pinned until the spec or an annotation says otherwise."""
    available_image: Annotated[str, Length(1, 1024)] | None = None
    """The operator's default engine image, where another one is pinned; annotation evenkeel.dev/upgrade takes it."""
    router: RouterStatus | None = None
    """The routers as they are."""
    conditions: Conditions = ()
    """Ready, EnginesReady, RouterReady, ScalingActive, Progressing, Degraded, SpecValid."""
    fairness: FairnessStatus | None = None
    """How evenly clients are served."""
    scaling: ScalingStatus | None = None
    """What the built-in scaler decided; absent without `spec.autoscaling`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedBy:
    """A FairInferenceService that serves the tenant."""

    name: DnsName
    """Its name, in the tenant's namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantStatus:
    """What is, as the operator saw it last."""

    observed_generation: Generation | None = None
    """The generation of the spec that this status is about."""
    conditions: Conditions = ()
    """Ready, SpecValid."""
    services: Annotated[tuple[ServedBy, ...], UniqueBy(("name",)), Length(0, 1000)] = ()
    """The services of the namespace that select this tenant."""
