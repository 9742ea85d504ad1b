"""The parts of a FairInferenceService's spec: model, engine, router and objectives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, ClassVar, Final

from evenkeel_contract.names import API_VERSION
from evenkeel_contract.qoeconfig import Delivery
from evenkeel_contract.queueorder import OnMismatch
from evenkeel_contract.recordingconfig import RecordingStart
from evenkeel_contract.routerconfig import PrefixMode, StateStore, VolatileLines
from evenkeel_contract.tracingconfig import TracingConfig
from evenkeel_contract.values import (
    DNS_LABEL,
    DNS_NAME,
    FIELD_NAME,
    PRINTABLE,
    CountOrPercent,
    Duration,
    Length,
    Pattern,
    Quantity,
    Range,
    UniqueBy,
)

MAX_RESOURCE_NAME: Final = (
    40  # generated objects append suffixes, and Kubernetes allows 63 characters
)

Count = Annotated[int, Range(0, 2**31 - 1)]
Positive = Annotated[int, Range(1, 2**31 - 1)]
Percent = Annotated[int, Range(1, 100)]
DnsName = Annotated[str, DNS_NAME, Length(1, 253)]
Text = Annotated[str, Length(1, 1024), PRINTABLE]
ApiVersion = Annotated[str, Pattern(API_VERSION.replace(".", r"\."), API_VERSION)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The parts of Kubernetes' metadata that Evenkeel reads. Other parts are accepted and ignored."""

    OPEN: ClassVar[bool] = True
    """Unknown fields are accepted: a cluster adds its own."""

    name: Annotated[str, DNS_LABEL, Length(1, MAX_RESOURCE_NAME)]
    """The name, unique among resources of this kind in the namespace."""
    namespace: Annotated[str, DNS_LABEL] = "default"
    """The namespace. A service uses only tenants of its own namespace."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels for selectors."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations. Selectors do not use them."""
    generation: Count = 0
    """A number that the API server increases with every change of the spec."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretKeyRef:
    """Refers to one entry of a Secret in the same namespace."""

    name: DnsName
    """Name of the Secret. On Kubernetes it needs the label evenkeel.dev/use=true."""
    key: Annotated[str, Pattern(r"[-._a-zA-Z0-9]{1,253}", "a key of a Secret")]
    """Key of the entry in the Secret's data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTemplate:
    """Changes the generated pods by a strategic merge. The API server checks the result."""

    metadata: Mapping[str, object] = field(default_factory=dict)
    """Labels and annotations to add to the pods."""
    spec: Mapping[str, object] = field(default_factory=dict)
    """Fields of the pod spec to add or replace, such as node selector, tolerations, environment or resources."""


class Runtime(Enum):
    """The server that a replica runs."""

    SGLANG = "SGLang"
    VLLM = "VLLM"
    SIMULATOR = "Simulator"  # answers like SGLang, with times from a cost model; needs no GPU
    EXTERNAL = "External"  # pods that exist already and belong to another owner


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClaim:
    """Devices that a driver of dynamic resource allocation (DRA) gives each replica."""

    name: Annotated[str, DNS_LABEL, Length(1, 63)]
    """Name of the claim within the pod."""
    resource_claim_template_name: DnsName
    """ResourceClaimTemplate of the service's namespace. Each replica gets a claim of its own."""
    request: Annotated[str, DNS_LABEL, Length(1, 63)] | None = None
    """Request of the claim whose devices the engine gets. If not set, it gets those of all requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """GPUs of one replica."""

    resource_name: Annotated[str, Length(1, 253)] = "nvidia.com/gpu"
    """Extended resource that a replica requests, such as `nvidia.com/gpu`, a MIG device or a time slice. Not requested with `claims`."""
    count: Positive = 1
    """GPUs per replica. The model is split over them by tensor parallelism."""
    claims: Annotated[tuple[DeviceClaim, ...], UniqueBy(("name",)), Length(0, 8)] = ()
    """Devices by dynamic resource allocation (Kubernetes 1.34 or newer), in place of the extended resource. They must hold `count` GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Pace of a rollout."""

    max_surge: CountOrPercent = CountOrPercent.from_plain(1)
    """Replicas that a rollout may add above the desired number, as a number or a percentage."""
    max_unavailable: CountOrPercent = CountOrPercent.from_plain(0)
    """Replicas that a rollout may remove below the desired number, as a number or a percentage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSelector:
    """Selects the pods of the namespace that have all these labels."""

    match_labels: Mapping[str, str]
    """Labels that a pod must have, with their values; at least one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleTarget:
    """The object that sets the number of external pods, in the same namespace. It must have the subresource `/scale`."""

    api_version: Annotated[
        str, Pattern(r"([a-z0-9.-]+/)?[a-z0-9]+", "group/version, such as apps/v1"), Length(1, 253)
    ]
    """Group and version of the object, such as `apps/v1`."""
    kind: Annotated[str, Pattern(r"[A-Z][a-zA-Z0-9]*", "a kind, such as Deployment"), Length(1, 63)]
    """Kind of the object, such as `Deployment`."""
    name: DnsName
    """Name of the object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class External:
    """Engines that exist already. The operator creates routers in front of them and never changes their pods."""

    selector: PodSelector | None = None
    """Selects the engines' pods. Set it with `port`, or set `inferencePool` instead of both."""
    port: Annotated[int, Range(1, 65535)] | None = None
    """Port of the engines' HTTP server. Set it with `selector`."""
    inference_pool: DnsName | None = None
    """Name of an InferencePool of the namespace (inference.networking.k8s.io/v1). The service takes its selector and its port."""
    api_key_secret_ref: SecretKeyRef | None = None
    """Secret entry with the bearer key that the engines require. If not set, routers send no key."""
    scale_target_ref: ScaleTarget | None = None
    """Object through which `spec.autoscaling` sets the number of replicas. Required with `spec.autoscaling`. Its owner allows this by the label evenkeel.dev/use=true."""

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of the pods; empty if only the InferencePool has them."""
        return {} if self.selector is None else self.selector.match_labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The engine replicas, one pod each."""

    runtime: Runtime = Runtime.SGLANG
    """Server that each replica runs. Simulator needs no GPU and generates no real text. External: pods that exist already."""
    external: External | None = None
    """The pods of runtime External. Required with runtime External and refused with another runtime."""
    image: Text | None = None
    """Container image of the replicas. If not set, the operator's default image is used.

    The operator pins the default when it first sees the service and keeps it until annotation evenkeel.dev/upgrade is set."""
    replicas: Count | None = None
    """Number of replicas. Set either this field or `spec.autoscaling`. If neither is set, the service has 1 replica."""
    gpu: Gpu = field(default_factory=Gpu)
    """GPUs of each replica. Runtime Simulator has none; their count weighs its time with `shareAcross` of a gateway."""
    args: Annotated[tuple[Text, ...], Length(0, 128)] = ()
    """Additional flags of the engine, each as one entry `--flag=value`. Flags that Evenkeel sets are refused."""
    on_mismatch: OnMismatch = OnMismatch.GATE
    """What an engine does whose version does not fit the plug-in. Gate: it starts with its own order, routers order its queue, and
    condition PluginInactive is True. Refuse: it stops. With `scheduling.queue: Engine`, Gate has the effect of Refuse."""
    rollout: Rollout = field(default_factory=Rollout)
    """Pace at which a rollout replaces replicas."""
    template: PodTemplate = field(default_factory=PodTemplate)
    """Changes to the generated engine pods, applied by a strategic merge."""

    @property
    def pods_of_others(self) -> External | None:
        """The pods of another owner; None if the operator creates the engines."""
        return self.external if self.runtime is Runtime.EXTERNAL else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """How the router matches prompts with the prefixes that replicas have cached."""

    mode: PrefixMode = PrefixMode.TEXT
    """What the router compares. Text compares blocks of bytes and corrects itself by the replicas' reports.
    Tokens compares the engine's own token blocks, which is exact."""
    text_block_bytes: Annotated[int, Range(16, 65536)] = 256
    """Length of a block in mode Text, in bytes. Shorter blocks find more matches, longer blocks use less memory."""
    volatile_lines: VolatileLines = VolatileLines.REMOVE
    """What engines get of lines that agents put before the system prompt for billing by their vendor, such as
    `x-anthropic-billing-header:`. They change with every request, so the engine's cache has no prefix of the prompt. Remove takes
    them out of the prompt. Keep sends them on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """Volume of store File."""

    size: Quantity = Quantity.from_plain("1Gi")
    """Size of the volume."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisState:
    """Server of store Redis."""

    url_secret_ref: SecretKeyRef
    """Secret entry with the server's address, such as `redis://:password@host:6379/0`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where the ledger, the record of what each client received, is kept when a router restarts."""

    store: StateStore = StateStore.PEERS
    """Place that keeps the ledger: the other routers (Peers), a volume (File) or a Redis server (Redis).
    File needs exactly one router."""
    file: FileState | None = None
    """Volume of store File. Set it with store File only."""
    redis: RedisState | None = None
    """Server of store Redis. Required with store Redis and refused with another store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterLimits:
    """Limits of one request and of one client."""

    max_body_size: Quantity = Quantity.from_plain("16Mi")
    """Largest request body in bytes. The router refuses a larger one with status 413."""
    queue_timeout: Duration = Duration.from_plain("120s")
    """Longest wait of a request while no replica can take it. Then the router answers 503."""
    first_token_timeout: Duration = Duration.from_plain("120s")
    """Longest wait for the first content of a streamed answer. Then the router answers 504."""
    answer_timeout: Duration = Duration.from_plain("420s")
    """Longest time of an answer that is not streamed. Then the router answers 504. Clients of OpenAI and Anthropic send a request again after 600 s."""
    heartbeat: Duration | None = None
    """Time after which a waiting stream begins with comments, or with pings on /v1/messages, one in each such time. Set it behind load balancers that close silent connections. If not set, a client receives nothing before the first content."""
    keep_alive_timeout: Duration = Duration.from_plain("620s")
    """Longest time that a client's connection stays open without a request. It must be longer than the same timeout of a load balancer in front of the router."""
    activation_timeout: Duration = Duration.from_plain("600s")
    """Longest wait of a request for the first replica of a service at zero. Then the router answers 503."""
    max_concurrent_per_client: Count = 0
    """Maximum number of requests of one client in flight at each router. Each prompt and each answer to it (`n`) counts. The router answers further requests with status 429. 0 means no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Recording of traffic without text: lengths, times, and salted hashes of prompts."""

    start: RecordingStart = RecordingStart.ON_REQUEST
    """When routers record: after `evenkeel record start` (OnRequest), or from their start (Always)."""
    max_size: Quantity = Quantity.from_plain("64Mi")
    """Largest size of the recording of each router, in bytes. The oldest requests are dropped first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Qoe:
    """What users expect of a streamed answer: its quality of experience (QoE) is measured against it."""

    expected_ttft: Duration = Duration.from_plain("1s")
    """Time in which users expect the first token."""
    expected_itl: Duration = Duration.from_plain("200ms")
    """Time in which users read one token."""
    delivery: Delivery = Delivery.AS_GENERATED
    """When routers send a token on: at once (AsGenerated), or not before the previous one is read (Paced)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """The routers, which send requests to the replicas."""

    replicas: Positive | None = None
    """Number of routers. If not set, it is 1 with store File and 2 otherwise."""
    template: PodTemplate = field(default_factory=PodTemplate)
    """Changes to the generated router pods, applied by a strategic merge."""
    prefix: Prefix = field(default_factory=Prefix)
    """How the router matches prompts with cached prefixes."""
    state: State = field(default_factory=State)
    """Where the ledger, the record of what each client received, is kept when a router restarts."""
    limits: RouterLimits = field(default_factory=RouterLimits)
    """Limits of one request and of one client."""
    allow_fields: Annotated[tuple[Annotated[str, FIELD_NAME], ...], Length(0, 64)] = ()
    """Fields of request bodies that routers pass to engines although they are not on their list, such as priority. Other fields that are not on the list are removed."""
    tracing: TracingConfig | None = None
    """Traces of requests, sent to an OpenTelemetry collector. If not set, there are none."""
    recording: Recording | None = None
    """Recording of traffic for `evenkeel plan`. If not set, routers record nothing."""
    qoe: Qoe | None = None
    """Quality of experience of streams. If not set, it is not measured, and streams are not paced."""

    @property
    def count(self) -> int:
        """The desired number of routers."""
        return self.replicas or (1 if self.state.store is StateStore.FILE else 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class TtftObjective:
    """Objective for time to first token, over requests of clients within their share."""

    threshold: Duration
    """Time limit for the first token. A request that meets it is good."""
    objective_percent: Annotated[int, Range(1, 99)] = 99
    """Percentage of requests that must be good."""
    window: Duration = Duration.from_plain("720h")
    """Period over which the percentage is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FairnessObjective:
    """Objective for fairness between backlogged clients."""

    max_lead: Duration = Duration.from_plain("60s")
    """Largest lead of the most served backlogged client over the least served one, in time of fair service. An alert fires above it."""
    max_share_error_percent: Percent = 15
    """How much less service than its share a backlogged client may get, in percent of its share. An alert fires above it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Service level objectives. The operator generates alerts from them."""

    ttft: TtftObjective | None = None
    """Objective for time to first token. If not set, there is no such objective and no alert."""
    fairness: FairnessObjective = field(default_factory=FairnessObjective)
    """Objective for fairness between backlogged clients."""
    alert_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels to add to every alert of this service, for example to route it."""
