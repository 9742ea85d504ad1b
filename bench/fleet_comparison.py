"""Fair and local against fair or local: D2LPM + DLPM beside its rivals on contended workloads.

    python bench/fleet_comparison.py [--workloads qa-s1 ...] [--load 2.5] [--replicas 1 4 8] [--systems ...] [--seeds 10]
        [--length 0.5] [--resume]

The counterpart of Fig. 7 of the DLPM paper. D2LPM + DLPM is what a service runs by default. A system is a name of `SYSTEMS`, or
D2LPM + DLPM with other quanta (`20000/8000`, `auto/1000`: worker and client quantum), with another `patience=4`, or in the `printed`
order. `bench.order` compares other orders.

Workloads lie in `bench/workloads/`; `COMPARED` has the factor on their rate of arrivals at which the fleet is saturated. Arrivals
grow with the number of replicas. `--length` takes the first part of each workload. Writes `fleet-comparison.json` (every run), `.md` (mean and standard deviation over seeds) and
`.png` to `--out`. Traces are looked for in $EVENKEEL_DATA, else ../shared/data.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from statistics import fmean, stdev

import msgspec
from evenkeel_fairshare.fleet.d2lpm_auto import AutoD2lpm
from evenkeel_fairshare.measures import percentile
from evenkeel_laboratory.experiments.fleet import Fleet, FleetConfig
from evenkeel_laboratory.experiments.idle import idle_seconds
from evenkeel_laboratory.experiments.setup import Setup, engine_config, find_profile
from evenkeel_laboratory.experiments.workload_file import WorkloadSpec, make_workload, read_spec
from evenkeel_simulator.traffic.axes import COLOURS, tidy
from evenkeel_simulator.traffic.records import Record
from evenkeel_simulator.traffic.summary import program_latencies, summarise
from evenkeel_simulator.traffic.workload import Workload
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

ROOT = Path(__file__).resolve().parents[1]
WORKLOADS = ROOT / "bench" / "workloads"
TRACES = Path(os.environ.get("EVENKEEL_DATA", ROOT.parent / "shared" / "data"))
COMPARED: Mapping[str, float] = {
    **dict.fromkeys(("qa-s1", "qa-s2", "judge-s1", "judge-s2"), 2.5),
    **dict.fromkeys(("tot-s1", "tot-s2", "tot-s1-diverse", "tot-s2-diverse"), 1.0),
    **dict.fromkeys(("mooncake-conversation", "mooncake-synthetic", "mooncake-equal"), 1.0),
    **dict.fromkeys(("flood", "shared-prompt", "tail", "unequal"), 1.0),
    **dict.fromkeys(("one-prompt-20k", "one-prompt-60k", "agents", "agents-beside"), 1.0),
}
OURS = "D2LPM + DLPM"
VTC = "per-client RR + VTC"
SYSTEMS: Mapping[str, tuple[str, str]] = {  # name: (fleet policy, replica policy)
    OURS: ("D2LPM", "DLPM"),
    VTC: ("PerClientRoundRobin", "VTC"),
    "RR + LPM": ("RoundRobin", "LPM"),
    "least-loaded + LPM": ("LeastLoaded", "LPM"),
    "least-loaded + HRRN": ("LeastLoaded", "HRRN"),
    "cache-aware + LPM": ("CacheAware", "LPM"),
    "SGLang's router + LPM": ("SGLangRouter", "LPM"),
    "Preble E2 + LPM": ("PrebleE2", "LPM"),
}


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One run. "Well" figures are those of the well-behaved clients together; for `idle_s` see `idle_seconds`."""

    workload: str
    load: float
    replicas: int
    length: float
    system: str
    seed: int
    requests: int
    finished: int
    makespan_s: float
    throughput: float
    hit_rate: float
    jain: float
    jain_service_rate: float
    ttft_mean_s: float
    well_ttft_mean_s: float
    well_ttft_p50_s: float
    well_ttft_p99_s: float
    well_latency_p50_s: float
    well_latency_p99_s: float
    idle_s: float = 0.0

    @property
    def case(self) -> Case:
        return self.workload, self.load, self.replicas, self.length


Case = tuple[str, float, int, float]
"""Workload, load, replicas, length."""
Task = tuple[Case, str, int]
"""Case, system, seed."""
MakeFleet = Callable[[str, WorkloadSpec], FleetConfig]
"""The fleet of a system for a workload."""

COLUMNS: Mapping[str, tuple[str, str]] = {  # field: (heading, format)
    "throughput": ("throughput, tokens/s", "{:,.0f}"),
    "hit_rate": ("hit rate", "{:.3f}"),
    "jain": ("Jain, given over owed", "{:.3f}"),
    "jain_service_rate": ("Jain, service rate", "{:.3f}"),
    "well_ttft_mean_s": ("well-behaved TTFT mean, s", "{:,.2f}"),
    "well_ttft_p50_s": ("p50, s", "{:,.2f}"),
    "well_ttft_p99_s": ("p99, s", "{:,.2f}"),
    "well_latency_p50_s": ("well-behaved program p50, s", "{:,.1f}"),
    "well_latency_p99_s": ("p99, s", "{:,.1f}"),
    "idle_s": ("idle, s", "{:,.1f}"),
}


def scaled(
    spec: WorkloadSpec, load: float, replicas: int | None = None, length: float = 1.0
) -> WorkloadSpec:
    """The workload for `replicas` (default: its own), with `load` times its arrivals per replica, for a part of its duration."""
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
    return msgspec.structs.replace(
        spec,
        clients=tuple(clients),
        trace=trace,
        replicas=replicas,
        duration_s=spec.duration_s * length,
    )


def cut(work: Workload, length: float) -> Workload:
    """The first part of a trace."""
    programs = list(work.programs)
    until_s = length * programs[-1].arrival_s
    return replace(work, programs=[one for one in programs if one.arrival_s <= until_s])


def fleet_of(system: str, spec: WorkloadSpec) -> FleetConfig:
    """The fleet of a system; raises `ValueError` for an unknown one."""
    setup = Setup(
        profile=find_profile(spec.profile),
        replicas=spec.replicas,
        slowdowns=spec.slowdowns,
        engine=engine_config(kv_tokens=spec.kv_tokens),
    )
    if system in SYSTEMS:
        fleet_policy, replica_policy = SYSTEMS[system]
        return replace(setup, fleet_policy=fleet_policy, replica_policy=replica_policy).fleet()
    if system == "printed":
        return replace(setup, printed=True).fleet()
    if system.startswith("patience="):
        policy = AutoD2lpm(patience=float(system.removeprefix("patience=")))
        return replace(setup.fleet(), fleet_policy=policy)
    worker, _, client = system.partition("/")
    return replace(setup, worker_quantum=_quantum(worker), quantum=_quantum(client)).fleet()


def _quantum(text: str) -> float | None:
    return None if text == "auto" else float(text)


def run(task: Task, *, make_fleet: MakeFleet = fleet_of) -> Result:
    """One workload under one system with one seed."""
    (workload, load, replicas, length), system, seed = task
    spec = scaled(read_spec(WORKLOADS / f"{workload}.yaml"), load, replicas, length)
    work = make_workload(workload, spec, seed=seed, traces=TRACES)
    if spec.trace is not None and length < 1:
        work = cut(work, length)
    records: list[Record] = []
    config = make_fleet(system, spec)
    makespan_s = Fleet(config, records.append).run(work)
    summary = summarise(records, makespan_s, clients=work.clients)
    well = [record for record in records if record.client not in spec.misbehaving]
    all_ttfts, ttfts = (
        [record.ttft_s for record in some if record.ttft_s is not None] for some in (records, well)
    )
    latencies = program_latencies(well)
    return Result(
        workload=workload,
        load=load,
        replicas=replicas,
        length=length,
        system=system,
        seed=seed,
        requests=summary.requests,
        finished=summary.finished,
        makespan_s=makespan_s,
        throughput=summary.throughput_tokens_per_s,
        hit_rate=summary.hit_rate,
        jain=summary.jain_index,
        jain_service_rate=summary.jain_index_service_rate,
        ttft_mean_s=fmean(all_ttfts),
        well_ttft_mean_s=fmean(ttfts),
        well_ttft_p50_s=percentile(ttfts, 50),
        well_ttft_p99_s=percentile(ttfts, 99),
        well_latency_p50_s=percentile(latencies, 50),
        well_latency_p99_s=percentile(latencies, 99),
        idle_s=idle_seconds(records, config),
    )


def table(results: Sequence[Result]) -> str:
    """Mean ± standard deviation over seeds, one Markdown table per workload, load and number of replicas."""
    lines: list[str] = []
    for case in dict.fromkeys(result.case for result in results):
        headings = [heading for heading, _ in COLUMNS.values()]
        headings.insert(1, "of VTC's")
        lines += [f"#### {label(case)}", "", f"| system | {' | '.join(headings)} |"]
        lines.append("|---" + "|---:" * len(headings) + "|")
        for system in dict.fromkeys(result.system for result in results if result.case == case):
            cells = [
                cell(form, _values(results, case, system, name))
                for name, (_, form) in COLUMNS.items()
            ]
            cells.insert(1, cell("{:.2f}", _of_vtc(results, case, system)) or "–")
            lines.append(f"| {system} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def label(case: Case) -> str:
    workload, load, replicas, length = case
    return (
        workload
        + (f", load ×{load:g}" if load != 1 else "")
        + (f", length ×{length:g}" if length != 1 else "")
        + f", D={replicas}"
    )


def cell(form: str, values: Sequence[float]) -> str:
    """Empty without values."""
    if not values:
        return ""
    spread = f" ± {form.format(stdev(values))}" if len(values) > 1 else ""
    return form.format(fmean(values)) + spread


def plot(results: Sequence[Result], path: Path) -> None:
    """A row for each measure, a group of marks for each workload, a bar for the standard deviation."""
    cases = list(dict.fromkeys(result.case for result in results))
    systems = list(dict.fromkeys(result.system for result in results))
    rows = (
        (lambda *key: _of_vtc(results, *key), "throughput, of VTC's", "linear"),
        (lambda *key: _values(results, *key, "jain"), "Jain's index, given over owed", "linear"),
        (lambda *key: _values(results, *key, "well_ttft_mean_s"), "well-behaved TTFT mean (s)", "log"),
        (lambda *key: _values(results, *key, "well_ttft_p99_s"), "well-behaved TTFT p99 (s)", "log"),
    )  # fmt: skip
    figure = Figure(figsize=(0.95 * len(cases) + 1.5, 9.5), layout="constrained")
    panels = figure.subplots(len(rows), 1, sharex=True)
    for axes, (values_of, title, scale) in zip(panels, rows, strict=True):
        tidy(axes, title=title, x="", y="")
        for place, system in enumerate(systems):
            shown = [(n, values_of(case, system)) for n, case in enumerate(cases)]
            shown = [(n, values) for n, values in shown if values]
            axes.errorbar(
                [n + 0.8 * ((place + 0.5) / len(systems) - 0.5) for n, _ in shown],
                [fmean(values) for _, values in shown],
                yerr=[stdev(values) if len(values) > 1 else 0.0 for _, values in shown],
                fmt="o",
                markersize=5,
                capsize=2,
                color=COLOURS[place % len(COLOURS)],
                label=system,
            )
        axes.set_yscale(scale)
        if scale == "linear":
            axes.set_ylim(bottom=0)
        else:
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
    names = [label(case).replace("-", "\n", 1).replace(", ", "\n") for case in cases]
    panels[-1].set_xticks(range(len(cases)), names)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(path, dpi=144)


def _values(results: Iterable[Result], case: Case, system: str, name: str) -> list[float]:
    """One measure over seeds."""
    return [getattr(r, name) for r in results if r.case == case and r.system == system]


def _of_vtc(results: Iterable[Result], case: Case, system: str) -> list[float]:
    """Throughput over VTC's with the same seed."""
    of = {(r.system, r.seed): r.throughput for r in results if r.case == case}
    return [of[s, n] / of[VTC, n] for s, n in of if s == system and (VTC, n) in of]


def options_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options of the caller, and those of every comparison."""
    parser.add_argument("--workloads", nargs="+", default=list(COMPARED))
    parser.add_argument("--load", type=float, help="factor on arrivals (default: as in COMPARED)")
    parser.add_argument("--replicas", type=int, nargs="+", help="default: those of the workload")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument(
        "--length", type=float, default=1.0, help="part of each workload, from 0 to 1"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--resume", action="store_true", help="keep what --out holds already")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results")
    return parser.parse_args()


def compare(
    options: argparse.Namespace,
    systems: Sequence[str],
    name: str,
    *,
    make_fleet: MakeFleet = fleet_of,
) -> list[Result]:
    """Every workload under every system with every seed; each result is written to `name`.json at once."""
    path = options.out / f"{name}.json"
    results = read(path) if options.resume else []
    done = {(result.case, result.system, result.seed) for result in results}
    # Seed by seed over all workloads: an early end is a smaller sample of each.
    tasks: list[Task] = []
    for seed in range(options.seeds):
        for workload in options.workloads:
            load = options.load or COMPARED.get(workload, 1.0)
            own = read_spec(WORKLOADS / f"{workload}.yaml").replicas
            for replicas in options.replicas or [own]:
                case = (workload, load, replicas, options.length)
                tasks += [(case, system, seed) for system in systems]
    options.out.mkdir(parents=True, exist_ok=True)
    with Pool(options.processes) as pool:
        one = partial(run, make_fleet=make_fleet)
        for result in pool.imap(one, [task for task in tasks if task not in done]):
            print(f"{label(result.case)} {result.system} seed {result.seed}", flush=True)
            results.append(result)
            path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description="Fleets compared on contended workloads.")
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS))
    options = options_of(parser)
    results = compare(options, options.systems, "fleet-comparison")
    path = options.out / "fleet-comparison"
    path.with_suffix(".md").write_text(table(results), encoding="utf-8")
    plot(results, path.with_suffix(".png"))
    print("\n" + table(results))


def read(path: Path) -> list[Result]:
    """The results of an earlier run, none where there was no such run."""
    return msgspec.json.decode(path.read_bytes(), type=list[Result]) if path.exists() else []


if __name__ == "__main__":
    main()
