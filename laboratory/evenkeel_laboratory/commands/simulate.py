"""`evenkeel simulate`: simulates a fleet that serves a trace or a workload, in virtual time.

It writes `requests.csv`, `summary.json`, `service.png` and `latency.png`, and ends with a verdict. Invalid input ends with exit code 2 and one
sentence that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from evenkeel_cli.commands import command_of
from evenkeel_cli.exitcode import ExitCode
from evenkeel_cli.narrow import FittedTable, make_table
from evenkeel_cli.output import (
    make_output_folder,
    print_error,
    print_json,
    print_note,
    report_console,
    working,
    write_json,
)
from evenkeel_cli.progress import progress_bar
from evenkeel_cli.trace_options import UsageError, isolation_share, read_programs
from evenkeel_cli.yamlfile import YamlFault
from evenkeel_fairshare.cost import Cost, LinearCost
from evenkeel_fairshare.qoe import Expectation
from evenkeel_simulator.traffic.records import Record, write_csv
from evenkeel_simulator.traffic.summary import Summary, summarise
from evenkeel_simulator.traffic.traces import TraceError
from evenkeel_simulator.traffic.workload import Client, Program, Workload, weighted
from rich.console import Console
from rich.progress import MofNCompleteColumn, TextColumn

import evenkeel_laboratory
from evenkeel_laboratory.commands.simulate_options import DEFAULT_PROFILE, Options
from evenkeel_laboratory.experiments.fleet import Fleet, FleetConfig
from evenkeel_laboratory.experiments.idle import idle_seconds
from evenkeel_laboratory.experiments.plots import plot_run, remove_plots
from evenkeel_laboratory.experiments.setup import Setup, SetupError, engine_config, find_profile
from evenkeel_laboratory.experiments.workload_file import (
    WorkloadError,
    WorkloadSpec,
    make_workload,
    read_spec,
    workload_files,
)
from evenkeel_laboratory.policies.costs import ProfiledCost

_BATCH = 256  # requests between two updates of the progress bar


_Advance = Callable[[int], None]


def _simulate(options: Options) -> None:
    """Simulate a fleet under a trace or a workload, in virtual time."""
    out = options.out
    try:
        spec = _find_spec(options.workload, options.trace, options.workloads)
        setup = _setup(options, spec)
        work = _of_trace(options) if spec is None else _of_workload(options, spec)
        for note in work.notes:
            print_note(Console(stderr=True), note)
        make_results_folder(out)
        if options.autoscale is not None:
            _compare_scalers(options, options.autoscale, setup, work)
            return
        fleet = setup.fleet()
        records, makespan_s = _run(fleet, work)
        summary = summarise(
            records,
            makespan_s,
            duration_s=work.duration_s,
            clients=work.clients,
            idle_s=idle_seconds(records, fleet),
        )
        title = f"{work.name}: {setup.fleet_policy} + {setup.replica_policy}"
        with working("writing the results"):
            _write(records, summary, out, None if options.no_plots else title)
    except (UsageError, TraceError, WorkloadError, SetupError, YamlFault) as error:
        print_error(error)
        raise typer.Exit(ExitCode.INVALID) from error
    if options.json:
        print_json(summary)
    else:
        _report(summary, out)
    if not summary.finished:
        raise typer.Exit(ExitCode.FAILED)  # a script must not use this as a result


simulate = command_of(_simulate, Options)


def _setup(options: Options, spec: WorkloadSpec | None) -> Setup:
    """The fleet. What no option sets is as in the workload."""
    replicas, profile, kv_tokens = options.replicas, options.profile, options.kv_tokens
    if spec is not None:
        replicas = spec.replicas if replicas is None else replicas
        kv_tokens = spec.kv_tokens if kv_tokens is None else kv_tokens
        profile = profile or spec.profile
    return Setup(
        profile=find_profile(profile or DEFAULT_PROFILE),
        replicas=1 if replicas is None else replicas,
        slowdowns=spec.slowdowns if spec else (),
        replica_policy=options.replica_policy,
        fleet_policy=options.fleet_policy,
        quantum=_quantum("quantum", options.quantum),
        worker_quantum=_quantum("worker_quantum", options.worker_quantum),
        cost=_cost(
            options.cost, LinearCost(options.input_weight, options.output_weight, options.kv_time)
        ),
        engine=engine_config(
            kv_tokens=kv_tokens,
            admission=options.admission,
            max_running=options.max_running,
            share_in_batch=options.share_in_batch,
            adapters_per_batch=spec.adapters_per_batch if spec else None,
            isolation=isolation_share(options.isolation),
        ),
        order=options.order,
        warmup_s=options.warmup,
        requests_per_minute=options.requests_per_minute,
        preemption_lead=options.preemption_lead,
        turn_tokens=options.turn_tokens,
        prediction_error=options.prediction_error,
        seed=options.seed,
        expectation=_expectation(options.expected_ttft, options.expected_speed),
        printed=options.printed,
        artifact_rules=options.artifact_rules,
    ).named()


def _of_workload(options: Options, spec: WorkloadSpec) -> Workload:
    """The work of a workload file."""
    _refuse_for_workloads(options)
    _find_its_files(spec, options.traces)
    with working("preparing the workload"):
        return make_workload(str(options.workload), spec, seed=options.seed, traces=options.traces)


def _of_trace(options: Options) -> Workload:
    """The work of a trace; `_find_spec` has checked that there is one."""
    trace = options.trace
    assert trace is not None
    with working("reading the trace"):
        read = read_programs(trace, clients=options.clients, speed=options.speed, seed=options.seed)
        return Workload(trace.name, read, _weighted(read, options.weight), size=len(read))


def _compare_scalers(options: Options, file: Path, setup: Setup, work: Workload) -> None:
    """The scaling laboratory."""
    from evenkeel_laboratory.commands import (
        autoscale,  # the router and the operator, which other simulations do not need
    )

    startup_s, targets = options.startup, (options.queue_target, options.concurrency_target)
    if not (0 <= startup_s < float("inf") and min(targets) > 0):
        raise UsageError(
            "--startup must be at least 0, --queue-target and --concurrency-target above 0"
        )
    terms = autoscale.read_terms(file)
    candidates = autoscale.scalers(terms, queue_target=targets[0], concurrency_target=targets[1])
    with working("comparing scalers"):
        found, over_time = autoscale.compare(setup, work, terms, candidates, startup_s=startup_s)
        title = None if options.no_plots else f"{work.name}: start-up {startup_s:g} s"
        autoscale.write(found, over_time, options.out, title=title)
    if options.json:
        print_json(found)
    else:
        autoscale.report(found, report_console(), threshold_s=terms.threshold_s)
        report_console().print(f"written to {options.out}/", highlight=False)


def workloads_folder() -> Path:
    """The folder of named workloads: in the installed package, or else in the source tree."""
    installed = Path(evenkeel_laboratory.__file__).parent / "experiments" / "workloads"
    source = Path(evenkeel_laboratory.__file__).parents[2] / "bench" / "workloads"
    return installed if installed.is_dir() else source


def _quantum(name: str, text: str) -> float | None:
    """Weighted tokens of a quantum; None for Auto."""
    if text.lower() == "auto":
        return None
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{name} is {text!r}, must be Auto or a number") from None


def _cost(name: str, linear: LinearCost) -> Cost:
    if name.lower() == "linear":
        return linear
    if linear != LinearCost():
        raise UsageError(f"the weights are for --cost linear, not {name}")
    if name.lower() != "profiled":
        raise UsageError(f"--cost is {name!r}, must be linear or profiled")
    return ProfiledCost()


def _expectation(ttft_s: float, tokens_per_s: float) -> Expectation:
    try:
        return Expectation(ttft_s, tokens_per_s)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _find_spec(
    workload: str | None, trace: Path | None, workloads: Path | None
) -> WorkloadSpec | None:
    """The spec of the workload; None for a trace."""
    if (workload is None) == (trace is None):
        raise UsageError("give exactly one of --trace and --workload")
    if workload is None:
        return None
    if workload.endswith((".yaml", ".yml")):
        return read_spec(Path(workload))
    known = workload_files(workloads or workloads_folder())
    if workload not in known:
        raise UsageError(f"workload {workload!r} is not one of {', '.join(known) or '(none)'}")
    return read_spec(known[workload])


def _refuse_for_workloads(options: Options) -> None:
    given = {
        "--clients": options.clients is not None,
        "--speed": options.speed != 1.0,
        "--weight": bool(options.weight),
    }
    for name, is_given in given.items():
        if is_given:
            raise UsageError(f"{name} is for --trace only; a workload file has its own")


def _weighted(programs: list[Program], weight: list[str] | None) -> dict[str, Client]:
    """The clients that `--weight` names, by themselves or by their tenant."""
    weights = {}
    for text in weight or []:
        name, _, number = text.rpartition("=")
        try:
            weights[name] = float(number)
        except ValueError:
            weights[name] = 0.0
        if not (name and 0 < weights[name] < float("inf")):
            raise UsageError(f"--weight is {text!r}, must be NAME=WEIGHT with a weight above 0")
    try:
        return weighted((program.client for program in programs), weights)
    except ValueError as error:
        raise UsageError(f"--weight: {error}") from error


def _find_its_files(spec: WorkloadSpec, traces: Path) -> None:
    for name in spec.files:
        if not (traces / name).is_file():
            raise UsageError(
                f"the trace {name} of the workload is not in {traces.absolute()}; set its folder with "
                f"--traces FOLDER or EVENKEEL_DATA (sources of traces: bench/results/experiments.md, Traces)"
            )


def _run(fleet: FleetConfig, work: Workload) -> tuple[list[Record], float]:
    """(records, seconds of virtual time), with a progress bar."""
    records: list[Record] = []
    with _progress(work.size) as advance:

        def note(record: Record) -> None:
            records.append(record)
            if len(records) % _BATCH == 0:
                advance(_BATCH)

        makespan_s = Fleet(fleet, note).run(work)
    return records, makespan_s


@contextmanager
def _progress(total: int | None) -> Iterator[_Advance]:
    with progress_bar("simulating", MofNCompleteColumn(), TextColumn("requests")) as bar:
        task = bar.add_task("requests", total=total)
        yield lambda count: bar.advance(task, count)


def make_results_folder(out: Path) -> None:
    """Create the folder of `--out`; raises `UsageError` if files cannot be written to it."""
    try:
        make_output_folder(out)
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}") from error


def _write(records: list[Record], summary: Summary, out: Path, title: str | None) -> None:
    """`title` of the plots; None: no plots, and those of an earlier run go."""
    try:
        write_csv(records, out / "requests.csv")
        write_json(summary, out / "summary.json")
        if title is None:
            remove_plots(out)
        else:
            plot_run(records, summary, out, title=title)
    except OSError as error:
        raise UsageError(f"--out {out}: {error}") from error


def _report(summary: Summary, out: Path) -> None:
    """Print the most important figures; summary.json has all of them."""
    console = report_console()
    table = make_table(
        "client", "requests", "service", "of owed", "hit rate", "TTFT p50", "p99", "latency p50", "p99"
    )  # fmt: skip
    for name, client in summary.clients.items():
        table.add_row(
            name,
            f"{client.finished}"
            + (f" of {client.requests}" if client.finished < client.requests else ""),
            f"{client.service:,.0f}",
            "–" if client.worst_minute is None else f"{client.worst_minute:.0%}",
            f"{client.hit_rate:.0%}",
            *[_seconds(getattr(client, f"{what}_s")) for what in _TIMES],
        )
    console.print(FittedTable(table))
    difference = summary.service_difference
    console.print(
        f"\n{summary.throughput_tokens_per_s:,.0f} tokens/s in and out ({summary.output_tokens_per_s:,.0f} out) over "
        f"{summary.makespan_s:,.0f} s, "
        f"hit rate {summary.hit_rate:.1%}, Jain {summary.jain_index:.3f} of given over owed and "
        f"{summary.jain_index_service_rate:.3f} of service rates, service difference "
        f"max {difference.max:.2f} avg {difference.avg:.2f} var {difference.var:.2f}",
        highlight=False,
    )
    for line in _unserved(summary):
        console.print(line, style="yellow", highlight=False)
    console.print(summary.verdict, style="bold", highlight=False)
    console.print(f"written to {out}/", highlight=False)


def _unserved(summary: Summary) -> Iterator[str]:
    """One sentence for each kind of request that was not served."""
    if summary.refused:
        yield (
            f"{summary.refused} requests were refused because they do not fit an empty replica; "
            "the calls that depend on them were not sent"
        )
    if summary.rejected:
        yield f"{summary.rejected} requests were rejected by the replica policy"
    if not summary.requests:
        yield "no request arrived"
    elif not summary.finished:
        yield "no request was served, so the figures above have no meaning, and there are no plots"
    else:
        unserved = [name for name, client in summary.clients.items() if not client.finished]
        if unserved:
            yield f"clients without a served request: {', '.join(unserved)}"


_TIMES = ("ttft_p50", "ttft_p99", "latency_p50", "latency_p99")


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f} s"
