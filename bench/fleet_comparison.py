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
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

ROOT = Path(__file__).resolve().parents[1]
WORKLOADS = ROOT / "bench" / "workloads"
TRACES = Path(os.environ.get("EVENKEEL_DATA", ROOT.parent / "shared" / "data"))
COMPARED = (
    *("tot-s1", "tot-s2", "mooncake-conversation", "mooncake-synthetic"),
    *("tot-s1-diverse", "tot-s2-diverse", "judge-s1", "judge-s2", "qa-s1", "qa-s2"),
)
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


def run(task: tuple[str, str, int]) -> Result:
    """One workload under one system with one seed."""
    workload, system, seed = task
    spec = read_spec(WORKLOADS / f"{workload}.yaml")
    fleet_policy, replica_policy = SYSTEMS[system]
    setup = Setup(
        profile=find_profile(spec.profile),
        replicas=spec.replicas,
        fleet_policy=fleet_policy,
        replica_policy=replica_policy,
        engine=engine_config(kv_tokens=spec.kv_tokens),
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
            cells = [
                cell(form, _values(results, workload, system, name))
                for name, (_, form) in COLUMNS.items()
            ]
            lines.append(f"| {system} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def cell(form: str, values: Sequence[float]) -> str:
    spread = f" ± {form.format(stdev(values))}" if len(values) > 1 else ""
    return form.format(fmean(values)) + spread


def plot(results: Sequence[Result], path: Path) -> None:
    """A row for each measure, a group of marks for each workload, a bar for the standard deviation."""
    workloads = list(dict.fromkeys(result.workload for result in results))
    rows = (
        ("throughput", "throughput, of D2LPM + DLPM's", "linear"),
        ("jain_service_rate", "Jain's index, service rate", "linear"),
        ("well_latency_p50_s", "well-behaved program p50 (s)", "log"),
        ("well_ttft_p99_s", "well-behaved TTFT p99 (s)", "log"),
    )
    figure = Figure(figsize=(0.95 * len(workloads) + 1.5, 9.5), layout="constrained")
    panels = figure.subplots(len(rows), 1, sharex=True)
    for axes, (name, label, scale) in zip(panels, rows, strict=True):
        tidy(axes, title=label, x="", y="")
        for place, system in enumerate(SYSTEMS):
            means, spreads = [], []
            for workload in workloads:
                values = _values(results, workload, system, name)
                unit = 1.0
                if name == "throughput":
                    unit = fmean(_values(results, workload, next(iter(SYSTEMS)), name))
                means.append(fmean(values) / unit)
                spreads.append(stdev(values) / unit if len(values) > 1 else 0.0)
            axes.errorbar(
                [column + 0.22 * (place - 1) for column in range(len(workloads))],
                means,
                yerr=spreads,
                fmt="o",
                markersize=6,
                capsize=3,
                color=COLOURS[place],
                label=system,
            )
        axes.set_yscale(scale)
        if scale == "linear":
            axes.set_ylim(bottom=0)
        else:
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
    panels[-1].set_xticks(range(len(workloads)), [w.replace("-", "\n", 1) for w in workloads])
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(path, dpi=144)


def _values(results: Iterable[Result], workload: str, system: str, name: str) -> list[float]:
    """One measure over seeds."""
    own = (r for r in results if r.workload == workload and r.system == system)
    return [getattr(result, name) for result in own]


def main() -> None:
    parser = argparse.ArgumentParser(description="Fleets compared on contended workloads.")
    parser.add_argument("--workloads", nargs="+", default=list(COMPARED))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--resume", action="store_true", help="keep what --out holds already")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results")
    options = parser.parse_args()
    path = options.out / "fleet-comparison.json"
    results = read(path) if options.resume else []
    done = {(result.workload, result.system, result.seed) for result in results}
    # Seed by seed over all workloads: an early end is a smaller sample of each.
    tasks = [
        (workload, system, seed)
        for seed in range(options.seeds)
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
