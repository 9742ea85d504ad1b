"""The options of `evenkeel simulate`, with their help and their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from evenkeel_cli.trace_options import Speed, option
from evenkeel_contract.enginesettings import WARMUP_S
from evenkeel_contract.spec.resources import Scheduling
from evenkeel_fairshare.qoe import EXPECTED_TOKENS_PER_S, EXPECTED_TTFT_S
from evenkeel_fairshare.replica.order import ORDERS
from evenkeel_simulator.engine.config import AdmissionRule

from evenkeel_laboratory.policies.registry import FLEET_POLICIES, REPLICA_POLICIES
from evenkeel_laboratory.policies.round_robin import TURN_TOKENS
from evenkeel_laboratory.policies.rpm import REQUESTS_PER_MINUTE
from evenkeel_laboratory.policies.vtc_preempt import PREEMPTION_LEAD

DEFAULT_PROFILE = "a100-llama3.1-8b"
DEFAULT_ISOLATION = str(Scheduling().isolation.text)


NoPlots = Annotated[bool, typer.Option("--no-plots", help="Write no plots.")]
Traces = Annotated[
    Path, typer.Option(help="Folder with the traces of workloads.", envvar="EVENKEEL_DATA")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One field for each option of the command."""

    trace: Annotated[Path | None, option("Trace file: CSV or Mooncake JSONL, plain or gzip.")] = (
        None
    )
    workload: Annotated[str | None, option("Name of a workload, or a YAML file.")] = None
    replicas: Annotated[
        int | None, option("Number of replicas. Default: that of the workload, or 1.")
    ] = None
    replica_policy: Annotated[str, typer.Option(help=f"One of {', '.join(REPLICA_POLICIES)}.")] = (
        "DLPM"
    )
    fleet_policy: Annotated[str, typer.Option(help=f"One of {', '.join(FLEET_POLICIES)}.")] = (
        "D2LPM"
    )
    profile: Annotated[
        str | None,
        option(
            f"Name of a profile, or a JSON file. Default: that of the workload, or {DEFAULT_PROFILE}."
        ),
    ] = None
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("simulation")
    seed: Annotated[
        int, typer.Option(help="Random seed of a workload, of hash:N and of prediction errors.")
    ] = 0
    clients: Annotated[
        str | None, option("hash:N assigns the sessions of a trace to N clients by a hash.")
    ] = None
    speed: Speed = 1.0
    kv_tokens: Annotated[
        int | None, option("Size of the KV pool. Default: that of the workload or profile.")
    ] = None
    admission: Annotated[
        str, typer.Option(help="Admission rule: history as in replicas, sglang or reservation.")
    ] = AdmissionRule.HISTORY.value
    max_running: Annotated[
        int | None, option("Maximum number of running requests. Default: no limit.")
    ] = None
    share_in_batch: Annotated[
        bool, typer.Option(help="Let requests wait for a running one that computes their prefix.")
    ] = True
    quantum: Annotated[
        str,
        typer.Option(help="Quantum of DLPM (Q^u), in weighted tokens, or Auto.", metavar="TOKENS"),
    ] = "Auto"
    worker_quantum: Annotated[
        str,
        typer.Option(help="Quantum of D2LPM (Q^w), in weighted tokens, or Auto.", metavar="TOKENS"),
    ] = "Auto"
    isolation: Annotated[
        str,
        typer.Option(
            help="spec.scheduling.isolation: least speed of a running client, in percent of its speed alone times its share; or Off.",
            metavar="PERCENT",
        ),
    ] = DEFAULT_ISOLATION
    order: Annotated[
        str,
        typer.Option(
            help=f"spec.scheduling.order of DLPM: which request goes first. One of {', '.join(ORDERS)}."
        ),
    ] = Scheduling().order.value
    cost: Annotated[
        str,
        typer.Option(
            "--cost", help="What serving costs: linear, or profiled as in the VTC paper's appendix."
        ),
    ] = "linear"
    input_weight: Annotated[float, typer.Option(help="Weight of an input token.")] = 1.0
    output_weight: Annotated[float, typer.Option(help="Weight of an output token.")] = 2.0
    kv_time: Annotated[
        float, typer.Option(help="Cost of 1000 KV tokens held while one output token is made.")
    ] = 0.0
    warmup: Annotated[
        float,
        typer.Option(help="Time for which a new replica with DLPM defers refills, in seconds."),
    ] = WARMUP_S
    requests_per_minute: Annotated[
        int, typer.Option(help="Limit of RPM and RPMDefer for each client.")
    ] = REQUESTS_PER_MINUTE
    preemption_lead: Annotated[
        float,
        typer.Option(
            help="VTCPreempt preempts a client that is ahead by more weighted tokens.",
            metavar="TOKENS",
        ),
    ] = PREEMPTION_LEAD
    turn_tokens: Annotated[
        int, typer.Option(help="Output tokens of a turn of PreemptiveRoundRobin.", metavar="TOKENS")
    ] = TURN_TOKENS
    prediction_error: Annotated[
        float, typer.Option(help="Largest error of VTCOracle: 0.5 for the paper's ±50 %.")
    ] = 0.0
    expected_ttft: Annotated[
        float, typer.Option(help="Seconds in which users expect the first token, for QoE.")
    ] = EXPECTED_TTFT_S
    expected_speed: Annotated[
        float, typer.Option(help="Tokens per second that users read, for QoE.")
    ] = EXPECTED_TOKENS_PER_S
    weight: Annotated[
        list[str] | None,
        option("NAME=WEIGHT of a client or a tenant (namespace/tenant) of a trace; repeatable."),
    ] = None
    printed: Annotated[
        bool,
        typer.Option(
            "--printed",
            help="Run DLPM as the paper prints it: in its order, whatever --order says, and without a first turn for newcomers.",
        ),
    ] = False
    artifact_rules: Annotated[
        bool,
        typer.Option("--artifact-rules", help="Use engine and accounts of the VTC authors' code."),
    ] = False
    workloads: Annotated[Path | None, option("Folder with workload files.")] = None
    traces: Traces = Path()
    autoscale: Annotated[
        Path | None,
        option(
            "Compare scalers instead: file with a FairInferenceService that has spec.autoscaling."
        ),
    ] = None
    startup: Annotated[
        float, typer.Option(help="--autoscale: seconds until a started replica is ready.")
    ] = 120.0
    queue_target: Annotated[
        float,
        typer.Option(
            help="--autoscale: target of the scaler `hpa queue`, in waiting requests per replica."
        ),
    ] = 4.0
    concurrency_target: Annotated[
        float,
        typer.Option(
            help="--autoscale: target of the scaler `panic window`, in requests in flight per replica."
        ),
    ] = 32.0
    no_plots: NoPlots = False
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False
