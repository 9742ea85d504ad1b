"""JSON answers that the router's console shows. The page is at `PAGE_PATH`; `console/src/state.ts` has the same types.

- `GET /v1/console`: the figures of the last `window_s` seconds.
- `GET /v1/console/hour`: samples of the last hour of all clients together, and of those who are hurt, who hurt, and with the most service.
- `GET /v1/console/hour?client=IDENTITY`: samples of one client.
- `GET /v1/console/requests`: the newest requests of the router, and those in flight; with `client=IDENTITY` those of one client.
- `GET /v1/console/requests?id=REQUEST-ID`: where the time of one request went, and who was ahead of it.

A router of several models answers for all of them together, and with `model=NAME` (what clients send as `model`) or `service=NAME` for one.

The admin port answers for the whole service and needs the admin token. The traffic port answers for one tenant and needs
an API key of the tenant: `scope` is `tenant`, and fields about other tenants, replicas and routers are empty.

Service and owed service cover the whole fleet. Requests, tokens, times and errors are those of one router. A request *waits* until its
answer begins, wherever it is: held by the router, at a gate, or in an engine; then it runs. Where there are other routers, a client also
has as many as replicas report.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from evenkeel_contract.adminstate import (
    ClientAtReplica,
    FleetState,
    LedgerState,
    PeerState,
    ReplicaState,
)
from evenkeel_contract.figures import Figures

PAGE_PATH: Final = "/console/"
RUNBOOKS_PATH: Final = "/runbooks/"
"""Where the admin port shows runbooks of a folder on its machine."""
NOW_PATH: Final = "/v1/console"
HOUR_PATH: Final = "/v1/console/hour"
REQUESTS_PATH: Final = "/v1/console/requests"
MODEL_QUERY: Final = "model"
"""Name of the query that names a model, at a router of several."""
CONSOLE_VERSION: Final = 1

Scope = Literal["service", "tenant"]


class ClientNow(Figures, frozen=True, kw_only=True):
    """Figures of one client in the last window."""

    identity: str
    """`namespace/tenant/client`, escaped; `namespace/tenant/*` for the other clients of a tenant together."""
    tenant: str
    client: str
    """Name of the client; empty for the other clients of a tenant together."""
    weight: str
    """Weight of the tenant · weight of the client."""
    words: str
    """One sentence: what the client gets."""
    level: str
    """The level of this sentence: `HeldUp`, `Unfair`, `Unjudged`, `Fair` or `Nothing` (`evenkeel_fairshare.verdict.Level`)."""
    fair: bool
    """Whether the client gets its owed service. False: it was given too little of it while it waited in the last minute, or its requests fail,
    are given up, or wait where no token comes from."""
    hurts: bool = False
    """Whether it took more than it was owed while another client was given too little."""
    ttft_p50_s: float | None = None
    """Median time to first token in the last minute at this router. A request that still waits counts with its age, once that is above
    the median of the others. None without any."""
    ttft_p95_s: float | None = None
    oldest_s: float = 0.0
    """Age of its oldest request at this router whose answer has not begun; 0 without one."""
    held: int = 0
    """Requests among `waiting` that this router holds because no replica takes them."""
    failed: int = 0
    """Requests of the last minute at this router that the service failed, or that the client gave up."""
    share: float | None = None
    """Part of the service of all clients in scope that the client got, 0 to 1; None without service. To a tenant: of what its clients
    were owed together, where that was more."""
    owed: float | None = None
    """What it was owed, as a part of the same service; None if no request of it waits."""
    given_over_owed: float | None = None
    """Service over owed service in the last minute; None if the client waited for less than half of it."""
    requested_per_s: float = 0.0
    """Weighted tokens per second that it requests from all routers."""
    lead_s: float = 0.0
    in_flight: int = 0
    """Requests at this router."""
    requests: int = 0
    """Since this router started; so are the errors."""
    errors: int = 0
    causes: dict[str, int] = msgspec.field(default_factory=dict)
    """Requests of the last minute without an answer, by cause, as in docs/reference/errors.md."""


class ModelNow(Figures, frozen=True, kw_only=True):
    """One model of a router of several. Where one model is shown, the others have their names only."""

    model: str
    """The usual name, as clients send it."""
    service: str
    level: str = ""
    """The level of its verdict, as in `ConsoleState`; empty: not judged here."""
    verdict: str = ""
    ttft_p50_s: float | None = None
    """Median time to first token, as in `ConsoleState`."""
    ttft_p95_s: float | None = None
    oldest_s: float = 0.0
    failed: int = 0
    """Requests of the last minute without an answer, whatever the cause."""
    replicas: int | None = None
    """None to a tenant; so are those that take requests."""
    routable: int | None = None


class ReplicaNow(ReplicaState, frozen=True, kw_only=True):
    """One replica, with the figures of the window."""

    model: str = ""
    """Model of the replica, where several are shown."""
    service_per_s: float = 0.0
    hit_rate: float | None = None
    failing: float = 0.0
    """Part of the requests of the last minute, which it had last, that failed at this router; 0 below a tenth."""


class AlertCondition(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the condition of an alert is true now. The alert itself fires after a time."""

    alert: str
    """Name of the alert; empty for a condition without an alert."""
    problem: bool
    message: str
    about: str = ""
    """The part of the page that shows more: `replicas`, `clients` or `ledger`; empty: none."""
    runbook: str = ""
    """Address of the alert's runbook; empty: there is none, or the router does not know it."""


class LimitNow(msgspec.Struct, frozen=True, kw_only=True):
    """One limit of a tenant at this router, which has the part of it that its requests need."""

    tenant: str
    """`namespace/tenant`."""
    kind: str
    """`requests`, `tokens` (each per minute) or `concurrent`."""
    limit: int
    """The configured number: per minute, or in flight."""
    burst: int
    """Most at once."""
    used: float
    """Part of the burst that is used up, 0 to 1 or more: a debt."""
    resets_s: float
    """Seconds until all of it is free again, if nothing more comes; 0 for `concurrent`, which requests give back when they end."""


class ConsoleState(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `NOW_PATH`."""

    version: int
    scope: Scope
    tenant: str
    """Name of the tenant in scope `tenant`."""
    namespace: str
    service: str
    """Name of the service; empty: all services of a router of several."""
    model: str
    models: tuple[ModelNow, ...] = ()
    """The models that the reader may choose from, behind a router of several; empty: there is one."""
    time_unix_s: float
    uptime_s: float
    router: str
    """Incarnation of the router: another one has no history of the former."""
    window_s: float
    """Seconds that rates and means cover; shorter after a start."""
    draining: bool
    verdict: str
    """One sentence on the last minute, as in `evenkeel top`."""
    level: str
    """The level of the verdict: `Out`, `HeldUp`, `Unfair`, `Unjudged`, `Fair` or `Nothing` (`evenkeel_fairshare.verdict.Level`)."""
    fair: bool
    """Whether the level is `Fair` or `Nothing`."""
    total: Figures
    ttft_p50_s: float | None = None
    """Median time to first token in the last minute, of clients within their share, whose waiting they do not cause. As in `ClientNow`."""
    ttft_p95_s: float | None = None
    waiting: int = 0
    """Requests at this router whose answer has not begun, wherever they are."""
    oldest_s: float = 0.0
    """Age of the oldest of them."""
    errors: dict[str, int] = {}
    """Cause → failed requests of the last minute at this router."""
    limits: tuple[LimitNow, ...] = ()
    """Limits of tenants that sent requests to this router."""
    clients: tuple[ClientNow, ...]
    fleet_policy: str = ""
    held: int = 0
    """Requests that wait for a routable replica."""
    fleet: FleetState | None = None
    replicas: tuple[ReplicaNow, ...] = ()
    conditions: tuple[AlertCondition, ...] = ()
    ledger: LedgerState | None = None
    peers: tuple[PeerState, ...] = ()


Column = tuple[float | None, ...]
"""One figure at each time of the hour; None where it is unknown."""


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of a client, or of all clients in scope together; each is over one window."""

    identity: str
    tenant: str
    client: str
    model: str = ""
    """The model that the samples are of, where several are shown; empty: all."""
    service_per_s: Column
    owed_per_s: Column
    output_tokens_per_s: Column
    ttft_s: Column
    waiting: Column
    running: Column


class AtReplica(ClientAtReplica, frozen=True, kw_only=True):
    """A client at one replica."""

    model: str = ""
    """The replica's model, where several are shown."""


class HourState(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `HOUR_PATH`."""

    version: int
    router: str
    times_unix_s: tuple[float, ...]
    """Times of the samples, the oldest first."""
    series: tuple[Series, ...]
    """All clients together, then those who are hurt, those who hurt, and those with the most service; or the client that was requested.
    Where several models are shown: all of them together, then each model."""
    replicas: tuple[AtReplica, ...] = ()
    """The requested client at each replica; only at the admin port."""


class RequestNow(msgspec.Struct, frozen=True, kw_only=True):
    """One request: in flight, or over. It is the line of the router's log, in words for people. Times are seconds."""

    request_id: str
    client: str
    """`namespace/tenant/client`."""
    name: str
    """`tenant/client`."""
    path: str
    state: str
    """`waiting` (the answer has not begun), `running` or `ended`."""
    begun_unix_s: float
    duration_s: float
    """Time from its head to its end, or until now."""
    ttft_s: float | None = None
    """Time to the first content; None if none came."""
    held_s: float = 0.0
    """Time in this router, because no replica took requests."""
    gate_s: float = 0.0
    """Time at this router's gate in front of the replica."""
    engine_s: float = 0.0
    """Time at the last replica, until the first content: its queue, and the computation of the prompt."""
    itl_s: float | None = None
    """Mean time between two tokens."""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    model: str = ""
    """Model that served the request, where several are shown."""
    replica: str = ""
    attempts: int = 0
    status: int = 0
    outcome: str = ""
    """The cause of its failure; empty: none."""
    streamed: bool = False
    trace_id: str = ""

    @property
    def before_first_s(self) -> float:
        """The time to the first content, or all of it without any."""
        return self.duration_s if self.ttft_s is None else self.ttft_s

    @property
    def other_s(self) -> float:
        """Before the first content, but in none of the three places: reading the body, choosing, and attempts that failed."""
        return max(0.0, self.before_first_s - self.held_s - self.gate_s - self.engine_s)


class Ahead(msgspec.Struct, frozen=True, kw_only=True):
    """A client whose requests began at the same replica while this one waited."""

    name: str
    """`tenant/client`; to a tenant, all other tenants together."""
    requests: int
    tokens: int
    """Input tokens that were computed, and output tokens."""


class RequestsState(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `REQUESTS_PATH`."""

    version: int
    router: str
    kept: int
    """Newest requests of each tenant that a router keeps."""
    requests: tuple[RequestNow, ...] = ()
    """The newest first; with an id, those that had it."""
    words: tuple[str, ...] = ()
    """Why the newest one of the id took so long, in sentences."""
    ahead: tuple[Ahead, ...] = ()
    """Who was ahead of it, those with the most requests first."""
    ahead_more: int = 0
    """Further clients that were ahead."""
