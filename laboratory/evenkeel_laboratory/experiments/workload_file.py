"""Workloads as data: a YAML file with clients, their programs and rates, and the fleet (`bench/workloads/`).

A spec describes clients whose programs are generated, or names a trace and the assignment of its sessions to clients, or
names the tables of ServeGen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import merge
from pathlib import Path
from random import Random
from typing import Annotated

import msgspec
import yaml
from evenkeel_simulator.traffic.traces import Row, programs, read_trace, session_hash
from evenkeel_simulator.traffic.workload import Client, Program, Workload, tenant_of, weighted

from evenkeel_laboratory.experiments.fleet import MAX_REPLICAS
from evenkeel_laboratory.experiments.generators import Arrivals, ProgramSpec
from evenkeel_laboratory.experiments.servegen import read_tables


class WorkloadError(ValueError):
    """A workload file that cannot be used; the message names file and field."""


class _Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ClientSpec(_Struct, frozen=True, kw_only=True):
    """One client, or `count` equal ones named `<name>-1` and so on."""

    name: str
    arrivals: Arrivals
    program: ProgramSpec
    count: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    weight: Annotated[int, msgspec.Meta(ge=1)] = 1
    adapters: tuple[str, ...] = ()
    """LoRA adapters: each program uses one of them, by chance. Empty: the model without an adapter."""
    misbehaves: bool = False
    """Requests more than its share; excluded from the figures of well-behaved clients."""

    def names(self) -> list[str]:
        return (
            [self.name] if self.count == 1 else [f"{self.name}-{n + 1}" for n in range(self.count)]
        )


class TraceSpec(_Struct, frozen=True, kw_only=True):
    """A trace and its clients."""

    file: str
    """Name of a file in the folder of traces."""
    shares: dict[str, Annotated[int, msgspec.Meta(ge=1, le=10_000)]]
    """Client → share of the sessions. Each session goes to one client, by a hash of its name and the seed."""
    speed: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """2: arrivals in half the time."""
    jitter_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Arrivals are moved by up to this much (before `speed`): Mooncake's are in bursts of 3 s."""
    weights: dict[str, Annotated[float, msgspec.Meta(gt=0)]] = {}
    """Weights of clients, or of tenants: a client `namespace/tenant/name` belongs to `namespace/tenant`, others to
    `default/default`."""
    misbehaving: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.shares:
            raise ValueError("shares names no client")
        weighted(self.shares, self.weights)
        unknown = [client for client in self.misbehaving if client not in self.shares]
        if unknown:
            raise ValueError(f"misbehaving names {', '.join(unknown)}, which shares does not")


class ServeGenSpec(_Struct, frozen=True, kw_only=True):
    """ServeGen's tables (`servegen.py`): names of two files in the folder of traces."""

    rates: str
    lengths: str
    start_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Time of the day at which the run begins."""
    load: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """Factor on every client's rate."""


class WorkloadSpec(_Struct, frozen=True, kw_only=True):
    """A workload and the fleet it is meant for."""

    about: str
    """Source of its numbers."""
    profile: str
    replicas: Annotated[int, msgspec.Meta(ge=1, le=MAX_REPLICAS)] = 1
    duration_s: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 600.0
    """Duration of arrivals."""
    kv_tokens: int | None = None
    slowdowns: tuple[Annotated[float, msgspec.Meta(gt=0)], ...] = ()
    """Factor on every duration of a replica, by its number, cyclically: [1, 1, 4, 4] makes half of the replicas four times slower."""
    adapters_per_batch: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Slots for LoRA adapters in each replica; required if a client has adapters."""
    clients: tuple[ClientSpec, ...] = ()
    trace: TraceSpec | None = None
    servegen: ServeGenSpec | None = None

    def __post_init__(self) -> None:
        if bool(self.clients) + (self.trace is not None) + (self.servegen is not None) != 1:
            raise ValueError("exactly one of clients, trace and servegen must be given")
        if self.adapters_per_batch is None and any(client.adapters for client in self.clients):
            raise ValueError("adapters_per_batch is required, since a client has adapters")

    @property
    def files(self) -> tuple[str, ...]:
        """What it reads from the folder of traces."""
        if self.servegen is not None:
            return (self.servegen.rates, self.servegen.lengths)
        return () if self.trace is None else (self.trace.file,)

    @property
    def misbehaving(self) -> frozenset[str]:
        """Clients that ask for more than their share."""
        if self.trace is not None:
            return frozenset(self.trace.misbehaving)
        return frozenset(
            name for client in self.clients if client.misbehaves for name in client.names()
        )


def read_spec(path: Path) -> WorkloadSpec:
    """Read a workload file; raises `WorkloadError` naming the field."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        return msgspec.convert(data, WorkloadSpec)
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise WorkloadError(f"{path}: not YAML: {error}") from error
    except msgspec.ValidationError as error:
        raise WorkloadError(f"{path}: {error}") from error


def make_workload(name: str, spec: WorkloadSpec, *, seed: int, traces: Path) -> Workload:
    """The workload of a seed. `traces` is the folder of trace files; raises `TraceError`."""
    if spec.trace is not None:
        dealt = _deal(spec.trace, read_trace(traces / spec.trace.file), seed)
        clients = weighted(spec.trace.shares, spec.trace.weights)
        return Workload(name, dealt, clients, size=len(dealt))
    if spec.servegen is not None:
        tables = read_tables(traces / spec.servegen.rates, traces / spec.servegen.lengths)
        drawn = tables.programs(
            start_s=spec.servegen.start_s,
            duration_s=spec.duration_s,
            load=spec.servegen.load,
            seed=seed,
        )
        ascending = list(merge(*drawn, key=lambda program: program.arrival_s))
        return Workload(
            name,
            ascending,
            size=len(ascending),
            duration_s=spec.duration_s,
            notes=tuple(tables.skipped),
        )
    clients = {}
    streams = []
    for place, client in enumerate(spec.clients):
        for client_name in client.names():
            tenant = tenant_of(client_name)
            clients[client_name] = Client(client_name, tenant, client_weight=client.weight)
            streams.append(
                _stream(client, client_name, place, duration_s=spec.duration_s, seed=seed)
            )
    in_order = merge(*streams, key=lambda program: program.arrival_s)
    return Workload(name, in_order, clients, duration_s=spec.duration_s)


def _stream(
    spec: ClientSpec, client: str, place: int, *, duration_s: float, seed: int
) -> Iterator[Program]:
    # A generator of its own per stream: a client's programs do not depend on the other clients.
    rng = Random(f"{seed}/{client}/{place}")
    for number, at_s in enumerate(spec.arrivals.times(duration_s, rng)):
        name = f"{client}.{place}.{number}"
        calls = spec.program.calls(name, client, rng)
        adapter = rng.choice(spec.adapters) if spec.adapters else None
        yield Program(name, client, at_s, calls, adapter)


def _deal(spec: TraceSpec, rows: list[Row], seed: int) -> list[Program]:
    tickets = [client for client, share in spec.shares.items() for _ in range(share)]
    rng = Random(seed)

    def client_of(row: Row) -> str:
        return tickets[session_hash(row, seed) % len(tickets)]

    dealt = programs(rows, client_of)
    moved = [
        Program(p.id, p.client, (p.arrival_s + rng.uniform(0, spec.jitter_s)) / spec.speed, p.calls)
        for p in dealt
    ]
    return sorted(moved, key=lambda program: program.arrival_s)


def workload_files(folder: Path) -> Mapping[str, Path]:
    """The workloads of a folder by name."""
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
