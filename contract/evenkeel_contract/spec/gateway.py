"""FairInferenceGateway: one address for the models of several FairInferenceServices (docs/design/gateway.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from evenkeel_contract.routerconfig import Name, ShareAcross
from evenkeel_contract.spec.exposure import Exposure, Hostname
from evenkeel_contract.spec.parts import (
    ApiVersion,
    Count,
    DnsName,
    Metadata,
    PodTemplate,
    Positive,
    Router,
    RouterLimits,
)
from evenkeel_contract.spec.resources import (
    Conditions,
    Generation,
    LabelSelector,
    RouterStatus,
    Tenancy,
)
from evenkeel_contract.tracingconfig import TracingConfig
from evenkeel_contract.values import Duration, Length, Pattern, Quantity, UniqueBy


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRef:
    """A FairInferenceService of the gateway's namespace."""

    name: DnsName
    """Name of the service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayModel:
    """One model behind the gateway, or all models of the selected services. Set either serviceRef or serviceSelector."""

    name: Name | None = None
    """Model name that clients send, with serviceRef. If not set, clients send the service's own model name."""
    aliases: Annotated[tuple[Name, ...], Length(0, 64)] = ()
    """Other names that clients may send. They need `name`."""
    fallback: Annotated[tuple[Name, ...], Length(0, 8)] = ()
    """Names of other models of the gateway that serve a request in this order, if this model has no replica or is overloaded. The answer's header `x-evenkeel-model` names the model. A request with `x-evenkeel-fallback: none` forbids it."""
    service_ref: ServiceRef | None = None
    """The service that answers."""
    service_selector: LabelSelector | None = None
    """Selects services by their labels. Clients send the model name of each service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """Limits of the address. Limits of one request are those of its service."""

    max_body_size: Quantity = Quantity.from_plain("16Mi")
    """Largest request body in bytes. The router refuses a larger one with status 413."""
    keep_alive_timeout: Duration = Duration.from_plain("620s")
    """Longest time that a client's connection stays open without a request. It must be longer than the same timeout of a load balancer in front of the router."""
    max_concurrent_per_client: Count = 0
    """Maximum number of requests of one client in flight at each router, over all models. The router answers further requests with status 429. 0 means no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayRouter:
    """The routers of the gateway."""

    replicas: Positive | None = None
    """Number of routers. If not set, it is 2."""
    template: PodTemplate = field(default_factory=PodTemplate)
    """Changes to the generated router pods, applied by a strategic merge."""
    limits: GatewayLimits = field(default_factory=GatewayLimits)
    """Limits of the address."""
    tracing: TracingConfig | None = None
    """Traces of requests, sent to an OpenTelemetry collector. If not set, there are none."""

    def as_router(self) -> Router:
        """The routers in the terms of a service."""
        limits = RouterLimits(
            max_body_size=self.limits.max_body_size,
            keep_alive_timeout=self.limits.keep_alive_timeout,
            max_concurrent_per_client=self.limits.max_concurrent_per_client,
        )
        return Router(
            replicas=self.replicas, template=self.template, limits=limits, tracing=self.tracing
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySpec:
    """The desired state of a gateway."""

    models: Annotated[tuple[GatewayModel, ...], Length(1, 64)]
    """The models behind the address. Services behind a gateway have no routers of their own."""
    share_across: ShareAcross = ShareAcross.NONE
    """Where a tenant's weight holds. None: inside each service, whatever it uses of the others. Gateway: over all services, in seconds of their GPUs (`engine.gpu.count` of a replica), so that a tenant gets no more by using several models. For services on the same kind of GPU."""
    router: GatewayRouter = field(default_factory=GatewayRouter)
    """The routers of the gateway, which know all of its services."""
    exposure: Exposure = field(default_factory=Exposure)
    """How clients outside the cluster reach the routers."""
    tenancy: Tenancy = field(default_factory=Tenancy)
    """The clients that may use the gateway. A model is open to those that its service selects, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FairInferenceGateway:
    """FairInferenceGateway serves the models of several FairInferenceServices at one address."""

    api_version: ApiVersion
    """Group and version of this schema."""
    kind: Annotated[str, Pattern("FairInferenceGateway", "FairInferenceGateway")]
    """Kind of the resource: FairInferenceGateway."""
    metadata: Metadata
    """Name, labels and annotations."""
    spec: GatewaySpec
    """The desired state, written by users."""
    status: Mapping[str, object] = field(default_factory=dict)
    """The observed state, written by the operator."""


class GatewayCondition(Enum):
    """The conditions of a FairInferenceGateway."""

    READY = "Ready"  # at least one router is ready, and at least one model is served
    MODELS_READY = "ModelsReady"  # every model has its service
    ROUTER_READY = "RouterReady"
    DEGRADED = "Degraded"
    SPEC_VALID = "SpecValid"
    RECONCILING = "Reconciling"  # as kstatus has it: a rollout of routers is in progress, or a service is not there yet
    STALLED = "Stalled"  # as kstatus has it: the newest spec cannot be applied


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that the gateway serves."""

    service: DnsName
    """Name of the service that answers."""
    name: Annotated[str, Length(1, 1024)]
    """Model name that clients send."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayStatus:
    """The observed state of a gateway."""

    observed_generation: Generation | None = None
    """Generation of the spec that this status describes."""
    url: Annotated[str, Length(1, 2048)] | None = None
    """Address that clients send requests to."""
    hosts: Annotated[tuple[Hostname, ...], Length(0, 16)] = ()
    """Hosts of the Ingress or HTTPRoute."""
    router: RouterStatus | None = None
    """The observed routers."""
    models: Annotated[tuple[ServedModel, ...], UniqueBy(("service",)), Length(0, 256)] = ()
    """The models that the routers serve."""
    conditions: Conditions = ()
    """Conditions of types Ready, ModelsReady, RouterReady, Degraded, SpecValid, Reconciling and Stalled."""
