"""RouterConfig: the configuration of a router. The operator and `evenkeel up` write it, the router reads it.

It is a JSON document. The router reloads it after a change; if the new one is invalid, the router keeps the last valid
one. Durations are seconds, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Final

from evenkeel_fairshare.replica.deficit import Rejoin

from evenkeel_contract.federationconfig import FederationConfig
from evenkeel_contract.identityheaders import SomeHeaders, UndeclaredTenants
from evenkeel_contract.key import LEAST_WEIGHT, MAX_NAME_BYTES, MAX_WEIGHT
from evenkeel_contract.kvevents import PageHash
from evenkeel_contract.names import ADMIN_PORT, PROBE_PORT, TRAFFIC_PORT
from evenkeel_contract.qoeconfig import QoeConfig
from evenkeel_contract.queueorder import QueueOwner, ReplicaPolicyName, RequestOrder
from evenkeel_contract.recordingconfig import RecordingConfig
from evenkeel_contract.signedkeys import SignedKeysConfig
from evenkeel_contract.tokenissuers import Issuers
from evenkeel_contract.tracingconfig import TracingConfig
from evenkeel_contract.values import (
    DNS_NAME,
    FIELD_NAME,
    ORIGIN,
    PORT,
    PRINTABLE,
    SHA256,
    Cidr,
    Length,
    Range,
    UniqueBy,
    Url,
)

Weight = Annotated[int, Range(1, MAX_WEIGHT)]
TenantWeight = Annotated[float, Range(LEAST_WEIGHT, MAX_WEIGHT)]
OptionalWeight = Annotated[int, Range(0, MAX_WEIGHT)]
Count = Annotated[int, Range(0, 2**53)]
Positive = Annotated[int, Range(1, 2**53)]
Seconds = Annotated[float, Range(above=0, maximum=7 * 24 * 3600)]
Name = Annotated[str, Length(1, MAX_NAME_BYTES), PRINTABLE]
Port = Annotated[int, PORT]

SIMULATOR_TOKENIZER: Final = "simulator"
"""The `tokenizer` of simulated replicas, which needs no files (`simulatedprompt`)."""
PAGE_TOKENS: Final = 16
"""Usual number of tokens of a page, and the simulator's default."""


class FleetPolicyName(Enum):
    """The fleet policies that the router implements."""

    D2LPM = "D2LPM"
    ROUND_ROBIN = "RoundRobin"
    PER_CLIENT_ROUND_ROBIN = "PerClientRoundRobin"
    LEAST_LOADED = "LeastLoaded"


class PrefixMode(Enum):
    """Unit in which the router compares prefixes (design §5.3)."""

    TEXT = "Text"
    TOKENS = "Tokens"


class VolatileLines(Enum):
    """What engines get of the lines that agents put before a system prompt for the API of their vendor."""

    REMOVE = "Remove"
    KEEP = "Keep"


class StateStore(Enum):
    """Where the ledger is kept when a router restarts (design R8)."""

    PEERS = "Peers"  # in the other routers and the replicas
    FILE = "File"  # on a volume of one router
    REDIS = "Redis"  # in a server that speaks the protocol of Redis


class AtZero(Enum):
    """Handling of a request while no replica exists or starts."""

    WAIT = "Wait"  # wait up to queueTimeoutS for a replica
    ACTIVATE = "Activate"  # wait up to activationTimeoutS and request a replica from the operator
    REFUSE = "Refuse"  # answer 503 at once


class ShareAcross(Enum):
    """Where a tenant's weight holds, if a router has several services (R22)."""

    NONE = "None"  # inside each service
    GATEWAY = "Gateway"  # over all services, in engine seconds


class Anonymous(Enum):
    """Handling of a request without an identity."""

    REJECT = "Reject"
    SHARE = "Share"  # all of them are one client


class CacheSharing(Enum):
    """Who shares cached prefixes: within this border a prompt is computed once."""

    SERVICE = "Service"
    TENANT = "Tenant"
    CLIENT = "Client"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenConfig:
    """Addresses that the router listens on. Port 0 lets the system choose a port."""

    host: Annotated[str, Length(1, 253), PRINTABLE] = "127.0.0.1"
    traffic_port: Port = TRAFFIC_PORT
    probe_port: Port = PROBE_PORT
    admin_port: Port = ADMIN_PORT


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingConfig:
    """Settings of the fleet policy and of the router's gate, from `spec.scheduling` (design §3)."""

    fleet_policy: FleetPolicyName = FleetPolicyName.D2LPM
    queue: QueueOwner = QueueOwner.ENGINE
    """Where the waiting requests of a replica are ordered (R12)."""
    replica_policy: ReplicaPolicyName = ReplicaPolicyName.DLPM
    """Policy of the gate."""
    rejoin: Rejoin = Rejoin.KEEP_DEBT
    """Deficit at the gate of a client that returns after being idle (R4)."""
    order: RequestOrder | None = None
    """Which of the requests that DLPM may admit goes first at the gate. None: MatchOctaves. Version 0.2 does not know the field."""
    input_token_weight: Weight = 1
    output_token_weight: Weight = 2
    kv_time: OptionalWeight = 0
    """Weighted tokens for 1000 KV tokens held while one output token is made."""
    worker_quantum: Positive | None = None
    """Q^w in weighted tokens: how much a client may send to a replica per refill. None: it follows the prompts (R2)."""
    client_quantum: Positive | None = None
    """Q^u of the replicas and of the gate in weighted tokens: the largest credit that a seed can carry (R5). None: each replica
    measures it."""
    max_debt: Positive | None = None
    """U in weighted tokens: the largest charge of one batch to a client; None: the value that replicas report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixConfig:
    """How the router matches prompts with cached prefixes."""

    mode: PrefixMode = PrefixMode.TEXT
    text_block_bytes: Annotated[int, Range(16, 65536)] = 256
    """Bytes of a block in mode Text, and in mode Tokens for prompts that have no tokens."""
    tokenizer: Annotated[str, Length(1, 4096), PRINTABLE] | None = None
    """Absolute path of the model's folder, or `simulator`, for mode Tokens. None: the router requests it from replicas."""
    page_tokens: Annotated[int, Range(1, 65536)] = PAGE_TOKENS
    """Tokens of a page in the engines' cache (SGLang's `--page-size`, vLLM's `--block-size`)."""
    page_hash: PageHash = PageHash.SGLANG
    """How the engines name the pages of their cache; used with `tokenizer`. vLLM needs `--prefix-caching-hash-algo
    sha256_cbor`."""
    max_blocks: Annotated[int, Range(2, 2**53)] = 2_000_000
    """Most blocks in the prefix index over all replicas; the least recently used are dropped first."""
    volatile_lines: VolatileLines = VolatileLines.REMOVE
    """Whether engines get agents' lines of billing. Prefixes never have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """Limits of one request and of one client."""

    max_body_bytes: Positive = 16 * 1024 * 1024
    max_output_tokens: Positive = 131_072
    """Largest `max_tokens` of a request; the router refuses a larger one."""
    queue_timeout_s: Seconds = 120.0
    """Longest wait of a request while no replica can take it, and at the gate (R12)."""
    activation_timeout_s: Seconds = 600.0
    """Longest wait of a request for the first replica of a service at zero, with `atZero: Activate`."""
    first_token_timeout_s: Seconds = 120.0
    """Longest wait of a stream for its first content (R19)."""
    answer_timeout_s: Seconds = 420.0
    """Longest time of an answer that is not streamed."""
    heartbeat_s: Seconds | None = None
    """Interval of comments or pings to clients whose stream waits."""
    keep_alive_timeout_s: Seconds = 620.0
    """Longest time that a client's connection stays open without a request."""
    idle_timeout_s: Seconds = 300.0
    """Longest silence in a stream, from the replica or from a client that does not read."""
    max_concurrent_per_client: Count = 0
    """Most sequences (prompts times answers) of one client in flight at this router. 0: no limit."""
    max_concurrent: Positive = 4096
    """Most sequences in flight at this router."""
    max_attempts: Annotated[int, Range(1, 16)] = 3
    """Most attempts of one request, including the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Limits of one client, at each router. 0: no limit."""

    requests_per_minute: Count = 0
    tokens_per_minute: Count = 0
    max_concurrent: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits:
    """Limits of one tenant, over all routers of the service. 0: no limit."""

    requests_per_minute: Count = 0
    tokens_per_minute: Count = 0
    max_concurrent: Count = 0
    burst_requests: Positive | None = None
    """Requests that may start at once after a pause. None: a tenth of `requests_per_minute`."""
    burst_tokens: Positive | None = None
    """Tokens that may be used at once after a pause. None: a tenth of `tokens_per_minute`."""
    default_client: ClientLimits | None = None
    """Limits of each client, which ceilings of a signed key replace. None: there are none. Version 0.3 does not know the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """One named client of a tenant."""

    name: Name
    weight: Weight = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKeyConfig:
    """An API key by its hash; the configuration does not contain the key itself."""

    name: Name
    client: Name
    sha256: Annotated[str, SHA256]
    """SHA-256 of the key in lower-case hexadecimal digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantConfig:
    """One tenant (InferenceTenant)."""

    namespace: Name
    name: Name
    weight: TenantWeight = 1
    """The tenant's weight, with three decimals at most."""
    default_client_weight: Weight = 1
    clients: Annotated[tuple[ClientConfig, ...], UniqueBy(("name",))] = ()
    api_keys: Annotated[tuple[ApiKeyConfig, ...], UniqueBy(("name",))] = ()
    limits: TenantLimits = field(default_factory=TenantLimits)

    def __post_init__(self) -> None:
        if self.weight == int(self.weight):  # routers before 0.3 read no other number
            object.__setattr__(self, "weight", int(self.weight))


@dataclass(frozen=True, slots=True, kw_only=True)
class TenancyConfig:
    """The clients that may use the service."""

    anonymous: Anonymous = Anonymous.REJECT
    trusted_proxies: tuple[Annotated[str, Cidr()], ...] = ()
    """Networks (CIDR) whose identity headers and `X-Forwarded-For` the router accepts."""
    cache_sharing: CacheSharing = CacheSharing.TENANT
    """Who shares cached prefixes. Engines get a salt for each tenant or client, derived from the hash of the admin token."""
    tenants: Annotated[tuple[TenantConfig, ...], UniqueBy(("namespace", "name"))] = ()
    # Version 0.3 does not know the fields below.
    identity_headers: SomeHeaders | None = None
    """Headers from trusted proxies that name the client; the first entry that a request has decides. None:
    `x-evenkeel-client` and its aliases."""
    undeclared_tenants: UndeclaredTenants | None = None
    """Handling of requests whose tenant is not in `tenants`. None: Reject."""
    undeclared_tenant_weight: Weight | None = None
    """Weight of each undeclared tenant (Accept), or of all together (Share). None: 1."""
    signed_keys: SignedKeysConfig | None = None
    """API keys that name their client themselves. None: there are none."""
    jwt: Issuers | None = None
    """Issuers whose tokens identify clients. None: there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfig:
    """One replica of a static fleet."""

    name: Name
    url: Annotated[str, Url(bare=True)]
    """`http://host:port`, without a path."""
    reports: Annotated[str, Url(("tcp",), bare=True)] | None = None
    """`tcp://host:port` of its reports port; None if it has none."""
    kv_events: Annotated[str, Url(("tcp",), bare=True)] | None = None
    """`tcp://host:port` of its KV events in mode Tokens; None if it publishes none."""
    kv_replay: Annotated[str, Url(("tcp",), bare=True)] | None = None
    """`tcp://host:port` of the replay of KV events. Required with `kv_events`, to fill gaps."""
    api_key: Annotated[str, Length(1, 4096), PRINTABLE] | None = None
    """Bearer key that the replica requires; None if it requires none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKeyConfig:
    """An API key of the engines with its id."""

    id: Name
    """Id of the key: the value of the pod label `evenkeel.dev/engine-key`."""
    key: Annotated[str, Length(1, 4096), PRINTABLE]
    """The bearer key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Discovery of replicas and peers on a Kubernetes cluster, in the service's namespace."""

    engines: Annotated[str, DNS_NAME, Length(1, 253)]
    """The headless Service whose endpoints are the replicas."""
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels by which the replicas' pods are found. Empty: the labels of the operator's own pods."""
    peers: Annotated[str, DNS_NAME, Length(1, 253)] | None = None
    """The headless Service whose endpoints are the routers of this service, this one included."""
    api_key: Annotated[str, Length(1, 4096), PRINTABLE] | None = None
    """Bearer key for replicas whose pods have no key label."""
    api_keys: Annotated[tuple[EngineKeyConfig, ...], UniqueBy(("id",))] = ()
    """Keys for replicas whose pods have a key label. During a key rotation, engines have different keys."""
    revocations: Annotated[str, DNS_NAME, Length(1, 253)] | None = None
    """The ConfigMap with revocations of signed keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConfig:
    """Another router of the service."""

    name: Name
    url: Annotated[str, Url(bare=True)]
    """`http://host:port` of its admin port, without a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateConfig:
    """Where the ledger is kept when this router restarts (R8). With every store, routers exchange it with their peers."""

    store: StateStore = StateStore.PEERS
    file: Annotated[str, Length(1, 4096), PRINTABLE] | None = None
    """Path of the ledger's file for store File. Its folder must exist."""
    redis_url: Annotated[str, Length(1, 4096), PRINTABLE] | None = None
    """Address of the server for store Redis, such as `redis://:password@host:port/0`."""
    save_interval_s: Seconds = 10.0
    peers: Annotated[tuple[PeerConfig, ...], UniqueBy(("name",))] = ()
    """All other routers. The list must be complete: routers compact totals that all of them have (R3)."""
    peer_token: Annotated[str, Length(1, 4096), PRINTABLE] | None = None
    """Bearer token for the peers' admin ports; None if they require none."""
    exchange_interval_s: Seconds = 1.0
    """Interval of the exchange with each peer."""
    revocations: Annotated[str, Length(1, 4096), PRINTABLE] | None = None
    """Path of the file with revocations of signed keys. Its folder must exist. Required with `tenancy.signedKeys`, unless `cluster`
    is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """One of several services behind a router: its model, its fleet, its scheduling. Fields are those of a RouterConfig."""

    service: Name
    """The FairInferenceService's name."""
    model: Name
    """Name by which the replicas know the model."""
    names: Annotated[tuple[Name, ...], Length(0, 128)] = ()
    """Names that clients send; the router replaces them by `model`. Empty: clients send `model` or one of `modelAliases`."""
    model_aliases: Annotated[tuple[Name, ...], Length(0, 128)] = ()
    """Other names that replicas know, unless `names` is set."""
    adapters: Annotated[tuple[Annotated[str, Length(1, 253), PRINTABLE], ...], Length(0, 128)] = ()
    adapters_per_batch: Positive = 8
    allow_fields: Annotated[tuple[Annotated[str, FIELD_NAME], ...], Length(0, 64)] = ()
    tenants: tuple[Name, ...] | None = None
    """Tenants that may use the model. None: all of the router's tenants."""
    fallback: Annotated[tuple[Name, ...], Length(0, 8)] = ()
    """Names of other models that serve a request in this order, if this one has no replica or is overloaded."""
    gpus: Positive | None = None
    """GPUs of each replica, with `shareAcross: Gateway`. None: 1."""
    scheduling: SchedulingConfig = field(default_factory=SchedulingConfig)
    prefix: PrefixConfig = field(default_factory=PrefixConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    """Limits of one request. What is in flight, and how large a body is, the router's own `limits` bound."""
    replicas: Annotated[tuple[ReplicaConfig, ...], UniqueBy(("name",))] = ()
    cluster: ClusterConfig | None = None
    at_zero: AtZero = AtZero.WAIT
    recording: RecordingConfig | None = None
    qoe: QoeConfig | None = None
    ttft_threshold_s: Annotated[float, Range(above=0)] | None = None
    max_lead_s: Annotated[float, Range(above=0)] | None = None
    max_share_error_percent: Annotated[int, Range(0, 100)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """The configuration of a router."""

    namespace: Name
    service: Name
    """The FairInferenceService's name."""
    model: Name
    """Model name that clients send; the router answers 404 for another model."""
    model_aliases: Annotated[tuple[Name, ...], Length(0, 128)] = ()
    """Other names of the model. Replicas get a request with the name that the client sent."""
    adapters: Annotated[tuple[Annotated[str, Length(1, 253), PRINTABLE], ...], Length(0, 128)] = ()
    """Names of the LoRA adapters that replicas serve besides the model."""
    allow_fields: Annotated[tuple[Annotated[str, FIELD_NAME], ...], Length(0, 64)] = ()
    """Fields of bodies that pass without being listed."""
    adapters_per_batch: Positive = 8
    """How many adapters a replica has loaded at a time."""
    listen: ListenConfig = field(default_factory=ListenConfig)
    scheduling: SchedulingConfig = field(default_factory=SchedulingConfig)
    prefix: PrefixConfig = field(default_factory=PrefixConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    tenancy: TenancyConfig = field(default_factory=TenancyConfig)
    state: StateConfig = field(default_factory=StateConfig)
    replicas: Annotated[tuple[ReplicaConfig, ...], UniqueBy(("name",))] = ()
    """The replicas of a static fleet."""
    cluster: ClusterConfig | None = None
    """Discovery of the fleet on a cluster. It excludes `replicas`."""
    at_zero: AtZero = AtZero.WAIT
    """Handling of a request while no replica exists or starts."""
    recording: RecordingConfig | None = None
    """Recording of traffic. None: the router records nothing, and cannot be asked to."""
    qoe: QoeConfig | None = None
    """Quality of experience of streams. None: it is not measured, and streams are not paced."""
    cors_origins: Annotated[tuple[Annotated[str, ORIGIN], ...], Length(0, 64)] = ()
    """Origins of web pages that may send requests; `*` allows all. Empty: the router sends no CORS headers."""
    admin_token_sha256: Annotated[str, SHA256] | None = None
    """Hash of the admin port's bearer token. None means no token, which is allowed on loopback only."""
    tracing: TracingConfig | None = None
    """Traces of requests. None: there are none."""
    federation: FederationConfig | None = None
    """Other cells of the service. None: this fleet is all of it."""
    drain_timeout_s: Seconds = 30.0
    ttft_threshold_s: Annotated[float, Range(above=0)] | None = None
    """Threshold of `spec.slo.ttft`: a bucket bound of `within_share_ttft_seconds`."""
    max_lead_s: Annotated[float, Range(above=0)] | None = None
    """`spec.slo.fairness.maxLead`: the console compares the lead with it. None: it does not."""
    max_share_error_percent: Annotated[int, Range(0, 100)] | None = None
    """`spec.slo.fairness.maxShareErrorPercent`: likewise for the share error."""
    runbooks: Annotated[str, Url(("http", "https", "file")), Length(1, 2048)] | None = None
    """Address of the folder with the runbooks, for the console."""
    pools: Annotated[tuple[PoolConfig, ...], Length(0, 128), UniqueBy(("service",))] = ()
    """The services behind this router, if there are several. `service` and `model` then name the router itself, and the fields
    that a pool has too are not used. Empty: one service, which the fields above describe."""
    share_across: ShareAcross | None = None
    """Gateway: a tenant's engine seconds over all pools follow its weight (R22). None: its weight holds inside each pool."""
