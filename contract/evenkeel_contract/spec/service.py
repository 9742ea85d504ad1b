"""FairInferenceService: a model, its replicas, its routers, and the rules by which clients share them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from evenkeel_contract.constraints import DNS_LABEL, DNS_NAME, Cidr, Length, Pattern, Range
from evenkeel_contract.routerconfig import Anonymous, FleetPolicyName
from evenkeel_contract.spec.common import ApiVersion, DnsName, Metadata, Positive, Weight
from evenkeel_contract.spec.engine import Engine, Model, ReplicaPolicyName
from evenkeel_contract.spec.router import Router
from evenkeel_contract.spec.scaling import Autoscaling, Slo

Hostname = Annotated[
    str, Pattern(rf"(\*\.)?{DNS_NAME.regex}", "a DNS name, or '*.' and a DNS name"), Length(1, 253)
]


class Rejoin(Enum):
    """Deficit of a client that returns to a replica after being idle (design R4)."""

    KEEP_DEBT = "KeepDebt"  # a negative deficit is kept
    PAPER = "Paper"  # the deficit is set to zero, as in the paper; a client can exploit this


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """How clients share the service. A request costs
    inputTokenWeight · extend tokens + outputTokenWeight · output tokens, in weighted tokens."""

    replica_policy: ReplicaPolicyName = ReplicaPolicyName.DLPM
    """Policy that orders the waiting requests within a replica. Only DLPM, VTC, VTCPredict and DRR are fair."""
    fleet_policy: FleetPolicyName = FleetPolicyName.D2LPM
    """Policy by which the router chooses a replica for a request."""
    input_token_weight: Weight = 1
    """Weight of an extend token: an input token that the replica had to compute because it was not cached."""
    output_token_weight: Weight = 2
    """Weight of an output token."""
    client_quantum: Positive = 8000
    """Weighted tokens that a client receives per refill within a replica (DLPM, DRR). A larger quantum keeps more
    cache locality. A smaller quantum is fairer over short times."""
    worker_quantum: Positive = 20000
    """Weighted tokens that a client may send to a replica per refill before its requests go to other replicas too (D2LPM).
    A larger quantum keeps more cache locality. It does not change the fairness bound."""
    rejoin: Rejoin = Rejoin.KEEP_DEBT
    """Deficit of a client that returns to a replica after being idle. KeepDebt keeps a negative deficit.
    Paper sets it to zero, which a client can exploit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressTls:
    """TLS settings of an Ingress."""

    secret_name: DnsName
    """Name of a Secret of type kubernetes.io/tls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressExposure:
    """An Ingress that forwards to the routers."""

    host: DnsName
    """DNS name that clients use."""
    class_name: DnsName | None = None
    """Ingress class. If not set, the cluster's default ingress class is used."""
    tls: IngressTls | None = None
    """TLS settings. If not set, the Ingress serves plain HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentRef:
    """Refers to a Gateway, as in HTTPRoute."""

    name: DnsName
    """Name of the Gateway."""
    namespace: Annotated[str, DNS_LABEL] | None = None
    """Namespace of the Gateway. If not set, it is the namespace of the service."""
    group: DnsName = "gateway.networking.k8s.io"
    """API group of the parent."""
    kind: Annotated[str, Length(1, 63)] = "Gateway"
    """Kind of the parent."""
    section_name: DnsName | None = None
    """Listener of the Gateway. If not set, all listeners are used."""
    port: Annotated[int, Range(1, 65535)] | None = None
    """Port of the Gateway. If not set, all ports are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRouteExposure:
    """An HTTPRoute of the Gateway API that forwards to the routers."""

    parent_refs: Annotated[tuple[ParentRef, ...], Length(1, 32)]
    """Gateways that the route is attached to."""
    hostnames: Annotated[tuple[Hostname, ...], Length(0, 16)] = ()
    """DNS names that clients use. If empty, all names of the gateways are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """How clients outside the cluster reach the routers. Set at most one field."""

    ingress: IngressExposure | None = None
    """Ingress to generate. If not set, there is none."""
    http_route: HttpRouteExposure | None = None
    """HTTPRoute to generate. If not set, there is none."""


class SelectorOperator(Enum):
    """Operators of a label selector."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSelectorRequirement:
    """One condition on a label, as in Kubernetes."""

    key: Annotated[str, Length(1, 317)]
    """Name of the label."""
    operator: SelectorOperator
    """How the label's value is compared with `values`."""
    values: Annotated[tuple[str, ...], Length(0, 64)] = ()
    """Values to compare with. Required with In and NotIn, empty with Exists and DoesNotExist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSelector:
    """Selects resources by their labels. An empty selector selects all."""

    match_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that a resource must have, with their values."""
    match_expressions: Annotated[tuple[LabelSelectorRequirement, ...], Length(0, 32)] = ()
    """Conditions on labels. A resource must meet all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """The clients that may use the service."""

    selector: LabelSelector = field(default_factory=LabelSelector)
    """Selects the InferenceTenants of the namespace that may use the service. An empty selector selects all."""
    anonymous: Anonymous = Anonymous.REJECT
    """Handling of requests without an identity. Reject answers 401. Share treats all of them as one client."""
    trusted_proxies: Annotated[
        tuple[Annotated[str, Cidr(), Length(1, 64)], ...], Length(0, 64)
    ] = ()
    """Networks (CIDR) of trusted proxies. The router accepts identity headers from these networks only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """The desired state of a service."""

    model: Model
    """The model that the service answers with."""
    engine: Engine = field(default_factory=Engine)
    """The engine replicas that run the model."""
    scheduling: Scheduling = field(default_factory=Scheduling)
    """How clients share the service."""
    router: Router = field(default_factory=Router)
    """The routers, which send requests to the replicas."""
    autoscaling: Autoscaling | None = None
    """Autoscaling by the operator. If not set, the number of replicas is `engine.replicas`, which an external autoscaler may
    change."""
    slo: Slo = field(default_factory=Slo)
    """Service level objectives. The operator generates alerts from them."""
    exposure: Exposure = field(default_factory=Exposure)
    """How clients outside the cluster reach the routers."""
    tenancy: Tenancy = field(default_factory=Tenancy)
    """The clients that may use the service."""

    @property
    def initial_replicas(self) -> int:
        """The number of replicas at the start."""
        if self.autoscaling is not None:
            return max(1, self.autoscaling.min_replicas)
        return 1 if self.engine.replicas is None else self.engine.replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class FairInferenceService:
    """FairInferenceService serves a model to many clients by weighted fair sharing."""

    api_version: ApiVersion
    """Group and version of this schema."""
    kind: Annotated[str, Pattern("FairInferenceService", "FairInferenceService")]
    """Kind of the resource: FairInferenceService."""
    metadata: Metadata
    """Name, labels and annotations."""
    spec: ServiceSpec
    """The desired state, written by users."""
    status: Mapping[str, object] = field(default_factory=dict)
    """The observed state, written by the operator."""
