"""Samples of the last hour for the console: per client, per tenant, and of all clients together. Pure.

The router reads all totals every two seconds (`sampler.py`). A rate is the growth of a total over the last `TICKS` readings.
After every `TICKS` readings the same figures become a sample, and samples older than an hour are overwritten.

Memory: `len(FIELDS) * SAMPLES` floats of 4 bytes are 8.6 kB for each client. At most `max_clients` clients have samples of
their own (8.7 MB for 1,000); later ones are sampled with the other clients of their tenant, as in the metrics.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from operator import add, attrgetter
from typing import Final, NamedTuple

import msgspec
from evenkeel_contract.figures import Figures, grown, mean
from evenkeel_fairshare.ledger import tenant_of

from evenkeel_router.api.identity import MAX_CLIENTS, other_clients
from evenkeel_router.ledger.clients import ClientFigures, Growth, growth, rates

TICKS: Final = 5
"""Readings per window: ten seconds."""
SAMPLES: Final = 360
"""One hour of windows."""
NOTHING: Final = Figures()
NO_LATENCIES: Final[Mapping[str, float]] = {}
WHOLE_SERVICE: Final = ""
"""The name of all clients together. Tenants have theirs, `namespace/tenant`."""
STRIDE: Final = 50
"""Clients per step; requests may be served between steps."""
FIELDS: Final = (
    "service_per_s",
    "owed_per_s",
    "output_tokens_per_s",
    "ttft_s",
    "waiting",
    "running",
)
"""The figures that are kept for an hour."""
_KEPT: Final = attrgetter(*FIELDS)
SUMS: Final = tuple(name for name in FIELDS if name != "ttft_s")
"""Kept figures that several clients, or models, have together."""
_SUMMED: Final = attrgetter(*SUMS)


class Moment(NamedTuple):
    """The figures of all clients, and of all replicas."""

    at_s: float
    """Time of a monotonic clock."""
    clients: Mapping[str, ClientFigures]
    """Identity → figures. A tenant's clients without a name share `other_clients` of the tenant."""
    replicas: Mapping[str, tuple[float, float, float]] = {}
    """Service of a replica's process, and of requests that this router sent there: cached tokens, input tokens."""
    cpu_s: float = 0.0
    """CPU time of the event loop's thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateWindow:
    """Figures between two moments."""

    seconds: float = 0.0
    rates: Mapping[str, Figures] = field(default_factory=dict)
    """Figures by identity, by tenant, and of `WHOLE_SERVICE`."""
    replicas: Mapping[str, Figures] = field(default_factory=dict)
    """Replica → service, and hit rate."""
    cpu: float = 0.0
    """CPU seconds of the event loop per second."""


class _Samples:
    """A ring for each figure, one after the other in one array. `newest`: number of the last sample."""

    __slots__ = ("newest", "values")

    def __init__(self) -> None:
        self.values = array("f", [nan]) * (len(FIELDS) * SAMPLES)
        self.newest = -1

    def put(self, number: int, own: Figures | None) -> None:
        kept = (None,) * len(FIELDS) if own is None else _KEPT(own)
        for at, value in enumerate(kept):
            self.values[at * SAMPLES + number % SAMPLES] = nan if value is None else value
        if own is not None:
            self.newest = number

    def column(self, at: int, first: int, count: int) -> list[float]:
        """`count` samples from the number `first` on."""
        ring, start = self.values[at * SAMPLES : (at + 1) * SAMPLES], first % SAMPLES
        return [*ring[start:], *ring[:start]][:count]


class History:
    """What the console shows: the current window, and the samples of the last hour."""

    def __init__(self, *, max_clients: int = MAX_CLIENTS) -> None:
        self.now = RateWindow()
        self.times_s: deque[float] = deque(maxlen=SAMPLES - 1)
        """Times of the complete samples, by the clock of the moments, which only grows. The oldest slot may be in use
        for the next one."""
        self._moments: deque[Moment] = deque(maxlen=TICKS + 1)
        self._samples: dict[str, _Samples] = {}
        self._named = 0
        """Clients among `_samples`."""
        self._max_clients = max_clients
        self._ticks = 0
        self._count = 0
        """Samples since the start."""

    def __len__(self) -> int:
        """Clients, tenants and `WHOLE_SERVICE` that have samples."""
        return len(self._samples)

    @property
    def samples_next(self) -> bool:
        """Whether the next reading ends a sample."""
        return (self._ticks + 1) % TICKS == 0

    def add(
        self, moment: Moment, latencies: Mapping[str, float] = NO_LATENCIES
    ) -> Generator[None, None, None]:
        """Take readings, in steps: compute `now`, and after every `TICKS` readings a sample. `latencies`: client → its time to first
        token in a sample, where it differs from the mean of those that ended, because requests still wait."""
        self._moments.append(moment)
        self.now = yield from window_between(self._moments[0], moment)
        self._ticks += 1
        if self._ticks % TICKS == 0:
            yield from self._sample(moment.at_s, latencies)

    def columns(self, name: str) -> dict[str, list[float]] | None:
        """Field → samples, oldest first, as many as `times_s`; None if there are none. NaN: unknown."""
        samples = self._samples.get(name)
        if samples is None:
            return None
        count = len(self.times_s)
        return {
            figure: samples.column(at, self._count - count, count)
            for at, figure in enumerate(FIELDS)
        }

    def most_concerned(
        self, within: str, number: int, concerned: Sequence[str]
    ) -> Generator[None, None, list[str]]:
        """Clients of one tenant or of all (`WHOLE_SERVICE`), in steps: the `concerned` in their order, then those with the most service in
        the hour."""
        served: dict[str, float] = {}
        for n, (name, samples) in enumerate(list(self._samples.items())):
            if _is_client(name) and within in (WHOLE_SERVICE, tenant_of(name)):
                total = sum(value for value in samples.values[:SAMPLES] if not isnan(value))
                if total > 0:
                    served[name] = total
            if n % STRIDE == 0:
                yield
        first = [
            name
            for name in concerned
            if name in self._samples and within in (WHOLE_SERVICE, tenant_of(name))
        ]
        most = sorted(served, key=lambda name: (-served[name], name))
        return list(dict.fromkeys((*first, *most)))[:number]

    def _sample(self, at_s: float, latencies: Mapping[str, float]) -> Generator[None, None, None]:
        number, rates = self._count, self._within_limit(self.now.rates)
        for n, (name, own) in enumerate(rates.items()):
            samples = self._samples.get(name)
            if samples is None:
                samples = self._samples[name] = _Samples()
                self._named += _is_client(name)
            if (ttft_s := latencies.get(name)) is not None:
                own = msgspec.structs.replace(own, ttft_s=ttft_s)
            samples.put(number, own)
            if n % STRIDE == 0:
                yield
        for name in [name for name in self._samples if name not in rates]:
            self._samples[name].put(number, None)
            if number - self._samples[name].newest >= SAMPLES:
                del self._samples[name]
                self._named -= _is_client(name)
        self._count += 1
        self.times_s.append(at_s)

    def _within_limit(self, rates: Mapping[str, Figures]) -> dict[str, Figures]:
        """The rates of at most `max_clients` clients with a name; those of later ones are added to their tenant's
        other clients."""
        kept: dict[str, Figures] = {}
        room = self._max_clients - self._named
        for name, own in rates.items():
            if _is_client(name) and name not in self._samples:
                rest = other_clients(tenant_of(name))
                if room <= 0 and name != rest:
                    kept[rest] = together((kept.get(rest, rates.get(rest, NOTHING)), own))
                    continue
                room -= 1
            kept.setdefault(name, own)
        return kept


def window_between(before: Moment, now: Moment) -> Generator[None, None, RateWindow]:
    """Figures of the time between two moments, in steps."""
    seconds, past = now.at_s - before.at_s, before.clients
    together: dict[str, Growth] = {}
    for n, (name, own) in enumerate(now.clients.items()):
        # A client that only got a name of its own was one of its tenant's others: it counts from now.
        unnamed = own if other_clients(tenant_of(name)) in past else None
        more = growth(own, past.get(name, unnamed))
        for level in (name, tenant_of(name), WHOLE_SERVICE):
            sums = together.get(level)
            together[level] = more if sums is None else tuple(map(add, sums, more))
        if n % STRIDE == 0:
            yield
    found = {}
    for n, (name, more) in enumerate(together.items()):
        found[name] = rates(more, seconds)
        if n % STRIDE == 0:
            yield
    replicas = {}
    for name, totals in now.replicas.items():
        service, cached, inputs = map(grown, totals, before.replicas.get(name, (0, 0, 0)))
        per_s = mean(service, seconds) or 0.0
        replicas[name] = Figures(service_per_s=per_s, hit_rate=mean(cached, inputs))
    cpu = (now.cpu_s - before.cpu_s) / seconds if seconds > 0 else 0.0
    return RateWindow(seconds=seconds, rates=found, replicas=replicas, cpu=cpu)


def together(every: Iterable[Figures]) -> Figures:
    """Sums. The means are not comparable without their counts, so they are left out."""
    sums = map(sum, zip(*map(_SUMMED, every), strict=True))
    return Figures(**dict(zip(SUMS, sums, strict=True)))


def _is_client(name: str) -> bool:
    return name.count("/") == 2
