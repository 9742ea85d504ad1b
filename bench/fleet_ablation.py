"""Causes of the results of the fleet comparison: each variant changes one setting.

    python -m bench.fleet_ablation QUESTION [--workload tot-s1] [--seeds 3] [--processes 2]

Questions are the keys of `QUESTIONS`; each is a list of variants, and each variant a row of a Markdown table:
means over seeds. `bench/results/experiments.md` has the answers.

Some variants change the workload's load or the profile's costs. They show what a result
depends on; the comparison itself is `fleet_comparison.py`, with workloads fixed beforehand.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import Pool
from statistics import fmean

import msgspec
from evenkeel_fairshare.measures import percentile
from evenkeel_fairshare.replica.contract import ReplicaPolicy, Request
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.vtc import Vtc
from evenkeel_laboratory.experiments.fleet import Fleet, FleetConfig
from evenkeel_laboratory.experiments.setup import Setup, engine_config, find_profile
from evenkeel_laboratory.experiments.workload_file import ClientSpec, make_workload, read_spec
from evenkeel_laboratory.policies.registry import PrintedDlpm
from evenkeel_simulator.traffic.records import Record
from evenkeel_simulator.traffic.summary import program_latencies, summarise

from bench.fleet_comparison import TRACES, WORKLOADS


class DlpmOfAllInput(PrintedDlpm):
    """DLPM as printed that charges cached input as well, as VTC does."""

    def _admit(self, request: Request) -> None:
        super()._admit(request)
        cached_tokens = request.input_tokens - request.extend_tokens
        if request.charge_input and cached_tokens > 0:
            for node in self._running[request].path:
                node.charge(self._cost.input_cost(cached_tokens))


class DlpmInOrderOfArrival(DlpmOfAllInput):
    """The same without matches: nothing to sort by, nothing to wait for."""

    matches_prefix = False


class VtcOfExtend(Vtc):
    """VTC that charges what is computed, as DLPM does."""

    def _input_cost(self, request: Request) -> float:
        return self._cost.input_cost(request.extend_tokens) if request.charge_input else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Changes of a row. None: the setting of the workload or the engine."""

    fleet: str = "D2LPM"
    replica: str = "DLPM"
    """A policy's name, or one of `WHAT_IF`."""
    quantum: float | None = None
    max_running: int | None = None
    """Requests in a replica's batch at most."""
    kv_tokens: int | None = None
    prefix_cache: bool = True
    load: float = 1.0
    """Factor on every client's rate of programs."""
    kv_read: float = 1.0
    """Factor on what a decode step pays for each KV token."""


WHAT_IF: Mapping[str, Callable[[DeficitRules], ReplicaPolicy]] = {
    "DLPM, printed order": lambda rules: PrintedDlpm(rules=rules),
    "DLPM, all input charged": lambda rules: DlpmOfAllInput(rules=rules),
    "DLPM, all input charged, order of arrival": lambda rules: DlpmInOrderOfArrival(rules=rules),
    "VTC, extend charged": lambda rules: VtcOfExtend(),
}
D2LPM = Variant()
VTC = Variant(fleet="PerClientRoundRobin", replica="VTC")
PAIR = {"D2LPM + DLPM": D2LPM, "per-client RR + VTC": VTC}
TRIO = {**PAIR, "per-client RR + VTC, no cache": replace(VTC, prefix_cache=False)}
SAME = replace(VTC, max_running=128)
"""For comparing replica policies alone: the same fleet policy, the same batch."""


def _each(
    systems: Mapping[str, Variant], changes: Iterable[Mapping[str, float]]
) -> Iterator[tuple[str, Variant]]:
    """Every system under every change."""
    for change in changes:
        what = ", ".join(f"{name} {value:,}" for name, value in change.items()) or "as it is"
        for name, variant in systems.items():
            yield f"{what}: {name}", replace(variant, **change)  # type: ignore[arg-type]


QUESTIONS: Mapping[str, Sequence[tuple[str, Variant]]] = {
    # Placing or ordering?
    "policies": [
        (f"{fleet} + {replica}", Variant(fleet=fleet, replica=replica))
        for fleet in ("D2LPM", "PerClientRoundRobin")
        for replica in ("DLPM", "VTC")
    ],
    # Is it how many requests run at once?
    "batch": list(
        _each(PAIR, [{}, {"max_running": 256}, {"max_running": 128}, {"kv_tokens": 30_000}])
    ),
    # Batches alike, is it what is charged when, and the order?
    "charges": [
        ("DLPM", replace(SAME, replica="DLPM")),
        *((name, replace(SAME, replica=name)) for name in WHAT_IF),
        (
            "DLPM, all input charged, order of arrival, quantum 100",
            replace(SAME, replica="DLPM, all input charged, order of arrival", quantum=100),
        ),
        ("VTC", SAME),
    ],
    # How much do clients request, and what if VTC had no cache hits?
    "load": list(_each(TRIO, [{"load": 0.25}, {"load": 0.4}, {}])),
    # What if reading the KV pool, shared prefixes above all, were cheaper than the profile says?
    "profile": list(_each(TRIO, [{"kv_read": 0.25}, {"kv_read": 0.0}])),
}
COLUMNS = (
    ("throughput, tokens/s", "{:,.0f}"),
    ("hit rate", "{:.3f}"),
    ("Jain, given over owed", "{:.3f}"),
    ("running per replica", "{:,.0f}"),
    ("well-behaved: wait, s", "{:,.1f}"),
    ("ms per output token", "{:,.0f}"),
    ("program p50, s", "{:,.1f}"),
    ("p99, s", "{:,.1f}"),
)


def run(task: tuple[str, Variant, int]) -> list[float]:
    """The row of one seed."""
    name, variant, seed = task
    spec = read_spec(WORKLOADS / f"{name}.yaml")
    clients = tuple(_loaded(client, variant.load) for client in spec.clients)
    spec = msgspec.structs.replace(spec, clients=clients)
    records: list[Record] = []
    fleet = Fleet(_config(variant, spec.profile, spec.replicas, spec.kv_tokens), records.append)
    makespan_s = fleet.run(make_workload(name, spec, seed=seed, traces=TRACES))
    summary = summarise(records, makespan_s)
    well = [record for record in records if record.client not in spec.misbehaving]
    latencies = program_latencies(well)
    return [
        summary.throughput_tokens_per_s,
        summary.hit_rate,
        summary.jain_index,
        _running(records, max(record.arrival_s for record in records) / 3) / spec.replicas,
        fmean([_between(record.arrival_s, record.admitted_s) for record in well]),
        _ms_per_token(well),
        percentile(latencies, 50),
        percentile(latencies, 99),
    ]


def _loaded(client: ClientSpec, factor: float) -> ClientSpec:
    rate = client.arrivals.rate_per_s * factor
    arrivals = msgspec.structs.replace(client.arrivals, rate_per_s=rate)
    return msgspec.structs.replace(client, arrivals=arrivals)


def _config(variant: Variant, profile: str, replicas: int, kv_tokens: int | None) -> FleetConfig:
    costs = find_profile(profile)
    read_ms = costs.decode_kv_token_ms * variant.kv_read
    setup = Setup(
        profile=msgspec.structs.replace(costs, decode_kv_token_ms=read_ms),
        replicas=replicas,
        fleet_policy=variant.fleet,
        replica_policy="FCFS" if variant.replica in WHAT_IF else variant.replica,
        quantum=variant.quantum,
        engine=engine_config(
            kv_tokens=variant.kv_tokens or kv_tokens,
            max_running=variant.max_running,
        ),
    )
    setup = replace(setup, engine=replace(setup.engine, prefix_cache=variant.prefix_cache))
    config = setup.fleet()
    if variant.replica in WHAT_IF:
        make, rules = WHAT_IF[variant.replica], DeficitRules(quantum=variant.quantum)
        config = replace(config, replica_policy=lambda: make(rules))
    return config


def _running(records: Sequence[Record], at_s: float) -> float:
    """Requests in batches around `at_s`: the mean over as much time before as after, 20 s in all."""
    start_s, end_s = at_s - 10, at_s + 10
    return sum(
        max(0.0, min(end_s, r.finished_s) - max(start_s, r.admitted_s))
        for r in records
        if r.admitted_s is not None and r.finished_s is not None
    ) / (end_s - start_s)


def _ms_per_token(records: Sequence[Record]) -> float:
    times_s = [_between(record.first_token_s, record.finished_s) for record in records]
    return 1e3 * sum(times_s) / sum(record.output_tokens for record in records)


def _between(start_s: float | None, end_s: float | None) -> float:
    assert start_s is not None
    assert end_s is not None
    return end_s - start_s


def main() -> None:
    parser = argparse.ArgumentParser(description="One thing changed at a time.")
    parser.add_argument("question", choices=list(QUESTIONS))
    parser.add_argument("--workload", default="tot-s1")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    variants = QUESTIONS[options.question]
    tasks = [
        (options.workload, variant, s) for _, variant in variants for s in range(options.seeds)
    ]
    print("| " + " | ".join(["variant", *(heading for heading, _ in COLUMNS)]) + " |")
    print("|---" + "|---:" * len(COLUMNS) + "|")
    with Pool(options.processes) as pool:
        rows = pool.imap(run, tasks)
        for name, _ in variants:
            seeds = [next(rows) for _ in range(options.seeds)]
            means = [fmean(column) for column in zip(*seeds, strict=True)]
            cells = [form.format(m) for (_, form), m in zip(COLUMNS, means, strict=True)]
            print("| " + " | ".join([name, *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
