"""`evenkeel simulate`: simulates a fleet that serves a trace or a workload, in virtual time.

It writes `requests.csv`, `summary.json`, `service.png` and `latency.png`, and ends with a verdict. Invalid input ends with exit code 2 and one
sentence that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import evenkeel_simulator
import msgspec
import typer
from evenkeel_contract.enginesettings import WARMUP_S
from evenkeel_contract.spec.resources import Scheduling
from evenkeel_contract.words_or_numbers import IsolationSetting
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.verdict import verdict
from evenkeel_simulator.engine.config import AdmissionRule
from evenkeel_simulator.experiments.fleet import Fleet
from evenkeel_simulator.experiments.plots import plot_run, remove_plots
from evenkeel_simulator.experiments.records import Record, write_csv
from evenkeel_simulator.experiments.setup import Setup, SetupError, engine_config, find_profile
from evenkeel_simulator.experiments.summary import Summary, summarise
from evenkeel_simulator.experiments.traces import TraceError
from evenkeel_simulator.experiments.workload import Client, Program, Workload, weighted
from evenkeel_simulator.experiments.workload_file import (
    WorkloadError,
    WorkloadSpec,
    make_workload,
    read_spec,
    workload_files,
)
from evenkeel_simulator.laboratory.policies import FLEET_POLICIES, REPLICA_POLICIES
from evenkeel_simulator.laboratory.round_robin import TURN_TOKENS
from evenkeel_simulator.laboratory.rpm import REQUESTS_PER_MINUTE
from evenkeel_simulator.laboratory.vtc_preempt import PREEMPTION_LEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from evenkeel_cli.exitcode import ExitCode
from evenkeel_cli.narrow import FittedTable
from evenkeel_cli.output import (
    make_output_folder,
    print_error,
    print_json,
    report_console,
    working,
)
from evenkeel_cli.trace_options import Speed, UsageError, option, read_programs
from evenkeel_cli.yamlfile import YamlFault

DEFAULT_PROFILE = "a100-llama3.1-8b"
DEFAULT_ISOLATION = Scheduling().isolation.spelling
_BATCH = 256  # requests between two updates of the progress bar


_Advance = Callable[[int], None]


TraceFile = Annotated[Path | None, option("Trace file: CSV or Mooncake JSONL, plain or gzip.")]
WorkloadName = Annotated[str | None, option("Name of a workload, or a YAML file.")]
Replicas = Annotated[int | None, option("Number of replicas. Default: that of the workload, or 1.")]
ReplicaPolicyName = Annotated[str, typer.Option(help=f"One of {', '.join(REPLICA_POLICIES)}.")]
FleetPolicyName = Annotated[str, typer.Option(help=f"One of {', '.join(FLEET_POLICIES)}.")]
ProfileName = Annotated[
    str | None,
    option(
        f"Name of a profile, or a JSON file. Default: that of the workload, or {DEFAULT_PROFILE}."
    ),
]
Out = Annotated[Path, typer.Option(help="Folder for the results.")]
Seed = Annotated[
    int, typer.Option(help="Random seed of a workload, of hash:N and of prediction errors.")
]
Clients = Annotated[
    str | None, option("hash:N assigns the sessions of a trace to N clients by a hash.")
]
KvTokens = Annotated[
    int | None, option("Size of the KV pool. Default: that of the workload or profile.")
]
AdmissionName = Annotated[
    str, typer.Option(help="Admission rule: history as in replicas, sglang or reservation.")
]
MaxRunning = Annotated[int | None, option("Maximum number of running requests. Default: no limit.")]
ShareInBatch = Annotated[
    bool, typer.Option(help="Let requests wait for a running one that computes their prefix.")
]
Quantum = Annotated[
    str, typer.Option(help="Quantum of DLPM (Q^u), in weighted tokens, or Auto.", metavar="TOKENS")
]
WorkerQuantum = Annotated[
    str, typer.Option(help="Quantum of D2LPM (Q^w), in weighted tokens, or Auto.", metavar="TOKENS")
]
Isolation = Annotated[
    str,
    typer.Option(
        help="spec.scheduling.isolation: part of its share of its speed alone that a client keeps, or Off.",
        metavar="PERCENT",
    ),
]
InputWeight = Annotated[float, typer.Option(help="Weight of an input token.")]
OutputWeight = Annotated[float, typer.Option(help="Weight of an output token.")]
KvTime = Annotated[
    float, typer.Option(help="Cost of 1000 KV tokens held while one output token is made.")
]
Warmup = Annotated[
    float, typer.Option(help="Time for which a new replica with DLPM defers refills, in seconds.")
]
RequestsPerMinute = Annotated[int, typer.Option(help="Limit of RPM and RPMDefer for each client.")]
PreemptionLead = Annotated[
    float,
    typer.Option(
        help="VTCPreempt preempts a client that is ahead by more weighted tokens.", metavar="TOKENS"
    ),
]
TurnTokens = Annotated[
    int, typer.Option(help="Output tokens of a turn of PreemptiveRoundRobin.", metavar="TOKENS")
]
PredictionError = Annotated[
    float, typer.Option(help="Largest error of VTCOracle: 0.5 for the paper's ±50 %.")
]
Weight = Annotated[
    list[str] | None,
    option("NAME=WEIGHT of a client or a tenant (namespace/tenant) of a trace; repeatable."),
]
Printed = Annotated[
    bool,
    typer.Option(
        "--printed", help="Run DLPM in the order that the paper prints, not as replicas do."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]
NoPlots = Annotated[bool, typer.Option("--no-plots", help="Write no plots.")]
ArtifactRules = Annotated[
    bool, typer.Option("--artifact-rules", help="Use engine and accounts of the VTC authors' code.")
]
Workloads = Annotated[Path | None, option("Folder with workload files.")]
Traces = Annotated[
    Path, typer.Option(help="Folder with the traces of workloads.", envvar="EVENKEEL_DATA")
]
Autoscale = Annotated[
    Path | None,
    option("Compare scalers instead: file with a FairInferenceService that has spec.autoscaling."),
]
Startup = Annotated[
    float, typer.Option(help="--autoscale: seconds until a started replica is ready.")
]
QueueTarget = Annotated[
    float, typer.Option(help="--autoscale: waiting requests per replica that the rival aims at.")
]
ConcurrencyTarget = Annotated[
    float,
    typer.Option(help="--autoscale: requests in flight per replica that the rival aims at."),
]


def simulate(  # noqa: PLR0913, PLR0917  (one parameter per option)
    trace: TraceFile = None,
    workload: WorkloadName = None,
    replicas: Replicas = None,
    replica_policy: ReplicaPolicyName = "DLPM",
    fleet_policy: FleetPolicyName = "D2LPM",
    profile: ProfileName = None,
    out: Out = Path("simulation"),
    seed: Seed = 0,
    clients: Clients = None,
    speed: Speed = 1.0,
    kv_tokens: KvTokens = None,
    admission: AdmissionName = AdmissionRule.HISTORY.value,
    max_running: MaxRunning = None,
    share_in_batch: ShareInBatch = True,
    quantum: Quantum = "Auto",
    worker_quantum: WorkerQuantum = "Auto",
    isolation: Isolation = DEFAULT_ISOLATION,
    input_weight: InputWeight = 1.0,
    output_weight: OutputWeight = 2.0,
    kv_time: KvTime = 0.0,
    warmup: Warmup = WARMUP_S,
    requests_per_minute: RequestsPerMinute = REQUESTS_PER_MINUTE,
    preemption_lead: PreemptionLead = PREEMPTION_LEAD,
    turn_tokens: TurnTokens = TURN_TOKENS,
    prediction_error: PredictionError = 0.0,
    weight: Weight = None,
    printed: Printed = False,
    artifact_rules: ArtifactRules = False,
    workloads: Workloads = None,
    traces: Traces = Path(),
    autoscale: Autoscale = None,
    startup: Startup = 120.0,
    queue_target: QueueTarget = 4.0,
    concurrency_target: ConcurrencyTarget = 32.0,
    no_plots: NoPlots = False,
    json: Json = False,
) -> None:
    """Simulate a fleet under a trace or a workload, in virtual time."""
    try:
        spec = _find_spec(workload, trace, workloads)
        setup = Setup(
            profile=find_profile(profile or (spec.profile if spec else DEFAULT_PROFILE)),
            replicas=replicas if replicas is not None else (spec.replicas if spec else 1),
            replica_policy=replica_policy,
            fleet_policy=fleet_policy,
            quantum=_quantum("quantum", quantum),
            worker_quantum=_quantum("worker_quantum", worker_quantum),
            cost=LinearCost(input_weight, output_weight, kv_time),
            engine=engine_config(
                kv_tokens=kv_tokens if spec is None or kv_tokens is not None else spec.kv_tokens,
                admission=admission,
                max_running=max_running,
                share_in_batch=share_in_batch,
                adapters_per_batch=spec.adapters_per_batch if spec else None,
                isolation=_isolation(isolation),
            ),
            warmup_s=warmup,
            requests_per_minute=requests_per_minute,
            preemption_lead=preemption_lead,
            turn_tokens=turn_tokens,
            prediction_error=prediction_error,
            seed=seed,
            printed=printed,
            artifact_rules=artifact_rules,
        ).named()
        if spec is not None:
            _refuse_for_workloads(clients, speed, weight)
            _find_its_files(spec, traces)
            with working("preparing the workload"):
                work = make_workload(str(workload), spec, seed=seed, traces=traces)
        else:
            with working("reading the trace"):
                work = _of_trace(trace, clients=clients, speed=speed, seed=seed, weight=weight)
        _open(out)
        if autoscale is not None:
            _compare_scalers(
                autoscale, setup, work, startup_s=startup, targets=(queue_target, concurrency_target),
                out=out, plots=not no_plots, json=json,
            )  # fmt: skip
            return
        records, makespan_s = _run(setup, work)
        summary = summarise(records, makespan_s, duration_s=work.duration_s, clients=work.clients)
        title = f"{work.name}: {setup.fleet_policy} + {setup.replica_policy}"
        with working("writing the results"):
            _write(records, summary, out, None if no_plots else title)
    except (UsageError, TraceError, WorkloadError, SetupError, YamlFault) as error:
        print_error(error)
        raise typer.Exit(ExitCode.INVALID) from error
    if json:
        print_json(summary)
    else:
        _report(summary, out)
    if not summary.finished:
        raise typer.Exit(ExitCode.FAILED)  # a script must not use this as a result


def _of_trace(
    trace: Path | None, *, clients: str | None, speed: float, seed: int, weight: list[str] | None
) -> Workload:
    """The work of a trace; `_find_spec` has checked that there is one."""
    assert trace is not None
    read = read_programs(trace, clients=clients, speed=speed, seed=seed)
    return Workload(trace.name, read, _weighted(read, weight), size=len(read))


def _compare_scalers(
    file: Path,
    setup: Setup,
    work: Workload,
    *,
    startup_s: float,
    targets: tuple[float, float],
    out: Path,
    plots: bool,
    json: bool,
) -> None:
    """The scaling laboratory; `targets`: waiting requests, and requests in flight, per replica."""
    from evenkeel_cli import (
        autoscale,  # the router and the operator, which other simulations do not need
    )

    if not (0 <= startup_s < float("inf") and min(targets) > 0):
        raise UsageError(
            "--startup must be at least 0, --queue-target and --concurrency-target above 0"
        )
    terms = autoscale.read_terms(file)
    candidates = autoscale.scalers(terms, queue_target=targets[0], concurrency_target=targets[1])
    with working("comparing scalers"):
        found, over_time = autoscale.compare(setup, work, terms, candidates, startup_s=startup_s)
        title = f"{work.name}: start-up {startup_s:g} s" if plots else None
        autoscale.write(found, over_time, out, title=title)
    if json:
        print_json(found)
    else:
        autoscale.report(found, report_console(), threshold_s=terms.threshold_s)
        report_console().print(f"written to {out}/", highlight=False)


def workloads_folder() -> Path:
    """The folder of named workloads: in the installed package, or else in the source tree."""
    installed = Path(evenkeel_simulator.__file__).parent / "experiments" / "workloads"
    source = Path(evenkeel_simulator.__file__).parents[2] / "bench" / "workloads"
    return installed if installed.is_dir() else source


def _quantum(name: str, text: str) -> float | None:
    """None for Auto."""
    if text.lower() == "auto":
        return None
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{name} is {text!r}, must be Auto or a number") from None


def _isolation(text: str) -> float | None:
    try:
        return IsolationSetting.from_plain(text).share
    except ValueError as error:
        raise UsageError(f"isolation {error}") from None


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


def _refuse_for_workloads(clients: str | None, speed: float, weight: list[str] | None) -> None:
    given = {"--clients": clients is not None, "--speed": speed != 1.0, "--weight": bool(weight)}
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


def _run(setup: Setup, work: Workload) -> tuple[list[Record], float]:
    """(records, seconds of virtual time), with a progress bar."""
    records: list[Record] = []
    with _progress(work.size) as advance:

        def note(record: Record) -> None:
            records.append(record)
            if len(records) % _BATCH == 0:
                advance(_BATCH)

        makespan_s = Fleet(setup.fleet(), note).run(work)
    return records, makespan_s


@contextmanager
def _progress(total: int | None) -> Iterator[_Advance]:
    columns = (
        TextColumn("[bold]simulating"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("requests"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("requests", total=total)
        yield lambda count: bar.advance(task, count)


def _open(out: Path) -> None:
    try:
        make_output_folder(out)
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}") from error


def _write(records: list[Record], summary: Summary, out: Path, title: str | None) -> None:
    """`title` of the plots; None: no plots, and those of an earlier run go."""
    try:
        write_csv(records, out / "requests.csv")
        text = msgspec.json.format(msgspec.json.encode(summary), indent=2)
        (out / "summary.json").write_bytes(text + b"\n")
        if title is None:
            remove_plots(out)
        else:
            plot_run(records, summary, out, title=title)
    except OSError as error:
        raise UsageError(f"--out {out}: {error}") from error


def _report(summary: Summary, out: Path) -> None:
    """Print the most important figures; summary.json has all of them."""
    console = report_console()
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("client")
    for name in (
        "requests",
        "service",
        "of owed",
        "hit rate",
        "TTFT p50",
        "p99",
        "latency p50",
        "p99",
    ):
        table.add_column(name, justify="right")
    for name, client in summary.clients.items():
        table.add_row(
            name,
            f"{client.finished}"
            + (f" of {client.requests}" if client.finished < client.requests else ""),
            f"{client.service:,.0f}",
            "-" if client.given_over_owed is None else f"{client.given_over_owed:.0%}",
            f"{client.hit_rate:.0%}",
            *[_seconds(getattr(client, f"{what}_s")) for what in _TIMES],
        )
    console.print(FittedTable(table))
    difference = summary.service_difference
    console.print(
        f"\n{summary.throughput_tokens_per_s:,.0f} tokens/s over {summary.makespan_s:,.0f} s, "
        f"hit rate {summary.hit_rate:.1%}, Jain {summary.jain_index:.3f} of given over owed and "
        f"{summary.jain_index_service_rate:.3f} of service rates, service difference "
        f"max {difference.max:.2f} avg {difference.avg:.2f} var {difference.var:.2f}",
        highlight=False,
    )
    for line in _unserved(summary):
        console.print(line, style="yellow", highlight=False)
    if summary.finished:
        console.print(verdict(summary.given_over_owed), style="bold", highlight=False)
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
