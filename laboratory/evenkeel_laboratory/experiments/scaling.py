"""A fleet whose size a scaler decides, in virtual time: the scaling laboratory.

    every interval: observe → scaler decides → replicas start (ready after the start-up time) or drain (gone once idle)

The scaler is a parameter: the operator's own decision core, or a rival. A replica costs GPU time from its start to its end,
the start-up included. Requests of a drained replica finish there; those that wait there are not moved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import inf
from typing import Protocol

import msgspec
from evenkeel_fairshare.fleet.contract import Dispatch, ReplicaSet
from evenkeel_fairshare.measures import percentile
from evenkeel_simulator.traffic.owed import service_of
from evenkeel_simulator.traffic.records import Record
from evenkeel_simulator.traffic.workload import Call, Client, Workload

from evenkeel_laboratory.experiments.fleet import Fleet, FleetConfig, _FleetRequest, _Run
from evenkeel_laboratory.experiments.fleet_watch import (
    REPORT_S,
    FleetWatch,
    Observation,
    within_share,
)

FLAP_S = 300.0
"""A replica that ends earlier after the last start, or starts earlier after the last end, is a flap."""


class Scaler(Protocol):
    """Decides the number of replicas."""

    name: str
    interval_s: float

    def decide(self, seen: Observation) -> int:
        """The number of replicas from now on, at least 1."""


class Meter(Protocol):
    """Measures what clients request; the router's own meter fits."""

    def arrived(self, client: str, now_s: float) -> None:
        """A request arrived."""

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
    """Number of requests of clients within their share."""
    ttft_p50_s: float
    ttft_p99_s: float
    """99th percentile of the time to the first token of requests of clients within their share."""
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
        self._replicas = {slot: _Replica(0.0, 0.0) for slot in range(config.replicas)}
        self._decide_s = 0.0
        self.tick_s = 0.0
        self.gpu_s = 0.0
        self.changes: list[tuple[float, int]] = []
        """(time, number of replicas that exist); for plots."""
        self.starts = self.flaps = 0
        self._last_change = (-inf, 0)
        self._watch = FleetWatch()
        self._report_s = 0.0
        self._open: dict[str, _FleetRequest] = {}
        self._client_of: Callable[[str], Client]  # once it runs

    def run(self, workload: Workload) -> float:
        """Serve a workload; returns when the last request ended, to which GPU time is counted."""
        self._client_of = workload.client
        end_s = super().run(workload)
        for replica in self._replicas.values():
            self.gpu_s += end_s - replica.started_s
        self.changes.append((end_s, len(self._replicas)))
        return end_s

    def tick(self, now_s: float) -> None:
        """Replicas become ready or are gone; the scaler decides."""
        # First ends, then joins, then the report, then the decision: a scaler sees the present fleet.
        for slot, replica in list(self._replicas.items()):
            if replica.draining and not self._outstanding[slot]:
                self._end_replica(slot, now_s)
        ready = [s for s, r in self._replicas.items() if r.ready_s <= now_s and not r.draining]
        for slot in ready:
            if not self._routable >> slot & 1:
                self._routable = ReplicaSet(self._routable | 1 << slot)
                self.policy.joined(slot)
        if now_s >= self._report_s:
            self._report_s = now_s + REPORT_S
            live = {str(slot): self.engines[slot] for slot in self._replicas}
            self._watch.report(now_s, live, self._open.values())
        if now_s >= self._decide_s:
            self._decide_s = now_s + self._scaler.interval_s
            self._apply(max(1, self._scaler.decide(self._observed(now_s, len(ready)))), now_s)
        starting = [r.ready_s for r in self._replicas.values() if r.ready_s > now_s]
        self.tick_s = min([self._decide_s, self._report_s, *starting])

    def _observed(self, now_s: float, ready: int) -> Observation:
        return self._watch.observation(
            now_s,
            [self.engines[slot] for slot in self._replicas],
            ready=ready,
            in_flight=len(self._open),
            asked_per_s=self._meter.rates(now_s),
            client_of=self._client_of,
        )

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
        self._watch.ended(self._open.pop(record.id))
        if record.finished_s is not None:
            self._meter.finished(record.client, service_of(record))
        self._report(record)

    # Replicas

    def _apply(self, target: int, now_s: float) -> None:
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
        self._watch.left(str(slot))
        self.changes.append((now_s, len(self._replicas)))

    def _note_change(self, now_s: float, sign: int) -> None:
        last_s, last = self._last_change
        self.flaps += last == -sign and now_s - last_s < FLAP_S
        self._last_change = (now_s, sign)


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
    within = {minute: within_share(asked, workload.client) for minute, asked in minutes.items()}
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
