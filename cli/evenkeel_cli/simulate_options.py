"""The options of `evenkeel simulate`, with their help and their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from evenkeel_contract.enginesettings import WARMUP_S
from evenkeel_contract.spec.resources import Scheduling
from evenkeel_fairshare.qoe import EXPECTED_TOKENS_PER_S, EXPECTED_TTFT_S
from evenkeel_simulator.engine.config import AdmissionRule
from evenkeel_simulator.laboratory.policies import FLEET_POLICIES, REPLICA_POLICIES
from evenkeel_simulator.laboratory.round_robin import TURN_TOKENS
from evenkeel_simulator.laboratory.rpm import REQUESTS_PER_MINUTE
from evenkeel_simulator.laboratory.vtc_preempt import PREEMPTION_LEAD

from evenkeel_cli.trace_options import Speed, option

DEFAULT_PROFILE = "a100-llama3.1-8b"
DEFAULT_ISOLATION = Scheduling().isolation.spelling


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
CostName = Annotated[
    str,
    typer.Option(
        "--cost", help="What serving costs: linear, or profiled as in the VTC paper's appendix."
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
ExpectedTtft = Annotated[
    float, typer.Option(help="Seconds in which users expect the first token, for QoE.")
]
ExpectedSpeed = Annotated[float, typer.Option(help="Tokens per second that users read, for QoE.")]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One field for each option of the command."""

    trace: TraceFile = None
    workload: WorkloadName = None
    replicas: Replicas = None
    replica_policy: ReplicaPolicyName = "DLPM"
    fleet_policy: FleetPolicyName = "D2LPM"
    profile: ProfileName = None
    out: Out = Path("simulation")
    seed: Seed = 0
    clients: Clients = None
    speed: Speed = 1.0
    kv_tokens: KvTokens = None
    admission: AdmissionName = AdmissionRule.HISTORY.value
    max_running: MaxRunning = None
    share_in_batch: ShareInBatch = True
    quantum: Quantum = "Auto"
    worker_quantum: WorkerQuantum = "Auto"
    isolation: Isolation = DEFAULT_ISOLATION
    cost: CostName = "linear"
    input_weight: InputWeight = 1.0
    output_weight: OutputWeight = 2.0
    kv_time: KvTime = 0.0
    warmup: Warmup = WARMUP_S
    requests_per_minute: RequestsPerMinute = REQUESTS_PER_MINUTE
    preemption_lead: PreemptionLead = PREEMPTION_LEAD
    turn_tokens: TurnTokens = TURN_TOKENS
    prediction_error: PredictionError = 0.0
    expected_ttft: ExpectedTtft = EXPECTED_TTFT_S
    expected_speed: ExpectedSpeed = EXPECTED_TOKENS_PER_S
    weight: Weight = None
    printed: Printed = False
    artifact_rules: ArtifactRules = False
    workloads: Workloads = None
    traces: Traces = Path()
    autoscale: Autoscale = None
    startup: Startup = 120.0
    queue_target: QueueTarget = 4.0
    concurrency_target: ConcurrencyTarget = 32.0
    no_plots: NoPlots = False
    json: Json = False
