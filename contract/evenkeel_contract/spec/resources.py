"""FairInferenceService and InferenceTenant: spec and status of both resources.

The operator writes `status`; users, `kubectl wait` and the HPA read it. No field of a status has a default in the CRD:
an absent field is not known yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Final

from evenkeel_fairshare.replica.deficit import Rejoin

from evenkeel_contract.enginesettings import ISOLATION
from evenkeel_contract.identityheaders import (
    IDENTITY_HEADERS,
    IdentityHeader,
    UndeclaredTenants,
)
from evenkeel_contract.queueorder import (
    DEFAULT_ORDER,
    IsolationSetting,
    QuantumSetting,
    QueueOwner,
    ReplicaPolicyName,
    RequestOrder,
)
from evenkeel_contract.routerconfig import (
    Anonymous,
    CacheSharing,
    FleetPolicyName,
    Name,
    OptionalWeight,
    Weight,
)
from evenkeel_contract.spec.autoscaling import Autoscaling
from evenkeel_contract.spec.credentials import JwtIssuer, SignedKeys
from evenkeel_contract.spec.exposure import Exposure, Hostname
from evenkeel_contract.spec.federation import Federation
from evenkeel_contract.spec.model import Model
from evenkeel_contract.spec.parts import (
    ApiVersion,
    Count,
    DnsName,
    Engine,
    Metadata,
    Router,
    SecretKeyRef,
    Slo,
)
from evenkeel_contract.tokenissuers import MAX_ISSUERS
from evenkeel_contract.values import (
    DNS_LABEL,
    Cidr,
    CountOrPercent,
    Duration,
    Length,
    Pattern,
    Range,
    Timestamp,
    UniqueBy,
)

_DEFAULT_ISOLATION: Final = IsolationSetting.from_plain(f"{ISOLATION:.0%}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTerms:
    """Optional terms of the cost of a request."""

    kv_time: OptionalWeight = 0
    """Weighted tokens for every 1000 tokens that a request holds in the KV cache while it produces one output token. Only tokens
    that it computed count. 0: holding memory costs nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """How clients share the service. A request costs
    inputTokenWeight · extend tokens + outputTokenWeight · output tokens + the terms of `cost`, in weighted tokens."""

    replica_policy: ReplicaPolicyName = ReplicaPolicyName.DLPM
    """Policy that orders the waiting requests within a replica. Only DLPM, VTC, VTCPredict and DRR are fair."""
    queue: QueueOwner = QueueOwner.AUTO
    """Where the waiting requests of a replica are ordered. Engine: in the engine, by Evenkeel's plug-in. Router: in the router, which
    sends the engine little more than it can start. Use it for engines without the plug-in. Auto: in the router for replicas that
    send no reports, in the engine for others."""
    fleet_policy: FleetPolicyName = FleetPolicyName.D2LPM
    """Policy by which the router chooses a replica for a request."""
    input_token_weight: Weight = 1
    """Weight of an extend token: an input token that the replica had to compute because it was not cached."""
    output_token_weight: Weight = 2
    """Weight of an output token."""
    cost: CostTerms = field(default_factory=CostTerms)
    """Optional terms of the cost of a request."""
    client_quantum: QuantumSetting = QuantumSetting.from_plain("Auto")
    """Weighted tokens that a client receives per refill within a replica (DLPM, DRR). Auto: the service of an eighth of a
    second, as the replica measures it. A larger number may keep more cache locality. A smaller number is fairer over
    short times."""
    worker_quantum: QuantumSetting = QuantumSetting.from_plain("Auto")
    """Weighted tokens that a client may send to a replica per refill before its requests go to other replicas too (D2LPM).
    Auto: a request leaves the replica that caches its prompt only if the shorter wait elsewhere is worth computing the
    prompt again. It does not change the fairness bound."""
    isolation: IsolationSetting = _DEFAULT_ISOLATION
    """How far other clients may slow a client whose requests run. While a client has less than its share of a replica's time, prompts
    of clients with more than their share wait. The fair speed of a client is its share of the speed that it has alone. The percentage
    bounds the effect of a large batch: with 50%, such a client keeps at least half of its fair speed. A larger percentage protects
    small clients more and lowers total throughput under load. With 0% a batch has no bound. Off: the replica computes all
    prompts first. Policies FCFS, LPM and HRRN, runtime VLLM, and engines of several GPUs (tensor or pipeline parallel) ignore it."""
    rejoin: Rejoin = Rejoin.KEEP_DEBT
    """Deficit of a client that returns to a replica after being idle. KeepDebt keeps a negative deficit.
    Paper sets it to zero, which a client can exploit."""
    order: RequestOrder = DEFAULT_ORDER
    """Which of the requests that DLPM may admit goes first. LongestMatch: the request with the longest cached prompt. MatchOctaves: the
    same, but long prompts of which little is cached go last. With long prompts this lowers the mean time to first token and loses
    a few cache hits. No fairness bound changes. Other policies ignore it."""


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

    namespace: Annotated[str, DNS_LABEL] | None = None
    """Namespace of the InferenceTenants that may use the service. If not set, it is the service's own. Tenants of another namespace
    serve if their annotation evenkeel.dev/share-tenant lists the service's namespace."""
    selector: LabelSelector = field(default_factory=LabelSelector)
    """Selects the InferenceTenants of that namespace that may use the service. An empty selector selects all."""
    anonymous: Anonymous = Anonymous.REJECT
    """Handling of requests without an identity. Reject answers 401. Share treats all of them as one client."""
    trusted_proxies: Annotated[
        tuple[Annotated[str, Cidr(), Length(1, 64)], ...], Length(0, 64)
    ] = ()
    """Networks (CIDR) of trusted proxies. The router accepts identity headers and `X-Forwarded-For` from these networks only."""
    cache_sharing: CacheSharing = CacheSharing.TENANT
    """Who shares cached prefixes. A request with a cached prefix is answered sooner, so response times can show whether
    another client sent the same prompt. Tenant hides prompts from other tenants. Client hides them from all other clients. Service shares all
    prefixes: choose it if all tenants may know each other's prompts."""
    identity_headers: Annotated[tuple[IdentityHeader, ...], Length(0, IDENTITY_HEADERS)] = ()
    """Headers by which trusted proxies name the tenant and the client. The first entry whose headers a request has decides, and the
    request's key is not read. If empty, `x-evenkeel-client` and its aliases name the client of a request without a key."""
    undeclared_tenants: UndeclaredTenants = UndeclaredTenants.REJECT
    """Handling of a request whose tenant has no InferenceTenant. Reject answers 403. Share makes all such tenants clients of one
    tenant, `undeclared`. Accept makes each of them a tenant."""
    undeclared_tenant_weight: Weight = 1
    """Weight of each tenant that is accepted without being declared; with Share, of the tenant `undeclared`."""
    signed_keys: SignedKeys | None = None
    """API keys that name their client themselves. If not set, there are none."""
    jwt: Annotated[
        tuple[JwtIssuer, ...], UniqueBy(("issuer", "audience")), Length(0, MAX_ISSUERS)
    ] = ()
    """Issuers whose tokens identify clients."""


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
    federation: Federation | None = None
    """Other cells of the service, such as other clusters. What each tenant receives in all of them together follows its weight. If not
    set, this service is all of it."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client of the tenant that has its own weight."""

    name: Name
    """Name of the client, unique within the tenant."""
    weight: Weight = 1
    """Share of the client relative to other clients of the tenant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key that identifies a client."""

    name: Name
    """Name of the key, used in logs and for key rotation. It is not the key itself."""
    client: Name
    """Name of the client that the key identifies. It must be one of `spec.clients`."""
    secret_ref: SecretKeyRef
    """Secret entry that holds the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRateLimits:
    """Limits of one client. They count at each router."""

    requests_per_minute: Count = 0
    """Maximum number of requests per minute. Each prompt and each answer to it (`n`) counts. A router answers further requests with status 429. 0 means no limit."""
    tokens_per_minute: Count = 0
    """Maximum number of tokens per minute, input and output together. A router answers further requests with status 429. 0 means no limit."""
    max_concurrent: Count = 0
    """Maximum number of requests in flight. Each prompt and each answer to it (`n`) counts. A router answers further requests with status 429. 0 means no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRateLimits:
    """Limits of the whole tenant. They count over all routers of a service."""

    requests_per_minute: Count = 0
    """Maximum number of requests per minute, over all routers. Each prompt and each answer to it (`n`) counts. A router answers further requests with status 429. 0 means no limit."""
    tokens_per_minute: Count = 0
    """Maximum number of tokens per minute, input and output together, over all routers. A router answers further requests with status 429. 0 means no limit."""
    max_concurrent: Count = 0
    """Maximum number of requests in flight, over all routers. Each prompt and each answer to it (`n`) counts. A router answers further requests with status 429. 0 means no limit."""
    burst: CountOrPercent = CountOrPercent.from_plain("10%")
    """Requests, and tokens, that the tenant may use at once after a pause: a percentage of each limit per minute, or a number. At least 1."""
    default_client: ClientRateLimits | None = None
    """Limits of each client of the tenant beside the tenant's own. Ceilings of a signed key replace them. If not set, clients have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSpec:
    """The desired state of a tenant."""

    weight: Weight = 1
    """Share of the tenant relative to other tenants of the service. It does not depend on the number of its clients."""
    default_client_weight: Weight = 1
    """Weight of clients that are not in `clients`."""
    clients: Annotated[tuple[Client, ...], UniqueBy(("name",)), Length(0, 1000)] = ()
    """Clients that have their own weight, and the clients that API keys name."""
    api_keys: Annotated[tuple[ApiKey, ...], UniqueBy(("name",)), Length(0, 1000)] = ()
    """API keys that identify clients."""
    limits: TenantRateLimits = field(default_factory=TenantRateLimits)
    """Limits of the whole tenant, over all routers of a service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceTenant:
    """InferenceTenant is a tenant that shares the services of its namespace. Administrators own it, not the tenant."""

    api_version: ApiVersion
    """Group and version of this schema."""
    kind: Annotated[str, Pattern("InferenceTenant", "InferenceTenant")]
    """Kind of the resource: InferenceTenant."""
    metadata: Metadata
    """Name, labels and annotations."""
    spec: TenantSpec = field(default_factory=TenantSpec)
    """The desired state, written by administrators."""
    status: Mapping[str, object] = field(default_factory=dict)
    """The observed state, written by the operator."""


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
    PLUGIN_INACTIVE = "PluginInactive"  # an engine does not fit the plug-in
    MODEL_CACHED = "ModelCached"  # the volume that a Job fills has all files of the model
    SPEC_VALID = "SpecValid"  # False: the last valid spec is in use
    RECONCILING = "Reconciling"  # as kstatus has it: the newest spec is being applied
    STALLED = "Stalled"  # as kstatus has it: the newest spec cannot be applied


class TenantCondition(Enum):
    """The conditions of an InferenceTenant."""

    READY = "Ready"  # the routers of its services accept its API keys
    SPEC_VALID = "SpecValid"
    STALLED = "Stalled"  # as kstatus has it: routers reject keys, or the newest spec, until a spec or a Secret changes


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
    """Fairness figures of the last minute, without client names."""

    share_error_percent: Count | None = None
    """How much less service than its share the least served backlogged client got, in percent of its share."""
    max_lead: Duration | None = None
    """Largest lead of the most served backlogged client over the least served one, in time of fair service. Not set without a lead."""
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
    hosts: Annotated[tuple[Hostname, ...], Length(0, 16)] = ()
    """Hosts of the Ingress or HTTPRoute. No service of another namespace gets them, unless annotation evenkeel.dev/share-host allows it."""
    image: Annotated[str, Length(1, 1024)] | None = None
    """Engine image in use. It stays the same until the spec or annotation evenkeel.dev/upgrade changes it."""
    available_image: Annotated[str, Length(1, 1024)] | None = None
    """The operator's default engine image, if it differs from `image`. Annotation evenkeel.dev/upgrade switches to it."""
    router: RouterStatus | None = None
    """The observed routers."""
    conditions: Conditions = ()
    """Conditions of types Ready, EnginesReady, RouterReady, ScalingActive, Progressing, Degraded, PluginInactive, ModelCached, SpecValid,
    Reconciling and Stalled."""
    fairness: FairnessStatus | None = None
    """Fairness figures of the last minute. This version of the operator does not set them; routers export them as metrics."""
    scaling: ScalingStatus | None = None
    """Last decision of the scaler. Not set without `spec.autoscaling`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedBy:
    """A FairInferenceService that the tenant may use."""

    name: DnsName
    """Name of the service; with its namespace, as in `llama.team-ml`, if that is not the tenant's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantStatus:
    """The observed state of a tenant."""

    observed_generation: Generation | None = None
    """Generation of the spec that this status describes."""
    conditions: Conditions = ()
    """Conditions of types Ready, SpecValid and Stalled."""
    services: Annotated[tuple[ServedBy, ...], UniqueBy(("name",)), Length(0, 1000)] = ()
    """Services that select this tenant."""
