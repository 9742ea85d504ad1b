"""A fleet whose size a scaler decides, in virtual time: the scaling laboratory.

    every interval: observe → scaler decides → replicas start (ready after the start-up time) or drain (gone once idle)

The scaler is a parameter: the operator's own decision core, or a rival. A replica costs GPU time from its start to its end,
the start-up included. Requests of a drained replica finish there; those that wait there are not moved.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import inf
from typing import Protocol

import msgspec
from evenkeel_fairshare.fleet.contract import Dispatch, ReplicaSet
from evenkeel_fairshare.measures import percentile
from evenkeel_fairshare.tenancy import shares

from evenkeel_simulator.engine.request import State
from evenkeel_simulator.experiments.fleet import Fleet, FleetConfig, _FleetRequest, _Run
from evenkeel_simulator.experiments.owed import service_of
from evenkeel_simulator.experiments.records import Record
from evenkeel_simulator.experiments.workload import Call, Workload

WINDOW_S = 120.0
"""Of rates and means that scalers read: RATE of the operator's queries."""
FLAP_S = 300.0
"""A replica that ends earlier after the last start, or starts earlier after the last end, is a flap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a scaler may know now."""

    now_s: float
    ready: int
    target: int
    """The number that was decided last."""
    waiting: int
    """Requests in the queues of all replicas."""
    in_flight: int
    asked_per_s: Mapping[str, float]
    """By client: weighted tokens per second."""
    seen_per_s: float | None
    """Weighted tokens per second that a ready replica did, over `WINDOW_S`; None before."""
    busy_part: float
    """Part of `WINDOW_S` in which requests waited."""
    queue_s: float | None
    """Mean wait of requests of clients within their share; None without one."""
    ttft_p95_s: float | None
    """Likewise, over `WINDOW_S`."""


class Scaler(Protocol):
    """Decides the number of replicas."""

    name: str
    interval_s: float

    def decide(self, seen: Observation) -> int:
        """The number of replicas from now on, at least 1."""


class Meter(Protocol):
    """Measures what clients request; the router's own meter fits."""

    def arrived(self, client: str, now_s: float) -> None:
        """A new request."""

    def finished(self, client: str, cost: float) -> None:
        """A request has ended with this cost, weighted tokens."""

    def rates(self, now_s: float) -> dict[str, float]:
        """Weighted tokens per second by client."""


class ScalingFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one scaler."""

    scaler: str
    gpu_s: float
    attainment: float | None
    """Part of the requests of clients within their share whose first token came in time."""
    within_share: int
    """Those requests."""
    ttft_p50_s: float
    ttft_p99_s: float
    """Of those requests."""
    flaps: int
    starts: int
    peak: int
    makespan_s: float


@dataclass(slots=True)
class _Replica:
    started_s: float
    ready_s: float
    draining: bool = False


class ScaledFleet(Fleet):
    """Runs one workload. `config.replicas` is the number at the start; those are ready at once."""

    def __init__(
        self,
        config: FleetConfig,
        on_record: Callable[[Record], None],
        *,
        scaler: Scaler,
        meter: Meter,
        startup_s: float,
    ) -> None:
        super().__init__(config, self._note_record)
        self._report = on_record
        self._scaler = scaler
        self._meter = meter
        self._startup_s = startup_s
        self._target = config.replicas
        self._replicas = {slot: _Replica(0.0, 0.0) for slot in range(config.replicas)}
        self._decide_s = 0.0
        self.tick_s = 0.0
        self.gpu_s = 0.0
        self.changes: list[tuple[float, int]] = []
        """(time, number of replicas that exist); for plots."""
        self.starts = self.flaps = 0
        self._last_change = (-inf, 0)
        self._done: deque[tuple[float, Record]] = deque()
        self._open: dict[str, _FleetRequest] = {}
        self._weights: Mapping[str, tuple[float, str, float]] = {}
        self._waited: deque[tuple[float, bool]] = deque()

    def run(self, workload: Workload) -> float:
        """Serve a workload; returns when the last request ended, to which GPU time is counted."""
        self._weights = {
            name: (one.client_weight, one.tenant, one.tenant_weight)
            for name, one in workload.clients.items()
        }
        end_s = super().run(workload)
        for replica in self._replicas.values():
            self.gpu_s += end_s - replica.started_s
        self.changes.append((end_s, len(self._replicas)))
        return end_s

    def tick(self, now_s: float) -> None:
        """Replicas become ready or are gone; the scaler decides."""
        for slot, replica in list(self._replicas.items()):
            if replica.draining and not self._outstanding[slot]:
                self._end_replica(slot, now_s)
        ready = [s for s, r in self._replicas.items() if r.ready_s <= now_s and not r.draining]
        for slot in ready:
            if not self._routable >> slot & 1:
                self._routable = ReplicaSet(self._routable | 1 << slot)
                self.policy.joined(slot)
        if now_s >= self._decide_s:
            self._decide_s = now_s + self._scaler.interval_s
            self._apply(max(1, self._scaler.decide(self._observed(now_s, len(ready)))), now_s)
        starting = [r.ready_s for r in self._replicas.values() if r.ready_s > now_s]
        self.tick_s = min([self._decide_s, *starting])

    # Events of the base class.

    def _send(self, run: _Run, number: int, call: Call, now_s: float) -> None:
        self._meter.arrived(run.client.name, now_s)
        super()._send(run, number, call, now_s)

    def _request(
        self, run: _Run, number: int, dispatch: Dispatch, arrival_s: float
    ) -> _FleetRequest:
        request = super()._request(run, number, dispatch, arrival_s)
        self._open[request.id] = request
        return request

    def _note_record(self, record: Record) -> None:
        del self._open[record.id]
        if record.finished_s is not None:
            self._meter.finished(record.client, service_of(record))
            self._done.append((record.finished_s, record))
        self._report(record)

    # The scaler's view

    def _observed(self, now_s: float, ready: int) -> Observation:
        while self._done and self._done[0][0] < now_s - WINDOW_S:
            self._done.popleft()
        waiting = self._waiting()
        self._waited.append((now_s, bool(waiting)))
        while self._waited[0][0] < now_s - WINDOW_S:
            self._waited.popleft()
        served: defaultdict[str, float] = defaultdict(float)
        for _, record in self._done:
            served[record.client] += service_of(record)
        asked = self._meter.rates(now_s)
        within = within_share(asked, self._weights)
        of_within = [record for _, record in self._done if record.client in within]
        waits = sum(count for name, count in waiting.items() if name in within)
        ttfts = [record.ttft_s for record in of_within if record.ttft_s is not None]
        per_s = len(of_within) / WINDOW_S
        return Observation(
            now_s=now_s,
            ready=ready,
            target=self._target,
            waiting=sum(waiting.values()),
            in_flight=sum(self._outstanding),
            asked_per_s=asked,
            seen_per_s=sum(served.values()) / WINDOW_S / ready
            if ready and now_s >= WINDOW_S
            else None,
            busy_part=sum(busy for _, busy in self._waited) / len(self._waited),
            queue_s=waits / per_s if per_s else None,
            ttft_p95_s=percentile(ttfts, 95) if ttfts else None,
        )

    def _waiting(self) -> dict[str, int]:
        found: defaultdict[str, int] = defaultdict(int)
        for request in self._open.values():
            if request.state is State.WAITING:
                found[request.client] += 1
        return found

    # Replicas

    def _apply(self, target: int, now_s: float) -> None:
        self._target = target
        present = [slot for slot, one in self._replicas.items() if not one.draining]
        for _ in range(target - len(present)):
            self._note_change(now_s, 1)
            self._start_replica(now_s)
        # Those that start first, since they serve nothing yet; then those with the fewest requests.
        leaving = sorted(
            present,
            key=lambda slot: (
                self._replicas[slot].ready_s <= now_s,
                self._outstanding[slot],
                slot,
            ),
        )
        for slot in leaving[: max(0, len(present) - target)]:
            self._note_change(now_s, -1)
            replica = self._replicas[slot]
            replica.draining = True
            if self._routable >> slot & 1:
                self._routable = ReplicaSet(self._routable & ~(1 << slot))
                self.policy.left(slot)
            if not self._outstanding[slot]:
                self._end_replica(slot, now_s)

    def _start_replica(self, now_s: float) -> None:
        slot = next(n for n in range(len(self.engines) + 1) if n not in self._replicas)
        if slot == len(self.engines):
            self.engines.append(self._make_engine(slot))
            self._outstanding.append(0)
        else:
            self.engines[slot] = self._make_engine(slot)  # a new process has an empty cache
        self._replicas[slot] = _Replica(now_s, now_s + self._startup_s)
        self.starts += 1
        self.changes.append((now_s, len(self._replicas)))

    def _end_replica(self, slot: int, now_s: float) -> None:
        self.gpu_s += now_s - self._replicas.pop(slot).started_s
        self.index.drop(slot)
        self.changes.append((now_s, len(self._replicas)))

    def _note_change(self, now_s: float, sign: int) -> None:
        last_s, last = self._last_change
        self.flaps += last == -sign and now_s - last_s < FLAP_S
        self._last_change = (now_s, sign)


def within_share(
    asked: Mapping[str, float], weights: Mapping[str, tuple[float, str, float]]
) -> frozenset[str]:
    """Clients that ask for no more than twice their weighted part of all that is asked for.

    `weights`: client weight, tenant and tenant weight by client; clients that are missing weigh 1. Twice, because in a fleet of
    equals half of the clients ask for more than the mean.
    """
    active = {name: rate for name, rate in asked.items() if rate > 0}
    known = {name: weights.get(name, (1.0, name, 1.0)) for name in active}
    identities = {name: f"{known[name][1]}/{number}" for number, name in enumerate(active)}
    of_client = {identities[name]: known[name][0] for name in active}
    of_tenant = {tenant: weight for _, tenant, weight in known.values()}
    parts = shares(list(of_client), of_client.__getitem__, of_tenant.__getitem__)
    total = sum(active.values())
    return frozenset(
        name for name, rate in active.items() if rate <= 2 * parts[identities[name]] * total
    )


MINUTE_S = 60.0


def attained(
    records: Collection[Record], workload: Workload, *, threshold_s: float
) -> tuple[float | None, list[float]]:
    """(part of requests in time, their TTFTs) of clients within their share, whatever a scaler did.

    A request counts if its client asked for no more than twice its weighted part in that minute (`within_share`). A request
    that was not served is not in time.
    """
    minutes: defaultdict[int, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for record in records:
        cost = record.input_tokens + 2.0 * record.output_tokens
        minutes[int(record.arrival_s // MINUTE_S)][record.client] += cost
    weights = {
        name: (client.client_weight, client.tenant, client.tenant_weight)
        for name in {record.client for record in records}
        for client in (workload.client(name),)
    }
    within = {minute: within_share(asked, weights) for minute, asked in minutes.items()}
    counted = [r for r in records if r.client in within[int(r.arrival_s // MINUTE_S)]]
    ttfts = [inf if record.ttft_s is None else record.ttft_s for record in counted]
    good = sum(ttft <= threshold_s for ttft in ttfts)
    return (good / len(ttfts) if ttfts else None), ttfts


def run_scaled(
    config: FleetConfig,
    workload: Workload,
    *,
    scaler: Scaler,
    meter: Meter,
    startup_s: float,
    threshold_s: float,
) -> tuple[ScalingFigures, list[tuple[float, int]], list[Record]]:
    """(figures, number of replicas over time, records) of one run."""
    records: list[Record] = []
    fleet = ScaledFleet(config, records.append, scaler=scaler, meter=meter, startup_s=startup_s)
    makespan_s = fleet.run(workload)
    part, ttfts = attained(records, workload, threshold_s=threshold_s)
    return (
        ScalingFigures(
            scaler=scaler.name,
            gpu_s=fleet.gpu_s,
            attainment=part,
            within_share=len(ttfts),
            ttft_p50_s=percentile(ttfts, 50) if ttfts else 0.0,
            ttft_p99_s=percentile(ttfts, 99) if ttfts else 0.0,
            flaps=fleet.flaps,
            starts=fleet.starts,
            peak=max([config.replicas, *(count for _, count in fleet.changes)]),
            makespan_s=makespan_s,
        ),
        [(0.0, config.replicas), *fleet.changes],
        records,
    )
