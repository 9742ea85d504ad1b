"""What clients request of this router, and what it served to each client, tenant and replica since it started.

Histograms and counters are plain numbers here, not a metrics library's objects: a request touches about fifteen of
them, and a library's objects cost ten times as much. Totals are kept by client, distributions by tenant: a
distribution is a hundred numbers, and the names of clients come from outside.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from evenkeel_fairshare.cost import FIRST_COST, Cost
from evenkeel_fairshare.fleet.contract import Usage

from evenkeel_router.api.errors import Outcome
from evenkeel_router.api.identity import MAX_CLIENTS, Client, other_clients
from evenkeel_router.ledger.endings import GIVEN_UP, Endings
from evenkeel_router.ledger.estimates import TenantEstimates

SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300)
ITL_SECONDS: Final = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
TOKENS: Final = (1, 8, 32, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
ERROR_TOKENS: Final = (0, *TOKENS)
RATIOS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1)
SILENT_WINDOWS: Final = 3.0
"""Windows without a request after which a rate is 0. A twentieth of the rate is left by then; without this limit a decaying rate
would never end, and a busy client would keep its service from scaling to zero the longest."""
RECENT: Final = 300
"""Records of requests that are kept of each tenant: 0.2 MB."""
MAX_TENANTS: Final = 100
"""Tenants with distributions of their own; the other tenants share one, without a name."""

MAX_ESTIMATES: Final = 4096
"""Tenants with estimates of their own prompts."""


class Histogram:
    """Counts of values up to each bound; the last count is of values above all bounds."""

    __slots__ = ("_counts", "_total", "bounds", "new")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0
        self.new = array("d")
        """Values that are not counted yet: append one to it. The next `collect` counts it in the first bucket whose bound it does
        not exceed. A method would take as long again."""

    @property
    def counts(self) -> Sequence[int]:
        """Values by bucket."""
        self.collect()
        return self._counts

    @property
    def total(self) -> float:
        """The sum of the values."""
        self.collect()
        return self._total

    def never(self) -> None:
        """Count a missing value (such as a first token that never came): above every bound, and not in the sum."""
        self._counts[-1] += 1

    def collect(self) -> None:
        """Count the new values, all at once: a hundred values that are sorted first cost little more than one."""
        if not self.new:
            return
        values = sorted(self.new)
        del self.new[:]
        self._total += sum(values)
        below = 0
        for bucket, bound in enumerate(self.bounds):
            up_to = bisect_right(values, bound)
            self._counts[bucket] += up_to - below
            below = up_to
        self._counts[-1] += len(values) - below


def ttft_histogram(threshold_s: float | None) -> Histogram:
    """Times to the first token. The objective's threshold is a bound, so that the histogram counts exactly who met it."""
    return Histogram(sorted({*SECONDS, *(() if threshold_s is None else (threshold_s,))}))


class Distributions:
    """Distributions over the requests of one tenant's clients since the router started."""

    __slots__ = (
        "cached_tokens", "duration_s", "input_tokens", "itl_s", "output_tokens", "qoe", "recent", "tenant", "ttft_s",
    )  # fmt: skip

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.input_tokens = Histogram(TOKENS)
        self.cached_tokens = Histogram(TOKENS)
        self.output_tokens = Histogram(TOKENS)
        self.ttft_s = Histogram(SECONDS)
        self.itl_s = Histogram(ITL_SECONDS)
        self.duration_s = Histogram(SECONDS)
        self.qoe = Histogram(RATIOS)
        """Quality of experience of streams; without values unless QoE is measured."""
        self.recent: deque[Any] = deque(maxlen=RECENT)
        """Records of the newest requests, `RequestLogLine`."""

    def histograms(self) -> Sequence[Histogram]:
        """All distributions of the tenant."""
        return (
            self.input_tokens, self.cached_tokens, self.output_tokens, self.ttft_s, self.itl_s,
            self.duration_s, self.qoe,
        )  # fmt: skip


@dataclass(slots=True, eq=False)
class ClientTotals:
    """One client since the router started. A copy shares the counts of errors and endings."""

    identity: str
    distributions: Distributions
    estimates: TenantEstimates
    in_flight: int = 0
    """Sequences of admitted requests that have not ended."""
    requests: int = 0
    retries: int = 0
    relocations: int = 0
    errors: Counter[Outcome] = field(default_factory=Counter)
    given_up: int = 0
    """Requests that the client gave up, without those behind its own (`endings`)."""
    endings: Endings = field(default_factory=Endings)
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    answers: int = 0
    """Requests whose first token came."""
    ttft_s: float = 0.0
    """Sum of the times to these first tokens."""
    itl_tokens: int = 0
    """Output tokens after the first one of each stream."""
    itl_s: float = 0.0
    """Seconds between these output tokens."""
    qoe_streams: int = 0
    """Streams whose quality of experience was measured."""
    qoe: float = 0.0
    """Sum of the measured qualities of experience."""

    def ended_as(self, ending: str, now_s: float) -> None:
        """A request ended so (`endings`)."""
        self.endings.add(ending, now_s)
        if ending == GIVEN_UP:
            self.given_up += 1

    def streamed(self, seconds: float, output_tokens: int) -> None:
        """A stream ended `seconds` after its first event."""
        if output_tokens > 1:
            self.distributions.itl_s.new.append(seconds / (output_tokens - 1))
            self.itl_tokens += output_tokens - 1
            self.itl_s += seconds

    def experienced(self, qoe: float) -> None:
        """The quality of experience of a stream that ended."""
        self.distributions.qoe.new.append(qoe)
        self.qoe_streams += 1
        self.qoe += qoe

    def ended(self, duration_s: float, ttft_s: float | None) -> None:
        """A request that was served ended; `ttft_s` is None if its client received no token."""
        distributions = self.distributions
        distributions.duration_s.new.append(duration_s)
        if ttft_s is not None:
            distributions.ttft_s.new.append(ttft_s)
            self.answers += 1
            self.ttft_s += ttft_s

    def used(self, usage: Usage) -> None:
        """A request used these tokens."""
        input_tokens, cached_tokens, output_tokens = usage
        self.input_tokens += input_tokens
        self.cached_tokens += cached_tokens
        self.output_tokens += output_tokens
        distributions = self.distributions
        distributions.input_tokens.new.append(input_tokens)
        distributions.cached_tokens.new.append(cached_tokens)
        distributions.output_tokens.new.append(output_tokens)


NO_TOTALS: Final = ClientTotals("", Distributions(""), TenantEstimates())


@dataclass(slots=True, eq=False)
class ReplicaTotals:
    """One replica since the router knows it."""

    requests: int = 0
    failures: int = 0
    backoffs: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    rejected_usage: int = 0
    """Reports of usage that were impossible for their request (R18)."""
    packs_tokens: bool = False
    """Whether events of its streams carry several tokens."""


@dataclass(slots=True, eq=False)
class PredictionTotals:
    """Cached tokens: those that the router expected when it chose a replica, and those that the replica found."""

    predicted_tokens: int = 0
    reported_tokens: int = 0
    error_tokens: Histogram = field(default_factory=lambda: Histogram(ERROR_TOKENS))
    """The absolute difference for each request."""


class RequestTotals:
    """All totals."""

    def __init__(
        self, cost: Cost, *, max_clients: int = MAX_CLIENTS, max_tenants: int = MAX_TENANTS
    ) -> None:
        self.cost = cost
        self.refused: Counter[Outcome] = Counter()
        """Failures of requests without an identity."""
        self.faults = 0
        """Requests that a fault of the router ended."""
        self.within_share_ttft_s = ttft_histogram(None)
        """Times to the first token of clients that asked for at most their share (design §7). A request without a
        token counts above all bounds."""
        self.stripped: Counter[str] = Counter()
        """Guarded fields and headers taken out of requests, by name: those of `contract.names`."""
        self.predictions: dict[str, PredictionTotals] = {}
        """Basis of the prediction (`text`, `estimated`, `exact`) → its totals."""
        self._max_clients = max_clients
        self._max_tenants = max_tenants
        self._clients: dict[str, ClientTotals] = {}
        self._others: dict[str, ClientTotals] = {}
        """Identity → totals of a tenant's clients beyond the first `max_clients` of all tenants, which share them."""
        self._tenants: dict[str, Distributions] = {}
        self._other_tenants = Distributions("")
        self._estimates: dict[str, TenantEstimates] = {}
        """Tenant → its estimates. Beyond `MAX_ESTIMATES`, the oldest ones are dropped, and learnt again."""

    def of(self, client: Client) -> ClientTotals:
        """A client's totals; beyond the first `max_clients` clients, those of the tenant's other clients."""
        totals = self._clients.get(client.identity)
        if totals is None:
            own = len(self._clients) < self._max_clients
            of = self._clients if own else self._others
            identity = client.identity if own else other_clients(client.tenant_identity)
            totals = of.get(identity)
            if totals is None:
                totals = of[identity] = ClientTotals(
                    identity, self._distributions(client), self.estimates(client)
                )
        return totals

    def estimates(self, client: Client) -> TenantEstimates:
        """The estimates of a client's tenant, which nothing of another tenant changes (R18)."""
        found = self._estimates.get(client.tenant_identity)
        if found is None:
            if len(self._estimates) >= MAX_ESTIMATES:
                del self._estimates[next(iter(self._estimates))]
            found = self._estimates[client.tenant_identity] = TenantEstimates()
        return found

    def _distributions(self, client: Client) -> Distributions:
        found = self._tenants.get(client.tenant_identity)
        if found is None:
            if len(self._tenants) >= self._max_tenants:
                return self._other_tenants
            found = self._tenants[client.tenant_identity] = Distributions(client.tenant)
        return found

    def clients(self) -> Iterator[ClientTotals]:
        """Totals of clients, then those of each tenant's other clients."""
        yield from self._clients.values()
        yield from self._others.values()

    def distributions(self) -> Iterator[Distributions]:
        """Distributions of every tenant that sent a request; the last ones are those of the other tenants, if there are any."""
        yield from self._tenants.values()
        if len(self._tenants) >= self._max_tenants:
            yield self._other_tenants

    def collect(self) -> Iterator[None]:
        """Count what the distributions have not counted yet, in steps; otherwise their memory would grow."""
        for one in [*self._tenants.values(), self._other_tenants]:
            for histogram in one.histograms():
                histogram.collect()
            yield
        for prediction in self.predictions.values():
            prediction.error_tokens.collect()
        self.within_share_ttft_s.collect()

    def predicted(self, basis: str, predicted_tokens: int, reported_tokens: int) -> None:
        """A replica found `reported_tokens` of a prompt cached; the router expected `predicted_tokens`."""
        of = self.predictions.get(basis)
        if of is None:
            of = self.predictions[basis] = PredictionTotals()
        of.predicted_tokens += predicted_tokens
        of.reported_tokens += reported_tokens
        of.error_tokens.new.append(abs(predicted_tokens - reported_tokens))

    def settle(self, totals: ClientTotals, at: ReplicaTotals, usage: Usage) -> float:
        """Count the tokens that a request used at a replica; returns the service, weighted tokens."""
        totals.used(usage)
        input_tokens, cached_tokens, output_tokens = usage
        at.input_tokens += input_tokens
        at.cached_tokens += cached_tokens
        at.output_tokens += output_tokens
        extend = input_tokens - cached_tokens
        return self.cost.input_cost(extend) + self.cost.output_cost(extend, 0, output_tokens)


@dataclass(slots=True)
class _Requested:
    arrivals: float = 0.0
    """Decayed count of the sequences that arrived."""
    since_s: float = 0.0
    last_s: float = 0.0
    """Time of the client's last request."""
    cost: float = 0.0
    """Decayed sum of the costs of finished requests."""
    finished: float = 0.0
    """Decayed count of their sequences."""


class DemandMeter:
    """Measures the requested service of each client at one router, per second (design §6).

    Rate = arrivals per second × mean cost of finished ones, in sequences (R19), both over an exponential window. So delayed
    requests do not lower the rate. Until a client's first request has finished, its sequences count `FIRST_COST` each. Every router
    publishes its own part and exports the sum of all parts: aggregate it over routers by maximum.
    """

    def __init__(self, *, window_s: float = 60.0) -> None:
        self._window_s = window_s
        self._clients: dict[str, _Requested] = {}
        """Client → its requested service, in the order of the last requests."""

    def __len__(self) -> int:
        return len(self._clients)

    def arrived(self, client: str, now_s: float, sequences: int = 1) -> None:
        """A new request, not a retry."""
        known = self._clients.pop(client, None)
        if known is None:
            known = _Requested(since_s=now_s)
        self._clients[client] = known
        self._decay(known, now_s)
        known.arrivals += sequences
        known.last_s = now_s

    def finished(self, client: str, cost: float, sequences: int = 1) -> None:
        """A request has ended with this cost. It is ignored if its arrival is unknown."""
        known = self._clients.get(client)
        if known is not None:
            known.cost += cost
            known.finished += sequences

    def rates(self, now_s: float) -> dict[str, float]:
        """Weighted tokens per second by client, without those that stopped. Only clients with a recent request are looked at.

        The mean cost of its requests is kept longer: seven windows after a single request, twice as long after a thousand.
        """
        rates = {}
        for client in reversed(self._clients):
            known = self._clients[client]
            if now_s - known.last_s >= SILENT_WINDOWS * self._window_s:
                break
            self._decay(known, now_s)
            mean = known.cost / known.finished if known.finished > 0.01 else FIRST_COST
            rates[client] = known.arrivals / self._window_s * mean
        while self._clients:
            client, known = next(iter(self._clients.items()))
            self._decay(known, now_s)
            if known.arrivals >= 1e-3:
                break
            del self._clients[client]
        return rates

    def _decay(self, known: _Requested, now_s: float) -> None:
        passed_s, known.since_s = now_s - known.since_s, now_s
        if passed_s <= 0:
            return
        kept = math.exp(-passed_s / self._window_s)
        known.arrivals *= kept
        known.cost *= kept
        known.finished *= kept
