"""JSON answers of the router's admin port.

- `GET /v1/state`: the whole state; `evenkeel top` shows it.
- `GET /v1/replicas`: the replicas only, without clients, of which there may be thousands. The operator polls it.
- `GET /v1/activation?wanted=false`: waits until a request needs the first replica of a service at zero. With `wanted=true` it
  waits until no request does. It answers after `ACTIVATION_POLL_S` at the latest, and at once without `wanted`.

A router of several services takes the query `service=NAME`.

Totals never decrease while a router runs. For a rate, divide the difference of two readings by the difference of `time_s`.
Service, owed service and leads come from the ledger: they cover the whole fleet and are the same at every router. All other
figures count what this router did since it started. Each newer field has a default, so that older routers can be read.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from evenkeel_contract.messages import Decoder, check_version, read

STATE_PATH: Final = "/v1/state"
REPLICAS_PATH: Final = "/v1/replicas"
ACTIVATION_PATH: Final = "/v1/activation"
ACTIVATION_POLL_S: Final = 25.0
"""Shorter than the idle timeout of common firewalls and proxies."""
SERVICE_QUERY: Final = "service"
"""Name of the query that names the service, at a router of several. `/v1/state` without it answers for all of them."""
STATE_VERSION: Final = 1


def fields_of(kind: type[msgspec.Struct], of: msgspec.Struct) -> dict[str, Any]:
    """The fields of `kind`, with the values of a record that has more."""
    return {name: getattr(of, name) for name in kind.__struct_fields__}


class Here(msgspec.Struct, frozen=True, kw_only=True):
    """This router's requests: of one client, at one replica, or all. None from older routers."""

    unanswered: int | None = None
    """Requests that wait: their answer has not begun, wherever they are (held by the router, at a gate, in an engine)."""
    begun: int | None = None
    """Requests in flight whose answer has begun."""
    lost: int | None = None
    """Requests of the last minute that ended without an answer, whatever the cause; at a replica, those that failed there last."""


NOTHING_HERE: Final = Here(unanswered=0, begun=0, lost=0)


class ClientAtReplica(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A client at one replica: its credit at this router, and the replica's last report."""

    replica: str
    credit: float = 0.0
    """q_{i,w} in weighted tokens; 0 if the fleet policy keeps no credit. With `workerQuantum: Auto` minus the client's open work at the
    replica, as this router sent it."""
    deficit: float = 0.0
    """q_i of the replica policy in weighted tokens. Negative: the client received more than its quantum."""
    tenant_deficit: float = 0.0
    service: float = 0.0
    """Weighted tokens since the replica's process started."""
    waiting: int = 0
    running: int = 0
    itl_tokens: int = 0
    """Output tokens after the first one of each request, since the replica's process started."""
    itl_s: float = 0.0
    """Seconds between those tokens. The mean inter-token latency is `itl_s` over `itl_tokens`."""


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """What the whole fleet served to a client or a tenant, and what it should have."""

    service: float = 0.0
    """Weighted tokens that it received from all incarnations, past and present."""
    owed: float = 0.0
    """Weighted tokens that it should have received."""
    lead_s: float = 0.0
    """Lead over the least served backlogged client of its tenant, or over the least served tenant, in seconds of fair service.
    0 while it is not backlogged, since it takes no service from others."""


class Demand(Service, frozen=True, kw_only=True):
    """What the whole fleet served to a client or a tenant, and what it asks for."""

    requested_per_s: float = 0.0
    """Weighted tokens per second that it requests from all routers."""
    backlogged: bool = False
    """Whether a request of it waits at a replica."""


class ClientState(Demand, frozen=True, kw_only=True):
    """State of one client in `/v1/state`."""

    identity: str
    """`namespace/tenant/client`; `namespace/tenant/*` for the other clients of a tenant together."""
    name: str
    """Name of the client; empty for the other clients of a tenant together."""
    weight: int = 1
    here: Here = Here()
    in_flight: int = 0
    requests: int = 0
    errors: int = 0
    """Since the router started; so are the other totals."""
    retries: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    replicas: tuple[ClientAtReplica, ...] = ()


class TenantState(Service, frozen=True, kw_only=True):
    """One tenant with its clients."""

    namespace: str
    name: str
    weight: float = 1
    """Among several cells (R21) and in a service of a gateway with `shareAcross` (R22), that in this one."""
    qoe: float = 0.0
    """Sum of the QoE (0 to 1) of `qoe_streams` streams since the router started; 0 without `router.qoe` in the spec."""
    qoe_streams: int = 0
    clients: tuple[ClientState, ...] = ()


class ReplicaCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What `/v1/state` and `evenkeel top` both show of one replica."""

    name: str
    in_flight: int = 0
    """Sequences of this router's requests at the replica, those that wait at its gate included (s_w)."""
    here: Here = Here()
    requests: int = 0
    failures: int = 0
    """Attempts that failed since the router started."""
    silent_s: float = 0.0
    """Seconds without a token while requests wait there; 0: it gives some, or none waits."""
    suspicion: str = ""
    """Why this router sends the replica few requests or none, although it is ready; empty: it trusts it."""
    unready_reason: str = ""
    """What its health check answers, where that is an error; empty: it says that the replica is ready, or is not ready yet."""
    policy: str = ""
    quantum: float = 0.0
    """Q^u in force in its last report, in weighted tokens; 0 if it reports none."""
    waiting: int = 0
    """Requests of all routers in the replica's queue, by its last report; 0 while its process is gone."""
    running: int = 0
    """Requests of all routers in the replica's batch, likewise."""
    report_age_s: float | None = None


class ReplicaState(ReplicaCounts, frozen=True, kw_only=True):
    """State of one replica in `/v1/state`."""

    url: str
    joined: bool = False
    """Whether the replica has joined: its process runs and the router can reach it."""
    loads: bool = False
    """Whether its process answers, and has not been ready yet."""
    routable: bool = False
    unschedulable_reason: str = ""
    """Why this router sends no new requests there (`draining`, `terminating`, …); empty if it may."""
    gate_waiting: int = 0
    """Sequences that wait at the router's gate, where the router orders the replica's queue."""
    gate_limit: int = 0
    """Streamed requests that may be at the replica without having begun; 0 without a gate."""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    prefix_blocks: int = 0
    """Prompt blocks that the router expects in the replica's cache."""
    incarnation: str = ""
    """Incarnation in its last report; empty if it sends no reports."""
    inactive_reason: str = ""
    """Why the engine's plug-in does not order the queue, by its last report; empty: it does, or there are no reports."""
    unnamed_share: float = 0.0
    """Share of its requests of the last minute or more that came without a readable client key; 0 below a few percent."""
    kv_state: str = ""
    """State of the view of its cache: `InSync`, `Partial`, `Replaying`, `Joining`; empty if there is no view."""
    kv_reason: str = ""
    """Why the view is not in sync."""
    kv_sequence: int = 0
    """Batches of KV events that the router has applied, of those that the replica's process published."""
    kv_gaps: int = 0
    """Number of gaps: a batch was missing and the router requested a replay."""


class FleetState(msgspec.Struct, frozen=True, kw_only=True):
    """Fairness figures of the whole fleet over the last minute (design §7)."""

    window_s: float = 0.0
    backlogged: int = 0
    """Clients with a request that waits at a replica."""
    share_error: float = 0.0
    """How much less than its owed service the least served backlogged client got, as a fraction."""
    lead_s: float = 0.0
    """Lead of the most over the least served backlogged client, in seconds of fair service."""
    jain: float = 1.0
    bound_ratio: float = 0.0
    """Measured service difference over its proven bound; above 1 the scheduler has a fault."""
    idle_s: float = 0.0
    """Seconds of the window in which a replica was empty while requests had waited at another for five seconds."""
    idle_total_s: float = 0.0
    """Seconds with such a replica since the router started."""
    verdict: str = ""
    """Whether anybody is served, is held up, and gets what it is owed; if not, who lost and who took. Empty from older routers."""
    level: str = ""
    """The level of the verdict (`evenkeel_fairshare.verdict.Level`)."""


class PeerState(msgspec.Struct, frozen=True, kw_only=True):
    """Another router of the service in `/v1/state`."""

    name: str
    url: str
    router: str = ""
    """Incarnation of the peer; empty if it never answered."""
    answer_age_s: float | None = None
    error: str = ""


class LedgerState(msgspec.Struct, frozen=True, kw_only=True):
    """This router's ledger and its store."""

    router: str = ""
    """This router's incarnation."""
    closed_totals_version: int = 0
    """Version of the closed totals; it grows each time that accounts are compacted."""
    open_accounts: int = 0
    """Replica accounts that are not in the closed totals yet."""
    clients: int = 0
    store: str = ""
    """`Peers`, `File` or `Redis`."""
    store_error: str = ""
    """Why the store cannot be used; empty if it can."""
    uncounted: tuple[str, ...] = ()
    """Replicas whose service is not counted: they send no reports, or their account was closed before."""


class PredictionState(msgspec.Struct, frozen=True, kw_only=True):
    """Cached tokens of finished requests, by the source of the prefix match."""

    predicted_tokens: int = 0
    """Tokens that the router expected when it chose the replica."""
    reported_tokens: int = 0
    """Tokens that the replica found in its cache."""
    error_tokens: int = 0
    """Sum of the absolute differences per request."""


class PrefixState(msgspec.Struct, frozen=True, kw_only=True):
    """Prefix matching (design §5.3)."""

    mode: str = "Text"
    tokenizer_error: str = ""
    """Why there is no tokenizer in mode Tokens, so that the router matches texts; empty if there is one."""
    untokenised: dict[str, int] = {}
    """Requests in mode Tokens that the router matched by their text, by reason."""
    predictions: dict[str, PredictionState] = {}
    """Source of the match (`text`, `estimated`: tokens without complete events, `exact`) → its predictions."""


class RouterSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What `/v1/state` and `evenkeel top` both show of the router itself."""

    service: str
    model: str
    """The name that its engines know."""
    names: tuple[str, ...] = ()
    """What clients send as `model`, the usual name first; empty from older routers."""
    fleet_policy: str
    uptime_s: float
    draining: bool = False
    in_flight: int = 0
    waiting: int = 0
    """Requests that wait for a routable replica. `evenkeel top` shows `here.unanswered` in its place."""
    here: Here = Here()
    prefix_blocks: int = 0
    """Sum over all replicas; a block at two replicas counts twice."""
    config_faults: tuple[str, ...] = ()
    """Faults of the newest configuration if it is invalid; the last valid one is in use."""
    fleet: FleetState = FleetState()
    ledger: LedgerState = LedgerState()
    peers: tuple[PeerState, ...] = ()


class ServiceState(RouterSummary, frozen=True, kw_only=True):
    """One service at a router."""

    version: int
    time_s: float
    """Seconds of a monotonic clock."""
    namespace: str
    gate_waiting: int = 0
    """Sequences that wait at the gates of all replicas."""
    replicas: tuple[ReplicaState, ...] = ()
    tenants: tuple[TenantState, ...] = ()
    prefix: PrefixState = PrefixState()


class RouterState(ServiceState, frozen=True, kw_only=True):
    """The answer of `/v1/state`."""

    services: tuple[ServiceState, ...] = ()
    """The services of a router of several; its own figures are then those that the services share."""


class ReplicasState(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/replicas`."""

    version: int
    replicas: tuple[ReplicaState, ...] = ()
    store_error: str = ""
    """What the ledger's store answered last, if it fails."""


class ActivationState(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/activation`."""

    version: int
    wanted: bool = False
    """Whether a request waits for the first replica of a service at zero."""


class StateError(ValueError):
    """An answer that is not a router's state, or has an unknown version."""


_state_decoder = msgspec.json.Decoder(RouterState)
_replicas_decoder = msgspec.json.Decoder(ReplicasState)
_activation_decoder = msgspec.json.Decoder(ActivationState)
_encoder = msgspec.json.Encoder()


def encode_state(state: RouterState | ReplicasState | ActivationState) -> bytes:
    """Encode any of the three answers."""
    return _encoder.encode(state)


def decode_state(data: bytes) -> RouterState:
    """Decode a state; raises `StateError`."""
    return _decoded(_state_decoder, data)


def decode_replicas(data: bytes) -> ReplicasState:
    """Decode the answer of `/v1/replicas`; raises `StateError`."""
    return _decoded(_replicas_decoder, data)


def decode_activation(data: bytes) -> ActivationState:
    """Decode the answer of `/v1/activation`; raises `StateError`."""
    return _decoded(_activation_decoder, data)


_Answer = TypeVar("_Answer", RouterState, ReplicasState, ActivationState)


def _decoded(decoder: Decoder[_Answer], data: bytes) -> _Answer:
    state = read(decoder, data, what="a router's state", error=StateError)
    check_version(state.version, STATE_VERSION, StateError)
    return state
