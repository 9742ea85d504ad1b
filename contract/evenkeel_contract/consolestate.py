"""JSON answers that the router's console shows. The page is at `PAGE_PATH`; `console/src/state.ts` has the same types.

- `GET /v1/console`: the figures of the last `window_s` seconds.
- `GET /v1/console/hour`: samples of the last hour of all clients together, and of those with the most service.
- `GET /v1/console/hour?client=IDENTITY`: samples of one client.

The admin port answers for the whole service and needs the admin token. The traffic port answers for one tenant and needs
an API key of the tenant: `scope` is `tenant`, and fields about other tenants, replicas and routers are empty.

Service, owed service, waiting and running requests cover the whole fleet. Tokens, times and errors are those of one router.
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
NOW_PATH: Final = "/v1/console"
HOUR_PATH: Final = "/v1/console/hour"
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
    fair: bool
    """Whether the client gets its owed service. False: it was given too little of it while it waited."""
    share: float | None = None
    """Part of the service of all clients in scope that the client got, 0 to 1; None without service."""
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


class ReplicaNow(ReplicaState, frozen=True, kw_only=True):
    """One replica, with the figures of the window."""

    service_per_s: float = 0.0
    hit_rate: float | None = None


class AlertCondition(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the condition of an alert is true now. The alert itself fires after a time."""

    alert: str
    """Name of the alert; empty for a condition without an alert."""
    problem: bool
    message: str


class ConsoleState(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `NOW_PATH`."""

    version: int
    scope: Scope
    tenant: str
    """Name of the tenant in scope `tenant`."""
    namespace: str
    service: str
    model: str
    time_unix_s: float
    uptime_s: float
    router: str
    """Incarnation of the router: another one has no history of the former."""
    window_s: float
    """Seconds that rates and means cover; shorter after a start."""
    draining: bool
    verdict: str
    """One sentence on the last minute, as in `evenkeel top`."""
    fair: bool
    total: Figures
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
    service_per_s: Column
    owed_per_s: Column
    output_tokens_per_s: Column
    ttft_s: Column
    waiting: Column
    running: Column


class HourState(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `HOUR_PATH`."""

    version: int
    router: str
    times_unix_s: tuple[float, ...]
    """Times of the samples, the oldest first."""
    series: tuple[Series, ...]
    """All clients together, then the clients with the most service in the hour; or the client that was requested."""
    replicas: tuple[ClientAtReplica, ...] = ()
    """The requested client at each replica; only at the admin port."""
