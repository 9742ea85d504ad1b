"""What each client was served: estimated at dispatch, settled at the end or at the abort (design §5.6).

Place in the flow: … → forward and stream → **account**. Totals only ever grow; metrics, `/v1/state` and
`evenkeel top` read them and subtract.

The surprising thing: histograms and counters here are plain numbers, not a metrics library's objects. One
request touches about fifteen of them, and that is a visible part of its cost; `metrics.py` renders them when
somebody asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, Self

from evenkeel_fairshare.cost import Cost
from evenkeel_fairshare.fleet.contract import Usage

from evenkeel_router.api.identity import MAX_CLIENTS, OTHER, Client
from evenkeel_router.api.outcomes import Outcome
from evenkeel_router.fleet.replicas import ReplicaTotals
from evenkeel_router.histogram import Histogram

SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300)
TOKENS: Final = (1, 8, 32, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
ERROR_TOKENS: Final = (0, *TOKENS)


def ttft_histogram(threshold_s: float | None) -> Histogram:
    """Times to the first token, with a bound that is the objective's threshold: it tells good from bad exactly."""
    return Histogram(sorted({*SECONDS, *(() if threshold_s is None else (threshold_s,))}))


class ClientTotals:
    """One client since the router started."""

    __slots__ = (
        "cached_tokens", "client", "duration_s", "errors", "identity", "in_flight", "input_tokens", "moves",
        "output_tokens", "requests", "retries", "tenant", "tenant_identity", "ttft_s",
    )  # fmt: skip

    def __init__(self, *, identity: str, tenant_identity: str, tenant: str, client: str) -> None:
        self.identity = identity
        self.tenant_identity = tenant_identity
        self.tenant = tenant
        self.client = client
        self.in_flight = 0
        self.requests = 0
        self.retries = 0
        self.moves = 0
        self.errors: Counter[Outcome] = Counter()
        self.input_tokens = Histogram(TOKENS)
        self.cached_tokens = Histogram(TOKENS)
        self.output_tokens = Histogram(TOKENS)
        self.ttft_s = Histogram(SECONDS)
        self.duration_s = Histogram(SECONDS)

    @classmethod
    def of(cls, client: Client) -> Self:
        """Those of a client that nothing was done for yet."""
        return cls(
            identity=client.identity,
            tenant_identity=client.tenant_identity,
            tenant=client.tenant,
            client=client.name,
        )


class PredictionTotals:
    """Cached tokens: those that the router counted on when it chose a replica, and those that were found."""

    __slots__ = ("error_tokens", "predicted_tokens", "reported_tokens")

    def __init__(self) -> None:
        self.predicted_tokens = 0
        self.reported_tokens = 0
        self.error_tokens = Histogram(ERROR_TOKENS)
        """The difference for each request, whichever was more."""


class TokenRatio:
    """Bytes of text per input token, learnt from what replicas report. Starts at 4, as for English."""

    __slots__ = ("_bytes", "_tokens")

    _MEMORY: Final = 0.99  # of about the last hundred requests

    def __init__(self) -> None:
        self._bytes = 4096.0
        self._tokens = 1024.0

    def estimate(self, size_bytes: int) -> int:
        """Input tokens of a prompt, at least 1."""
        return max(1, round(size_bytes * self._tokens / self._bytes))

    def learn(self, size_bytes: int, tokens: int) -> None:
        """A prompt of `size_bytes` had `tokens`."""
        self._bytes = self._bytes * self._MEMORY + size_bytes
        self._tokens = self._tokens * self._MEMORY + tokens


class RequestTotals:
    """All totals."""

    def __init__(self, cost: Cost, *, max_clients: int = MAX_CLIENTS) -> None:
        self.cost = cost
        self.ratio = TokenRatio()
        self.refused: Counter[Outcome] = Counter()
        """Failures of requests without an identity."""
        self.faults = 0
        """Requests that a fault of the router ended."""
        self.within_share_ttft_s = ttft_histogram(None)
        """Of clients that asked for no more than their share (design §7); what failed without a token never came."""
        self.stripped: Counter[str] = Counter()
        """Guarded fields and headers taken out of requests, by name: those of `contract.names`."""
        self.predictions: dict[str, PredictionTotals] = {}
        """By what they rest on: `text`, `estimated`, `exact`."""
        self._max_clients = max_clients
        self._clients: dict[str, ClientTotals] = {}
        self._other = ClientTotals(
            identity=OTHER, tenant_identity=OTHER, tenant=OTHER, client=OTHER
        )

    def of(self, client: Client) -> ClientTotals:
        """A client's totals, or those of all clients beyond the first `max_clients`."""
        totals = self._clients.get(client.identity)
        if totals is None:
            if len(self._clients) >= self._max_clients:
                return self._other
            totals = self._clients[client.identity] = ClientTotals.of(client)
        return totals

    def clients(self) -> Iterator[ClientTotals]:
        """All totals of clients, `other` last and only if there is any."""
        yield from self._clients.values()
        if self._other.requests or self._other.in_flight:
            yield self._other

    def predicted(self, basis: str, predicted_tokens: int, reported_tokens: int) -> None:
        """A replica found `reported_tokens` of a prompt cached, where the router had counted on the others."""
        of = self.predictions.get(basis)
        if of is None:
            of = self.predictions[basis] = PredictionTotals()
        of.predicted_tokens += predicted_tokens
        of.reported_tokens += reported_tokens
        of.error_tokens.observe(abs(predicted_tokens - reported_tokens))

    def settle(self, totals: ClientTotals, at: ReplicaTotals, usage: Usage) -> float:
        """Charge what a request used at a replica; returns the service, weighted tokens."""
        extend = usage.input_tokens - usage.cached_tokens
        service = self.cost.input_cost(extend) + self.cost.output_cost(
            extend, 0, usage.output_tokens
        )
        totals.input_tokens.observe(usage.input_tokens)
        totals.cached_tokens.observe(usage.cached_tokens)
        totals.output_tokens.observe(usage.output_tokens)
        at.input_tokens += usage.input_tokens
        at.cached_tokens += usage.cached_tokens
        at.output_tokens += usage.output_tokens
        return service
