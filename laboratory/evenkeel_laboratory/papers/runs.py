"""Runs one workload of a paper under one system."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
from evenkeel_simulator.traffic.records import Record
from evenkeel_simulator.traffic.service_difference import spread
from evenkeel_simulator.traffic.summary import (
    Summary,
    completion,
    program_latencies,
    summarise,
)
from evenkeel_simulator.traffic.timeline import Completion, Span
from evenkeel_simulator.traffic.workload import Workload

from evenkeel_laboratory.experiments.fleet import Fleet
from evenkeel_laboratory.experiments.setup import Setup, engine_config, find_profile
from evenkeel_laboratory.experiments.workload_file import WorkloadSpec, make_workload, read_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Where workloads and traces are, and how much is run."""

    workloads: Path
    traces: Path
    quick: bool = False
    """Shorter workloads of the DLPM and Andes papers, and fewer points."""
    seed: int = 0
    note: Callable[[str], None] = field(default=lambda text: None)
    """Receives the name of each run before the run begins."""

    def seeds(self, count: int) -> list[Context]:
        """Contexts with this seed and the next ones, `count` in all; a quick run has one."""
        return [replace(self, seed=self.seed + n) for n in range(1 if self.quick else count)]

    def spec(self, name: str) -> WorkloadSpec:
        return read_spec(self.workloads / f"{name}.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished run."""

    records: Sequence[Record]
    makespan_s: float
    summary: Summary
    spec: WorkloadSpec | None
    blocked_s: float = 0.0
    """DLPMCentral: replica seconds that waited for the scheduler."""

    def completions(self) -> list[Completion]:
        """The finished requests, for the measures of the laboratory."""
        return [completion(one) for one in self.records if one.status == "finished"]

    def spans(self) -> list[Span]:
        """Service, spread over each request (ALGORITHMS A5)."""
        return spread(self.completions())

    def well(self) -> list[Record]:
        """Requests of the clients that keep to their share."""
        assert self.spec is not None
        return [one for one in self.records if one.client not in self.spec.misbehaving]

    def latency_s(self) -> float:
        """Mean latency of the programs of the well-behaved."""
        return fmean(program_latencies(self.well()))

    def ttft_s(self, client: str | None = None) -> float:
        """Mean, of one client or of the well-behaved."""
        records = self.well() if client is None else self.of(client)
        return fmean([one.ttft_s for one in records if one.ttft_s is not None])

    def of(self, client: str) -> list[Record]:
        return [one for one in self.records if one.client == client]


def run(
    context: Context, spec: WorkloadSpec, system: str, setup: Mapping[str, Any] | None = None
) -> Run:
    """One workload under one fleet; `setup` replaces fields of `Setup`. `system`: for the progress report."""
    context.note(system)
    config = Setup(
        profile=find_profile(spec.profile),
        replicas=spec.replicas,
        engine=engine_config(kv_tokens=spec.kv_tokens),
        order="LongestMatch",  # that of the paper's DLPM
    )
    config = replace(config, **(setup or {}))
    work = make_workload(system, spec, seed=context.seed, traces=context.traces)
    return run_work(config, work, spec)


def run_work(setup: Setup, work: Workload, spec: WorkloadSpec | None = None) -> Run:
    """A workload that is ready."""
    records: list[Record] = []
    fleet = Fleet(setup.fleet(), records.append)
    makespan_s = fleet.run(work)
    return Run(
        records=records,
        makespan_s=makespan_s,
        summary=summarise(records, makespan_s, duration_s=work.duration_s, clients=work.clients),
        spec=spec,
        blocked_s=0.0 if fleet.central is None else fleet.central.blocked_s,
    )


def scaled(
    spec: WorkloadSpec, *, load: float = 1.0, replicas: int | None = None, length: float = 1.0
) -> WorkloadSpec:
    """`load` times the arrivals per replica, on `replicas`, for a part of the duration."""
    replicas = replicas or spec.replicas
    factor = load * replicas / spec.replicas
    clients = []
    for client in spec.clients:
        arrivals = client.arrivals
        arrivals = msgspec.structs.replace(
            arrivals,
            rate_per_s=arrivals.rate_per_s * factor,
            start_s=arrivals.start_s * length,
            stop_s=arrivals.stop_s * length,
        )
        clients.append(msgspec.structs.replace(client, arrivals=arrivals))
    return msgspec.structs.replace(
        spec, clients=tuple(clients), replicas=replicas, duration_s=spec.duration_s * length
    )
