"""FairInferenceService: a model, its replicas, its router, and how they are shared."""

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
    str, Pattern(rf"(\*\.)?{DNS_NAME.regex}", "a DNS name, perhaps after '*.'"), Length(1, 253)
]


class Rejoin(Enum):
    """What a client that comes back to a replica finds (design R4)."""

    KEEP_DEBT = "KeepDebt"  # a debt stays a debt
    PAPER = "Paper"  # as Algorithm 1 is printed: back to zero, which can be farmed


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """How the service is shared. A request costs we·extend + wq·output weighted tokens."""

    replica_policy: ReplicaPolicyName = ReplicaPolicyName.DLPM
    """The order within a replica; only DLPM, VTC, VTCPredict and DRR are fair."""
    fleet_policy: FleetPolicyName = FleetPolicyName.D2LPM
    """The choice of a replica."""
    input_token_weight: Weight = 1
    """we: weight of an input token that had to be computed."""
    output_token_weight: Weight = 2
    """wq: weight of an output token."""
    client_quantum: Positive = 8000
    """Q^u, weighted tokens: how far a client may get ahead within a replica (DLPM, DRR). Larger keeps more locality,
    smaller is fairer over short times."""
    worker_quantum: Positive = 20000
    """Q^w, weighted tokens: how much of a client goes to the replicas that hold its prefixes before it is
    spread further. Of no influence on the fairness bound (design R8)."""
    rejoin: Rejoin = Rejoin.KEEP_DEBT
    """What a client that comes back to a replica finds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressTls:
    """TLS of an Ingress."""

    secret_name: DnsName
    """A Secret of type kubernetes.io/tls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressExposure:
    """An Ingress to the router."""

    host: DnsName
    """The name that clients use."""
    class_name: DnsName | None = None
    """The ingress class; absent: the cluster's default."""
    tls: IngressTls | None = None
    """Absent: plain HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentRef:
    """A Gateway, as an HTTPRoute names it."""

    name: DnsName
    """Of the Gateway."""
    namespace: Annotated[str, DNS_LABEL] | None = None
    """Of the Gateway; absent: that of the service."""
    group: DnsName = "gateway.networking.k8s.io"
    """The parent's API group."""
    kind: Annotated[str, Length(1, 63)] = "Gateway"
    """The parent's kind."""
    section_name: DnsName | None = None
    """One listener of the Gateway; absent: all."""
    port: Annotated[int, Range(1, 65535)] | None = None
    """One port of the Gateway; absent: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRouteExposure:
    """An HTTPRoute of the Gateway API to the router."""

    parent_refs: Annotated[tuple[ParentRef, ...], Length(1, 32)]
    """The gateways, as in HTTPRoute."""
    hostnames: Annotated[tuple[Hostname, ...], Length(0, 16)] = ()
    """The names that clients use; empty: all of the gateways'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """How clients outside the cluster reach the router: at most one way."""

    ingress: IngressExposure | None = None
    """An Ingress."""
    http_route: HttpRouteExposure | None = None
    """An HTTPRoute of the Gateway API."""


class SelectorOperator(Enum):
    """The comparisons of a selector."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSelectorRequirement:
    """One condition on labels, as in Kubernetes."""

    key: Annotated[str, Length(1, 317)]
    """The label."""
    operator: SelectorOperator
    """How the label and `values` are compared."""
    values: Annotated[tuple[str, ...], Length(0, 64)] = ()
    """With In and NotIn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSelector:
    """Which resources, by their labels; empty: all."""

    match_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that must be as given."""
    match_expressions: Annotated[tuple[LabelSelectorRequirement, ...], Length(0, 32)] = ()
    """Conditions that must all hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """Who may use the service."""

    selector: LabelSelector = field(default_factory=LabelSelector)
    """Which InferenceTenants of the namespace are served; empty: all."""
    anonymous: Anonymous = Anonymous.REJECT
    """What becomes of a request without an identity; Share: all of them are one client."""
    trusted_proxies: Annotated[
        tuple[Annotated[str, Cidr(), Length(1, 64)], ...], Length(0, 64)
    ] = ()
    """Networks whose identity headers are believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """What is wanted."""

    model: Model
    """What is served."""
    engine: Engine = field(default_factory=Engine)
    """The replicas that serve it."""
    scheduling: Scheduling = field(default_factory=Scheduling)
    """How the service is shared."""
    router: Router = field(default_factory=Router)
    """The routers in front of the replicas."""
    autoscaling: Autoscaling | None = None
    """Absent: `engine.replicas` says how many, or whoever owns the scale subresource."""
    slo: Slo = field(default_factory=Slo)
    """What to alert about."""
    exposure: Exposure = field(default_factory=Exposure)
    """How clients outside the cluster reach the router."""
    tenancy: Tenancy = field(default_factory=Tenancy)
    """Who may use the service."""

    @property
    def initial_replicas(self) -> int:
        """How many replicas to start with."""
        if self.autoscaling is not None:
            return max(1, self.autoscaling.min_replicas)
        return 1 if self.engine.replicas is None else self.engine.replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class FairInferenceService:
    """A model served fairly (short name: fis)."""

    api_version: ApiVersion
    """The group and version of this schema."""
    kind: Annotated[str, Pattern("FairInferenceService", "FairInferenceService")]
    """FairInferenceService."""
    metadata: Metadata
    """Name and labels."""
    spec: ServiceSpec
    """What is wanted."""
    status: Mapping[str, object] = field(default_factory=dict)
    """Written by the operator; not read here."""
