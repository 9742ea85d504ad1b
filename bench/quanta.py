"""Quanta of D2LPM + DLPM: `Auto` against constants and against per-client RR + VTC (docs/design/0005).

    python -m bench.quanta qa-s1 --load 2.5 --seeds 10 [--replicas 8] [--rules auto 20000/8000 auto/1000]

A rule is WORKER_QUANTUM/CLIENT_QUANTUM, and `auto` alone means both. `patience=4` is the automatic worker quantum with
another patience. Replicas run DLPM as they do in a fleet, longest match first. Prints a Markdown table of means over seeds.
`--load` multiplies the rate of arrivals, which also grows with `--replicas`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import Pool
from statistics import fmean

import msgspec
from evenkeel_fairshare.fleet.d2lpm_auto import AutoD2lpm
from evenkeel_fairshare.measures import percentile
from evenkeel_simulator.experiments.fleet import Fleet, FleetConfig
from evenkeel_simulator.experiments.records import Record
from evenkeel_simulator.experiments.setup import Setup, engine_config, find_profile
from evenkeel_simulator.experiments.summary import summarise
from evenkeel_simulator.experiments.workload_file import WorkloadSpec, make_workload, read_spec

from bench.fleet_comparison import TRACES, WORKLOADS

VTC = "per-client RR + VTC"
LPM = "RR + LPM"
COLUMNS = (
    ("throughput, tokens/s", "{:,.0f}"),
    ("of VTC's", "{:.2f}"),
    ("hit rate", "{:.3f}"),
    ("Jain, service rate", "{:.3f}"),
    ("Jain, service", "{:.3f}"),
    ("well-behaved TTFT mean, s", "{:.2f}"),
    ("p50", "{:.2f}"),
    ("p99", "{:.2f}"),
)


def scaled(spec: WorkloadSpec, load: float, replicas: int | None) -> WorkloadSpec:
    """The workload for `replicas`, with `load` times its arrivals per replica."""
    replicas = replicas or spec.replicas
    factor = load * replicas / spec.replicas
    clients = []
    for client in spec.clients:
        rate = client.arrivals.rate_per_s * factor
        arrivals = msgspec.structs.replace(client.arrivals, rate_per_s=rate)
        clients.append(msgspec.structs.replace(client, arrivals=arrivals))
    trace = spec.trace
    if trace is not None:
        trace = msgspec.structs.replace(trace, speed=trace.speed * factor)
    return msgspec.structs.replace(spec, clients=tuple(clients), trace=trace, replicas=replicas)


def config(rule: str, spec: WorkloadSpec) -> FleetConfig:
    """A fleet under a rule."""
    setup = Setup(
        profile=find_profile(spec.profile),
        replicas=spec.replicas,
        engine=engine_config(kv_tokens=spec.kv_tokens),
        longest_first=True,
    )
    if rule == VTC:
        return replace(setup, fleet_policy="PerClientRoundRobin", replica_policy="VTC").fleet()
    if rule == LPM:
        return replace(setup, fleet_policy="RoundRobin", replica_policy="LPM").fleet()
    if rule.startswith("patience="):
        policy = AutoD2lpm(patience=float(rule.removeprefix("patience=")))
        return replace(setup.fleet(), fleet_policy=policy)
    worker, _, client = rule.partition("/")
    return replace(setup, worker_quantum=_quantum(worker), quantum=_quantum(client)).fleet()


def run(task: tuple[str, WorkloadSpec, str, int]) -> list[float]:
    """The figures of one seed: throughput, hit rate, two of Jain's index, TTFT mean, p50, p99."""
    name, spec, rule, seed = task
    records: list[Record] = []
    makespan_s = Fleet(config(rule, spec), records.append).run(
        make_workload(name, spec, seed=seed, traces=TRACES)
    )
    summary = summarise(records, makespan_s)
    ttfts = [
        record.ttft_s
        for record in records
        if record.client not in spec.misbehaving and record.ttft_s is not None
    ]
    return [
        summary.throughput_tokens_per_s,
        summary.hit_rate,
        summary.jain_index,
        summary.jain_index_service,
        fmean(ttfts),
        percentile(ttfts, 50),
        percentile(ttfts, 99),
    ]


def row(name: str, means: Sequence[float], vtc_throughput: float) -> str:
    values = [means[0], means[0] / vtc_throughput, *means[1:]]
    cells = [form.format(value) for (_, form), value in zip(COLUMNS, values, strict=True)]
    return "| " + " | ".join([name, *cells]) + " |"


def _quantum(text: str) -> float | None:
    return None if text in ("", "auto") else float(text)


def main() -> None:
    parser = argparse.ArgumentParser(description="Quanta compared on one workload.")
    parser.add_argument("workload")
    parser.add_argument("--load", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--replicas", type=int)
    parser.add_argument("--rules", nargs="+", default=[LPM, "20000/8000", "auto"])
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    spec = scaled(read_spec(WORKLOADS / f"{options.workload}.yaml"), options.load, options.replicas)
    print("| " + " | ".join([options.workload, *(heading for heading, _ in COLUMNS)]) + " |")
    print("|---" + "|---:" * len(COLUMNS) + "|")
    rules = [VTC, *options.rules]
    tasks = [
        (options.workload, spec, rule, seed) for rule in rules for seed in range(options.seeds)
    ]
    vtc_throughput = 0.0
    with Pool(options.processes) as pool:
        rows = pool.imap(run, tasks)
        for rule in rules:
            seeds = [next(rows) for _ in range(options.seeds)]
            means = [fmean(column) for column in zip(*seeds, strict=True)]
            vtc_throughput = vtc_throughput or means[0]
            print(row(rule, means, vtc_throughput), flush=True)


if __name__ == "__main__":
    main()
