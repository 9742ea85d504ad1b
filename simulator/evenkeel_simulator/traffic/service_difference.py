"""The "service difference" of the VTC paper's tables 2 to 6, by the recipe of its artifact.

Recipe (facts read from the artifact, where the paper leaves them open): a request's whole cost is spread
evenly from its first token to its end; requests that end within the first second or in no time are left
out of service, but not of demand. Service and demand are rates over windows of 60 s, 19 of them, that begin
after a warm-up of 30 s; a request is demanded when it arrives. At each window

    difference = Σ_i min(max_j S_j - S_i, |R_i - S_i|)

over clients i with at least one completed request, S service rate, R demanded rate. The table gives the
largest, the mean and the population variance over the windows.

|R_i - S_i| also counts a client that is served what it asked for earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance

from evenkeel_simulator.traffic.timeline import Completion, Span, Window, linear_price, served

_FIRST_SECOND_S = 1.0
# A request below this time has no rate: its service would be divided by almost 0.
_NO_TIME_S = 1e-5


@dataclass(frozen=True, slots=True)
class ServiceDifference:
    """One row of the VTC tables, weighted tokens per second."""

    max: float
    avg: float
    var: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Where the windows lie. The defaults are those of the tables: runs of 600 s."""

    duration_s: float = 600.0
    """How long requests arrive."""
    warmup_s: float = 30.0
    window_s: float = 60.0
    ticks: int = 20
    """One more than there are windows: the tick at 0 is not used."""

    def windows(self) -> list[Window]:
        """Tick k, at k·(duration - warm-up)/ticks, looks at a window centred one warm-up later."""
        if not self.duration_s > self.warmup_s:
            raise ValueError(
                f"duration_s is {self.duration_s}, must be more than the warm-up of {self.warmup_s} s"
            )
        spacing_s = (self.duration_s - self.warmup_s) / self.ticks
        centres_s = [spacing_s * tick + self.warmup_s for tick in range(1, self.ticks)]
        half_s = self.window_s / 2
        return [(centre_s - half_s, centre_s + half_s) for centre_s in centres_s]


Price = Callable[[int, int], float]
"""The cost of a request from its input and output tokens."""


def spread(completions: Collection[Completion], *, price: Price = linear_price) -> list[Span]:
    """The whole cost of each request over its time from first token to end (ALGORITHMS A5)."""
    return [
        Span(
            request.client,
            request.first_token_s,
            request.end_s,
            price(request.input_tokens, request.output_tokens),
        )
        for request in completions
        if request.end_s >= _FIRST_SECOND_S and request.end_s - request.first_token_s >= _NO_TIME_S
    ]


def differences(
    completions: Collection[Completion],
    *,
    recipe: Recipe | None = None,
    price: Price = linear_price,
) -> list[float]:
    """The service difference at each tick. `price` is of service; demand is p + 2q in any case, as in the artifact."""
    recipe = recipe or Recipe()
    windows = recipe.windows()
    nothing = [0.0] * len(windows)
    service = served(spread(completions, price=price), windows)
    demand = _demanded(completions, windows)
    rates = [(service.get(client, nothing), demand[client]) for client in demand]
    return [
        _difference([(got[tick], asked[tick]) for got, asked in rates]) / recipe.window_s
        for tick in range(len(windows))
    ]


def service_difference(
    completions: Collection[Completion],
    *,
    recipe: Recipe | None = None,
    price: Price = linear_price,
) -> ServiceDifference:
    """A table's Max, Avg and Var columns; all 0 where nothing completed."""
    at_ticks = differences(completions, recipe=recipe, price=price)
    return ServiceDifference(max(at_ticks), fmean(at_ticks), pvariance(at_ticks))


def _difference(clients: Sequence[tuple[float, float]]) -> float:
    """The sum over clients, each as (service, demand) of one window."""
    most = max((got for got, _ in clients), default=0.0)
    return sum(min(most - got, abs(asked - got)) for got, asked in clients)


def _demanded(
    completions: Collection[Completion], windows: Sequence[Window]
) -> dict[str, list[float]]:
    """p + 2q of what arrived in each window, both ends included. Every client has a row."""
    asked: dict[str, list[float]] = {}
    for request in completions:
        client = asked.setdefault(request.client, [0.0] * len(windows))
        amount = linear_price(request.input_tokens, request.output_tokens)
        for tick, (start_s, end_s) in enumerate(windows):
            if start_s <= request.arrival_s <= end_s:
                client[tick] += amount
    return asked
