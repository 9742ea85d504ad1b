"""Clients that keep a number of requests open on one engine, or send at a rate, and the times of all their tokens.

A client of a closed loop sends its next request when one of its requests ends. So its rate shows how fast the engine serves it. For a
client with a rate of its own, the time to the first token shows it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from pathlib import Path
from random import Random

import msgspec
import yaml
from evenkeel_fairshare.measures import percentile
from evenkeel_simulator.engine.cache import Segment
from evenkeel_simulator.engine.model import Engine
from evenkeel_simulator.engine.request import EngineRequest
from evenkeel_simulator.engine.step import Step


class LoopClient(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One client, or one of its kinds of requests. Token counts are those of each request."""

    name: str
    open_requests: int = 0
    """Requests that it keeps open; 0: it sends at a rate."""
    rate_per_s: float = 0.0
    """Mean rate of its requests, which come by chance."""
    input_tokens: int
    shared_tokens: int = 0
    """The first input tokens, which are the same in all its requests, or in those with the same of its `prefixes`."""
    prefixes: int = 1
    """Different shared prefixes; each request has one of them by chance."""
    output_tokens: int
    max_output_tokens: int | None = None
    """The most output that its requests ask for; None: `output_tokens`."""
    from_s: float = 0.0
    until_s: float = inf
    """Times of its first requests, and after which it sends no more."""

    def __post_init__(self) -> None:
        if (self.open_requests > 0) == (self.rate_per_s > 0):
            raise ValueError(
                f"{self.name}: exactly one of open_requests and rate_per_s must be above 0"
            )
        if self.prefixes < 1:
            raise ValueError(f"{self.name}: prefixes is {self.prefixes}, must be at least 1")

    def prefix_of(self, number: int) -> int:
        """The shared prefix of its request `number`, from 0 up to `prefixes`."""
        return Random(f"{self.name}/{number}").randrange(self.prefixes) if self.prefixes > 1 else 0


class LoopSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workload file: clients on one engine."""

    about: str
    profile: str
    duration_s: float
    warmup_s: float
    """Figures leave out what happens before."""
    clients: tuple[LoopClient, ...]


def read_loop(path: Path) -> LoopSpec:
    """Read a workload file; raises `OSError`, `yaml.YAMLError` or `msgspec.ValidationError`."""
    return msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), LoopSpec)


@dataclass(slots=True)
class LoopFigures:
    """What one client got. Times in seconds."""

    finished: list[float] = field(default_factory=list)
    """Times of the ends of requests."""
    tokens: list[tuple[float, int]] = field(default_factory=list)
    """(time, output tokens)."""
    computed: list[tuple[float, int]] = field(default_factory=list)
    """(time of admission, input tokens computed)."""
    gaps_s: list[tuple[float, float]] = field(default_factory=list)
    """(time, time since the previous token of the same request)."""
    ttfts_s: list[tuple[float, float]] = field(default_factory=list)
    """(time of arrival, time from there to the first token)."""
    hits: list[tuple[float, int, int]] = field(default_factory=list)
    """(time of the end, input tokens, those of them that were cached when the request was first admitted)."""
    retractions: int = 0
    """Times that its requests that ended were retracted."""

    def rate_per_s(self, from_s: float, until_s: float) -> float:
        """Requests that ended per second."""
        return sum(from_s <= at < until_s for at in self.finished) / (until_s - from_s)

    def service_per_s(self, from_s: float, until_s: float) -> float:
        """Weighted tokens per second: input computed + 2·output."""
        events = [*self.computed, *((at, 2 * tokens) for at, tokens in self.tokens)]
        return sum(tokens for at, tokens in events if from_s <= at < until_s) / (until_s - from_s)

    def mean_gap_s(self, from_s: float) -> float:
        """Mean inter-token latency."""
        gaps = self._gaps(from_s)
        return sum(gaps) / len(gaps) if gaps else inf

    def p99_gap_s(self, from_s: float) -> float:
        """99th percentile of inter-token latencies."""
        gaps = self._gaps(from_s)
        return percentile(gaps, 99) if gaps else inf

    def ttft_mean_s(self, from_s: float) -> float:
        """Mean time to the first token."""
        times = [ttft_s for at, ttft_s in self.ttfts_s if at >= from_s]
        return sum(times) / len(times) if times else inf

    def ttft_s(self, from_s: float, part: float) -> float:
        """Percentile `part` of the times to first tokens."""
        times = [ttft_s for at, ttft_s in self.ttfts_s if at >= from_s]
        return percentile(times, part) if times else inf

    def hit_rate(self, from_s: float) -> float:
        """Part of the input that was cached."""
        ended = [(tokens, cached) for at, tokens, cached in self.hits if at >= from_s]
        return sum(cached for _, cached in ended) / max(1, sum(tokens for tokens, _ in ended))

    def _gaps(self, from_s: float) -> list[float]:
        return [gap for at, gap in self.gaps_s if at >= from_s]


def run_closed_loop(
    engine: Engine, clients: Sequence[LoopClient], *, until_s: float, seed: int = 0
) -> dict[str, LoopFigures]:
    """Run `clients` on an empty engine, step by step, until `until_s`; figures by client. `seed`: of the arrivals at a rate."""
    loop = _Loop(engine, clients, until_s=until_s, seed=seed)
    now_s = 0.0
    while now_s < until_s:
        loop.submit_due(now_s)
        step = engine.step(now_s)
        if step is None:
            if not loop.due:
                break
            now_s = loop.due[0][0]
            continue
        now_s = step.end_s
        loop.note(step)
    return loop.figures


class _Loop:
    def __init__(
        self, engine: Engine, clients: Iterable[LoopClient], *, until_s: float, seed: int
    ) -> None:
        self.engine = engine
        self.figures: defaultdict[str, LoopFigures] = defaultdict(LoopFigures)
        self.due: list[tuple[float, int, LoopClient]] = []
        """(time, serial number, client of the request that is sent then) as a heap."""
        self._serial = 0
        self._clients: dict[EngineRequest, LoopClient] = {}
        self._last_token_s: dict[EngineRequest, float] = {}
        for client in clients:
            for _ in range(client.open_requests):
                self._plan(client, client.from_s)
            if client.rate_per_s:
                rng, at_s = Random(f"{seed}/{client.name}"), client.from_s
                while (at_s := at_s + rng.expovariate(client.rate_per_s)) < min(
                    until_s, client.until_s
                ):
                    self._plan(client, at_s)

    def submit_due(self, now_s: float) -> None:
        while self.due and self.due[0][0] <= now_s:
            at_s, number, client = heappop(self.due)
            request = _request(client, number, at_s)
            self._clients[request] = client
            self.engine.submit(request, now_s)

    def note(self, step: Step) -> None:
        """Record what a step did, and plan what follows it."""
        for request in step.admitted:
            self._of(request).computed.append((step.start_s, request.extend_tokens))
        for request in step.produced:
            own = self._of(request)
            own.tokens.append((step.end_s, step.tokens_each))
            last_s = self._last_token_s.get(request)
            if last_s is not None:
                own.gaps_s.append((step.end_s, step.end_s - last_s))
            else:
                own.ttfts_s.append((request.arrival_s, step.end_s - request.arrival_s))
            self._last_token_s[request] = step.end_s
        for request in step.finished:
            self._last_token_s.pop(request, None)
            own = self._of(request)
            own.finished.append(step.end_s)
            own.hits.append((step.end_s, request.input_tokens, request.cached_tokens))
            own.retractions += request.retractions
            client = self._clients.pop(request)
            if client.open_requests and step.end_s < client.until_s:
                self._plan(client, step.end_s)

    def _plan(self, client: LoopClient, at_s: float) -> None:
        self._serial += 1
        heappush(self.due, (at_s, self._serial, client))

    def _of(self, request: EngineRequest) -> LoopFigures:
        return self.figures[request.client.rpartition("/")[2]]


def _request(client: LoopClient, number: int, now_s: float) -> EngineRequest:
    shared = Segment((client.name, "shared", client.prefix_of(number)), client.shared_tokens)
    own = Segment((client.name, number), client.input_tokens - client.shared_tokens)
    return EngineRequest(
        id=f"{client.name}-{number}",
        client=f"ns/{client.name}/{client.name}",
        tenant=f"ns/{client.name}",
        arrival_s=now_s,
        input_tokens=client.input_tokens,
        max_output_tokens=client.max_output_tokens or client.output_tokens,
        target_output_tokens=client.output_tokens,
        prompt=tuple(segment for segment in (shared, own) if segment.tokens),
    )


def total_service_per_s(figures: Collection[LoopFigures], from_s: float, until_s: float) -> float:
    """Weighted tokens per second of all clients."""
    return sum(one.service_per_s(from_s, until_s) for one in figures)
