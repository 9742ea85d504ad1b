"""What a scaler knows of a fleet in virtual time: the answers that Prometheus would have from its routers.

Replicas are read each second, as routers read their reports. A scaler sees the values of the moment, and rates over `WINDOW_S`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from evenkeel_fairshare.cost import FIRST_COST
from evenkeel_fairshare.measures import percentile
from evenkeel_fairshare.saturation import Saturation
from evenkeel_fairshare.tenancy import shares
from evenkeel_simulator.engine.model import Engine
from evenkeel_simulator.engine.request import EngineRequest, State
from evenkeel_simulator.traffic.workload import Client

REPORT_S = 1.0
"""Time between two reports of a replica."""
WINDOW_S = 120.0
"""Window of rates and means that scalers read: RATE of the operator's queries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a scaler may know now."""

    now_s: float
    ready: int
    in_flight: int = 0
    waiting: int = 0
    """Requests in the queues of all replicas."""
    waiting_service: Mapping[str, float] = field(default_factory=dict)
    """Client → weighted tokens that its waiting requests will cost, at the mean of admitted ones."""
    asked_per_s: Mapping[str, float] = field(default_factory=dict)
    """Client → weighted tokens per second that it asks for."""
    seen_per_s: float | None = None
    """Weighted tokens per second that a ready replica did, over `WINDOW_S`; None before."""
    saturated_s: float = 0.0
    """Seconds in which requests waited at a replica without a break, over all replicas."""
    saturated_service: float = 0.0
    """Weighted tokens that those replicas served in those seconds."""
    queue_s: float | None = None
    """Mean wait of requests of clients within their share; None without one."""
    ttft_p95_s: float | None = None
    """95th percentile of the time to the first token of such requests over `WINDOW_S`, seconds; None without one."""


class FleetWatch:
    """Reads a fleet each second."""

    def __init__(self) -> None:
        self._saturation = Saturation()
        self._served: dict[str, float] = {}
        """Replica → weighted tokens until its last report."""
        self._total = 0.0
        self._totals: deque[tuple[float, float]] = deque()
        """(time, weighted tokens that the fleet had served) of each second within `WINDOW_S`."""
        self._started: deque[tuple[float, str, float]] = deque()
        """(time, client, TTFT) of first tokens within `WINDOW_S`."""
        self._waits: deque[tuple[float, Mapping[str, int]]] = deque()
        """(time, waiting requests by client) of each second within `WINDOW_S`."""
        self._counted: set[str] = set()
        """Open requests whose first token was counted."""

    def report(
        self, now_s: float, engines: Mapping[str, Engine], requests: Collection[EngineRequest]
    ) -> None:
        """All live replicas by name, and all requests that have not ended."""
        self._saturation.retain(engines)
        for name, engine in engines.items():
            service = sum([one.service for one in engine.accounts_at(now_s).clients.values()])
            waits = len(engine.policy) > 0
            self._saturation.observe(name, service=service, waits=waits, now_s=now_s)
            self._total += service - self._served.get(name, 0.0)
            self._served[name] = service
        waiting: defaultdict[str, int] = defaultdict(int)
        for request in requests:
            waiting[request.client] += request.state is State.WAITING
            if request.id not in self._counted:
                self._count(request)
        self._totals.append((now_s, self._total))
        self._waits.append((now_s, waiting))
        for past in (self._totals, self._waits, self._started):
            while past and past[0][0] < now_s - WINDOW_S:
                past.popleft()

    def ended(self, request: EngineRequest) -> None:
        """A request has ended."""
        if request.id not in self._counted:
            self._count(request)
        self._counted.discard(request.id)

    def left(self, name: str) -> None:
        """A replica is gone. Another one may take its name."""
        self._served.pop(name, None)
        self._saturation.retain(self._served)

    def _count(self, request: EngineRequest) -> None:
        if request.first_token_s is not None:
            ttft_s = request.first_token_s - request.arrival_s
            self._started.append((request.first_token_s, request.client, ttft_s))
            self._counted.add(request.id)

    def observation(
        self,
        now_s: float,
        engines: Iterable[Engine],
        *,
        ready: int,
        in_flight: int,
        asked_per_s: Mapping[str, float],
        client_of: Callable[[str], Client],
    ) -> Observation:
        """What a scaler sees after the report of this second."""
        waiting = self._waits[-1][1]
        within = within_share(asked_per_s, client_of)
        ttfts = [ttft_s for _, client, ttft_s in self._started if client in within]
        waits = sum([past.get(name, 0) for _, past in self._waits for name in within])
        since_s, before = self._totals[0]
        rate = (self._total - before) / WINDOW_S
        return Observation(
            now_s=now_s,
            ready=ready,
            in_flight=in_flight,
            waiting=sum(waiting.values()),
            waiting_service=_costs(engines, waiting),
            asked_per_s=asked_per_s,
            # Only over a whole window: before, the rate is divided by too much time.
            seen_per_s=rate / ready if ready and now_s - since_s >= WINDOW_S - REPORT_S else None,
            saturated_s=self._saturation.seconds,
            saturated_service=self._saturation.service,
            # Little's law. One sum of waiting requests a second.
            queue_s=waits * REPORT_S / len(ttfts) if ttfts else None,
            ttft_p95_s=percentile(ttfts, 95) if ttfts else None,
        )


def _costs(engines: Iterable[Engine], waiting: Mapping[str, int]) -> dict[str, float]:
    service: defaultdict[str, float] = defaultdict(float)
    admitted: defaultdict[str, int] = defaultdict(int)
    for engine in engines:
        for name, one in engine.accounts.clients.items():
            service[name] += one.service
            admitted[name] += one.requests
    return {
        name: count * (service[name] / admitted[name] if admitted[name] else FIRST_COST)
        for name, count in waiting.items()
        if count
    }


def within_share(asked: Mapping[str, float], client_of: Callable[[str], Client]) -> frozenset[str]:
    """Clients that ask for no more than twice their weighted part of all that is asked for.

    Twice, because in a fleet of equals half of the clients ask for more than the mean.
    """
    active = {name: rate for name, rate in asked.items() if rate > 0}
    known = {name: client_of(name) for name in active}
    identities = {name: f"{known[name].tenant}/{number}" for number, name in enumerate(active)}
    of_client = {identities[name]: one.client_weight for name, one in known.items()}
    of_tenant = {one.tenant: one.tenant_weight for one in known.values()}
    parts = shares(list(of_client), of_client.__getitem__, of_tenant.__getitem__)
    total = sum(active.values())
    return frozenset(
        name for name, rate in active.items() if rate <= 2 * parts[identities[name]] * total
    )
