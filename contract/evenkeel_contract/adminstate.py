"""`GET /v1/state` on the router's admin port: what `evenkeel top` shows. JSON. `GET /v1/replicas` is the part of it that
the operator asks for, again and again while a replica comes or goes: without clients, of which there may be thousands.
`GET /v1/activation?wanted=false` waits until a request of a service that stands at zero wants a replica (`true`: until none does),
and answers after `ACTIVATION_POLL_S` in any case; without `wanted` at once.

Totals never fall while a router lives; who wants a rate subtracts two readings and divides by the difference of
`time_s`. Service, owed service and leads are those of the whole fleet, from the ledger, and the same at every router; all
else counts what this router did since it started. A field that is added later has a default, so that an older router can be read.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

STATE_PATH: Final = "/v1/state"
REPLICAS_PATH: Final = "/v1/replicas"
ACTIVATION_PATH: Final = "/v1/activation"
ACTIVATION_POLL_S: Final = 25.0
"""Shorter than the silence that firewalls and proxies between pods put up with."""
STATE_VERSION: Final = 1


class ClientAtReplica(msgspec.Struct, frozen=True, kw_only=True):
    """A client at one replica: the router's credit, and what the replica last reported."""

    replica: str
    credit: float = 0.0
    """q_{i,w}, weighted tokens; 0 where the fleet policy keeps none."""
    deficit: float = 0.0
    """q_i of the replica's policy, weighted tokens. Negative: it was served more than its quantum."""
    tenant_deficit: float = 0.0
    service: float = 0.0
    """Weighted tokens, since the replica's process started."""
    waiting: int = 0
    running: int = 0


class ClientState(msgspec.Struct, frozen=True, kw_only=True):
    """One client."""

    identity: str
    """`namespace/tenant/client`; `namespace/tenant/*` for the other clients of a tenant together."""
    name: str
    """Empty for the other clients of a tenant together."""
    weight: int = 1
    in_flight: int = 0
    requests: int = 0
    errors: int = 0
    retries: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    service: float = 0.0
    """Weighted tokens that it was given, by all incarnations that ever were."""
    owed: float = 0.0
    """Weighted tokens that it should have been given."""
    requested_per_s: float = 0.0
    """Weighted tokens per second that it asks all routers for."""
    lead_s: float = 0.0
    """Seconds of fair service by which it is ahead of the least served backlogged client of its tenant."""
    backlogged: bool = False
    """Whether a request of it waits at a replica."""
    replicas: tuple[ClientAtReplica, ...] = ()


class TenantState(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant with its clients."""

    namespace: str
    name: str
    weight: int = 1
    service: float = 0.0
    owed: float = 0.0
    lead_s: float = 0.0
    clients: tuple[ClientState, ...] = ()


class ReplicaState(msgspec.Struct, frozen=True, kw_only=True):
    """One replica."""

    name: str
    url: str
    joined: bool = False
    """Its process is there."""
    routable: bool = False
    withheld: str = ""
    """Why this router sends nothing new there (`draining`, `terminating`, …); empty: nothing is against it."""
    in_flight: int = 0
    """Requests of this router there (s_w)."""
    requests: int = 0
    failures: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    prefix_blocks: int = 0
    """Blocks of prompts that the router counts on being cached there."""
    incarnation: str = ""
    """Of its last report; empty where it makes none."""
    policy: str = ""
    waiting: int = 0
    running: int = 0
    report_age_s: float | None = None
    kv_standing: str = ""
    """How far the view of its cache can be trusted: `InSync`, `Partial`, `Replaying`, `Joining`; empty where none is made."""
    kv_reason: str = ""
    """Why it is not in sync."""
    kv_sequence: int = 0
    """Batches of KV events applied, of all that its process published."""
    kv_gaps: int = 0
    """Times that a batch did not come and was asked for."""


class FleetState(msgspec.Struct, frozen=True, kw_only=True):
    """How fair the whole fleet is (design §7), over the last minute."""

    window_s: float = 0.0
    backlogged: int = 0
    """Clients with a request that waits at a replica."""
    share_error: float = 0.0
    """How much less than owed the worst treated backlogged client got, as a fraction."""
    lead_s: float = 0.0
    """The most over the least served backlogged client, in seconds of fair service."""
    jain: float = 1.0
    bound_ratio: float = 0.0
    """Above 1 something is broken."""


class PeerState(msgspec.Struct, frozen=True, kw_only=True):
    """Another router."""

    name: str
    url: str
    router: str = ""
    """Its incarnation; empty: it never answered."""
    answer_age_s: float | None = None
    trouble: str = ""


class LedgerState(msgspec.Struct, frozen=True, kw_only=True):
    """What this router knows of who was served what, and how it keeps that."""

    router: str = ""
    """This router's incarnation."""
    book: int = 0
    """Number of the book that it holds."""
    pages: int = 0
    """Incarnations of replicas that are in no book yet."""
    clients: int = 0
    store: str = ""
    """`Peers`, `File` or `Redis`."""
    store_trouble: str = ""
    """Why the store is away."""
    uncounted: tuple[str, ...] = ()
    """Replicas whose service is not counted: they do not report, or were given up before."""


class PredictionState(msgspec.Struct, frozen=True, kw_only=True):
    """Cached tokens of the requests that ended, by what their match rested on."""

    predicted_tokens: int = 0
    """Those that the router counted on when it chose the replica."""
    reported_tokens: int = 0
    """Those that the replica found."""
    error_tokens: int = 0
    """The sum of the differences, request by request, whichever was more."""


class PrefixState(msgspec.Struct, frozen=True, kw_only=True):
    """How prompts are matched (design §5.3)."""

    mode: str = "Text"
    tokenizer_trouble: str = ""
    """Why mode Tokens has no tokenizer, so that texts are matched."""
    untokenised: dict[str, int] = {}
    """Requests that were matched by their text in mode Tokens, by reason."""
    predictions: dict[str, PredictionState] = {}
    """By `text`, `estimated` (tokens, without complete events) and `exact`."""


class RouterState(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer."""

    version: int
    time_s: float
    """Seconds of a clock that never goes back."""
    uptime_s: float
    namespace: str
    service: str
    model: str
    fleet_policy: str
    draining: bool = False
    in_flight: int = 0
    held: int = 0
    """Waiting for any replica to be routable."""
    prefix_blocks: int = 0
    """The sum over all replicas: a block that two of them hold counts twice."""
    config_faults: tuple[str, ...] = ()
    """Of a newer configuration that did not hold: the last good one runs."""
    replicas: tuple[ReplicaState, ...] = ()
    tenants: tuple[TenantState, ...] = ()
    fleet: FleetState = FleetState()
    ledger: LedgerState = LedgerState()
    peers: tuple[PeerState, ...] = ()
    prefix: PrefixState = PrefixState()


class ReplicasState(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/replicas`."""

    version: int
    replicas: tuple[ReplicaState, ...] = ()


class ActivationState(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/activation`."""

    version: int
    wanted: bool = False
    """A request waits for the first replica of a service that stands at zero."""


class StateError(ValueError):
    """An answer that is not a router's state, or of an unknown version."""


_Answer = TypeVar("_Answer", RouterState, ReplicasState, ActivationState)
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


def _decoded(decoder: msgspec.json.Decoder[_Answer], data: bytes) -> _Answer:
    try:
        state = decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise StateError(f"not a router's state: {error}") from error
    if state.version != STATE_VERSION:
        raise StateError(f"version {state.version} of a router's state is not {STATE_VERSION}")
    return state
