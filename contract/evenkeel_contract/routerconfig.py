"""RouterConfig: what a router is told. Rendered by the operator and by `evenkeel up`, parsed by the router.

It is a JSON document; the router reloads it when it changes and keeps the last good one when it does not
hold. Durations are seconds, sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from evenkeel_contract.names import ADMIN_PORT, PROBE_PORT, TRAFFIC_PORT


class FleetPolicyName(Enum):
    """The fleet policies that the router implements."""

    D2LPM = "D2LPM"
    ROUND_ROBIN = "RoundRobin"
    PER_CLIENT_ROUND_ROBIN = "PerClientRoundRobin"
    LEAST_LOADED = "LeastLoaded"


class PrefixMode(Enum):
    """How the router sees a prefix (design §5.3)."""

    TEXT = "Text"
    TOKENS = "Tokens"


class Anonymous(Enum):
    """What becomes of a request without an identity."""

    REJECT = "Reject"
    SHARE = "Share"  # all of them are one client


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenConfig:
    """Where the router listens. Port 0 lets the system choose."""

    host: str = "127.0.0.1"
    traffic_port: int = TRAFFIC_PORT
    probe_port: int = PROBE_PORT
    admin_port: int = ADMIN_PORT


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingConfig:
    """The fleet level of DESIGN §3 `spec.scheduling`."""

    fleet_policy: FleetPolicyName = FleetPolicyName.D2LPM
    input_token_weight: int = 1
    output_token_weight: int = 2
    worker_quantum: int = 20_000
    """Q^w, weighted tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixConfig:
    """How prompts are matched."""

    mode: PrefixMode = PrefixMode.TEXT
    text_block_bytes: int = 256
    max_blocks: int = 2_000_000
    """Bound of the index over all replicas; the least recently used go first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """Bounds of one request and of one client."""

    max_body_bytes: int = 16 * 1024 * 1024
    max_output_tokens: int = 131_072
    """A larger `max_tokens` is refused."""
    queue_timeout_s: float = 120.0
    """How long a request may wait while no replica is routable."""
    first_token_timeout_s: float = 120.0
    idle_timeout_s: float = 300.0
    """Longest silence in a stream, from the replica or from a client that does not read."""
    max_concurrent_per_client: int = 0
    """0: no bound."""
    max_concurrent: int = 4096
    """Requests in flight in the whole router."""
    max_attempts: int = 3
    """Dispatches of one request, the first included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits:
    """Rate limits of one tenant. 0: no bound."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    max_concurrent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """One named client of a tenant."""

    name: str
    weight: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKeyConfig:
    """An API key by its hash: the router never sees keys at rest."""

    name: str
    client: str
    sha256: str
    """Lower-case hexadecimal SHA-256 of the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantConfig:
    """One tenant (InferenceTenant)."""

    namespace: str
    name: str
    weight: int = 1
    default_client_weight: int = 1
    clients: tuple[ClientConfig, ...] = ()
    api_keys: tuple[ApiKeyConfig, ...] = ()
    limits: TenantLimits = field(default_factory=TenantLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenancyConfig:
    """Who may use the service."""

    anonymous: Anonymous = Anonymous.REJECT
    trusted_proxies: tuple[str, ...] = ()
    """Networks (CIDR) whose identity headers are believed."""
    tenants: tuple[TenantConfig, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfig:
    """One replica of a static fleet."""

    name: str
    url: str
    """`http://host:port`, no path."""
    reports: str | None = None
    """`tcp://host:port` of its reports; None where it makes none."""
    api_key: str | None = None
    """Bearer key that the replica asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """Everything a router is told."""

    namespace: str
    service: str
    """The FairInferenceService's name."""
    model: str
    """The served name; requests for another model are 404."""
    listen: ListenConfig = field(default_factory=ListenConfig)
    scheduling: SchedulingConfig = field(default_factory=SchedulingConfig)
    prefix: PrefixConfig = field(default_factory=PrefixConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    tenancy: TenancyConfig = field(default_factory=TenancyConfig)
    replicas: tuple[ReplicaConfig, ...] = ()
    admin_token_sha256: str | None = None
    """Bearer token of the admin port; None leaves it open, for loopback only."""
    drain_timeout_s: float = 30.0
