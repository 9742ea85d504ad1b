"""Fair and local against fair or local: D2LPM + DLPM, per-client RR + VTC, RR + LPM on contended workloads.

    python bench/fleet_comparison.py [--workloads tot-s1 ...] [--seeds 10] [--resume] [--out bench/results]

The counterpart of Fig. 7 of the DLPM paper. Workloads lie in `bench/workloads/`, fixed before anything was
measured; each run's fleet is the workload's. Writes `fleet-comparison.json` (every run), `.md` (mean and
standard deviation over seeds) and `.png`. Traces are looked for in $EVENKEEL_DATA, else ../shared/data.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing import Pool
from pathlib import Path
from statistics import fmean, stdev

import msgspec
from evenkeel_fairshare.measures import percentile
from evenkeel_simulator.experiments.plots import COLOURS, tidy
from evenkeel_simulator.experiments.setup import Setup, engine_config, find_profile, simulate
from evenkeel_simulator.experiments.summary import program_latencies, summarise
from evenkeel_simulator.experiments.workload_file import make_workload, read_spec
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
WORKLOADS = ROOT / "bench" / "workloads"
TRACES = Path(os.environ.get("EVENKEEL_DATA", ROOT.parent / "shared" / "data"))
CORE = ("tot-s1", "tot-s2", "mooncake-conversation", "mooncake-synthetic")
SYSTEMS: Mapping[str, tuple[str, str]] = {  # name: (fleet policy, replica policy)
    "D2LPM + DLPM": ("D2LPM", "DLPM"),
    "per-client RR + VTC": ("PerClientRoundRobin", "VTC"),
    "RR + LPM": ("RoundRobin", "LPM"),
}


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One run. "Well" figures are those of the well-behaved clients together."""

    workload: str
    system: str
    seed: int
    requests: int
    finished: int
    makespan_s: float
    throughput: float
    hit_rate: float
    jain_service_rate: float
    jain_service: float
    well_ttft_p50_s: float
    well_ttft_p99_s: float
    well_latency_p50_s: float
    well_latency_p99_s: float


COLUMNS: Mapping[str, tuple[str, str]] = {  # field: (heading, format)
    "throughput": ("throughput, tokens/s", "{:,.0f}"),
    "hit_rate": ("hit rate", "{:.3f}"),
    "jain_service_rate": ("Jain, service rate", "{:.3f}"),
    "jain_service": ("Jain, service", "{:.3f}"),
    "well_ttft_p50_s": ("well-behaved TTFT p50, s", "{:,.2f}"),
    "well_ttft_p99_s": ("p99, s", "{:,.2f}"),
    "well_latency_p50_s": ("well-behaved program p50, s", "{:,.1f}"),
    "well_latency_p99_s": ("p99, s", "{:,.1f}"),
}


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """Engines that differ from the default, to find out why."""

    max_running: int | None = None
    share_in_batch: bool = True


def run(task: tuple[str, str, int, Variant]) -> Result:
    """One workload under one system with one seed."""
    workload, system, seed, variant = task
    spec = read_spec(WORKLOADS / f"{workload}.yaml")
    fleet_policy, replica_policy = SYSTEMS[system]
    setup = Setup(
        profile=find_profile(spec.profile),
        replicas=spec.replicas,
        fleet_policy=fleet_policy,
        replica_policy=replica_policy,
        engine=engine_config(
            kv_tokens=spec.kv_tokens,
            max_running=variant.max_running,
            share_in_batch=variant.share_in_batch,
        ),
    )
    work = make_workload(workload, spec, seed=seed, traces=TRACES)
    records, makespan_s = simulate(setup, work)
    summary = summarise(records, makespan_s)
    well = [record for record in records if record.client not in spec.misbehaving]
    ttfts = [record.ttft_s for record in well if record.ttft_s is not None]
    latencies = program_latencies(well)
    return Result(
        workload=workload,
        system=system,
        seed=seed,
        requests=summary.requests,
        finished=summary.finished,
        makespan_s=makespan_s,
        throughput=summary.throughput_tokens_per_s,
        hit_rate=summary.hit_rate,
        jain_service_rate=summary.jain_index,
        jain_service=summary.jain_index_service,
        well_ttft_p50_s=percentile(ttfts, 50),
        well_ttft_p99_s=percentile(ttfts, 99),
        well_latency_p50_s=percentile(latencies, 50),
        well_latency_p99_s=percentile(latencies, 99),
    )


def table(results: Sequence[Result]) -> str:
    """Mean ± standard deviation over seeds, one Markdown table per workload."""
    lines: list[str] = []
    for workload in dict.fromkeys(result.workload for result in results):
        lines += [f"### {workload}", "", "| system | " + " | ".join(h for h, _ in COLUMNS.values())]
        lines[-1] += " |"
        lines.append("|---" + "|---:" * len(COLUMNS) + "|")
        for system in SYSTEMS:
            cells = [cell(column) for column in columns(results, workload, system)]
            lines.append(f"| {system} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def columns(
    results: Iterable[Result], workload: str, system: str
) -> list[tuple[str, Sequence[float]]]:
    """(format, values over seeds) of each column."""
    own = [r for r in results if r.workload == workload and r.system == system]
    return [(form, [getattr(r, name) for r in own]) for name, (_, form) in COLUMNS.items()]


def cell(column: tuple[str, Sequence[float]]) -> str:
    form, values = column
    spread = f" ± {form.format(stdev(values))}" if len(values) > 1 else ""
    return form.format(fmean(values)) + spread


def plot(results: Sequence[Result], path: Path) -> None:
    """A panel for each workload and measure, a mark for each system, a bar for its standard deviation."""
    workloads = list(dict.fromkeys(result.workload for result in results))
    rows = (
        ("throughput", "throughput (tokens/s)", "linear"),
        ("jain_service_rate", "Jain's index, service rate", "linear"),
        ("well_latency_p99_s", "well-behaved p99 (s, log scale)", "log"),
    )
    figure = Figure(figsize=(3.1 * len(workloads) + 1, 7.6), layout="constrained")
    panels = figure.subplots(len(rows), len(workloads), squeeze=False)
    for row, (name, label, scale) in enumerate(rows):
        for column, workload in enumerate(workloads):
            axes = panels[row][column]
            tidy(axes, title="" if row else workload, x="", y="" if column else label)
            for place, system in enumerate(SYSTEMS):
                own = [r for r in results if r.workload == workload and r.system == system]
                values = [getattr(result, name) for result in own]
                spread = stdev(values) if len(values) > 1 else 0.0
                axes.errorbar(
                    [place],
                    [fmean(values)],
                    yerr=[spread],
                    fmt="o",
                    markersize=8,
                    capsize=4,
                    color=COLOURS[place],
                    label=system,
                )
            axes.set_xticks([])
            axes.set_xlim(-0.6, len(SYSTEMS) - 0.4)
            axes.set_yscale(scale)
            if scale == "linear":
                axes.set_ylim(bottom=0)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(path, dpi=144)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fleets compared on contended workloads.")
    parser.add_argument("--workloads", nargs="+", default=list(CORE))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--max-running", type=int, help="requests in a batch at most")
    parser.add_argument("--no-share-in-batch", dest="share_in_batch", action="store_false")
    parser.add_argument("--resume", action="store_true", help="keep what --out holds already")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results")
    options = parser.parse_args()
    variant = Variant(max_running=options.max_running, share_in_batch=options.share_in_batch)
    path = options.out / "fleet-comparison.json"
    results = read(path) if options.resume else []
    done = {(result.workload, result.system, result.seed) for result in results}
    tasks = [
        (workload, system, seed, variant)
        for seed in range(
            options.seeds
        )  # all workloads seed by seed: an early end is a smaller sample
        for workload in options.workloads
        for system in SYSTEMS
        if (workload, system, seed) not in done
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    with Pool(options.processes) as pool:
        for result in pool.imap(run, tasks):
            print(f"{result.workload} {result.system} seed {result.seed}", flush=True)
            results.append(result)
            path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))
    path.with_suffix(".md").write_text(table(results), encoding="utf-8")
    plot(results, path.with_suffix(".png"))
    print("\n" + table(results))


def read(path: Path) -> list[Result]:
    """The results of an earlier run, none where there was no such run."""
    return msgspec.json.decode(path.read_bytes(), type=list[Result]) if path.exists() else []


if __name__ == "__main__":
    main()
