"""The scaling laboratory over the shared traces: `python -m bench.scaling --traces FOLDER [--names Azure] [--seeds 3] [--startup 120]`.

The operator's decision core against rivals, on traces whose load changes: ServeGen's as it is, and the others with three times their
rate in the middle third. To these, a flood adds a client that asks for as much as eight replicas serve, for a sixth of the time.
Prints a Markdown table of means over seeds.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Final

from evenkeel_contract.spec.autoscaling import Targets
from evenkeel_contract.values import Quantity
from evenkeel_laboratory.commands import autoscale
from evenkeel_laboratory.commands.scalers import (
    OperatorScaler,
    PanicScaler,
    QueueScaler,
    StaticScaler,
)
from evenkeel_laboratory.experiments.scaling import Scaler, ScalingFigures
from evenkeel_laboratory.experiments.servegen import read_tables
from evenkeel_laboratory.experiments.setup import Setup
from evenkeel_simulator.engine.profiles import PROFILES
from evenkeel_simulator.traffic.traces import hash_clients, programs, read_trace
from evenkeel_simulator.traffic.workload import Call, Program, Workload

MANIFEST: Final = """
apiVersion: evenkeel.dev/v1alpha1
kind: FairInferenceService
metadata: {name: lab}
spec:
  model: {source: "hf://org/model", servedName: m}
  slo: {ttft: {threshold: 5s}}
  autoscaling:
    maxReplicas: 12
    maxReplicasPerClient: 25%
    prometheus: {url: "http://prometheus:9090"}
    targets: {queueTime: 1s, ttftP95: 5s}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A trace, and a replica for it."""

    file: str
    profile: str
    seconds: float
    """Length of the load."""
    capacity: int
    """`servicePerReplica` of the scaler that knows it: weighted tokens per second of a saturated replica of `static 1`."""
    speed: float = 1.0
    steps: bool = True
    """A third of the requests, but all of them in the middle third."""
    threshold_s: float = 5.0
    """Of the SLO and of `ttftP95`; `queueTime` is a fifth of it."""


TRACES: Final = {
    "Azure": Trace(
        file="azure_llm_2023_conv.csv.gz", profile="a100-llama2-13b", seconds=3400, capacity=3000
    ),
    "Mooncake": Trace(
        file="mooncake_conversation.public.jsonl.gz",
        profile="a100-llama3.1-8b",
        seconds=4200,
        capacity=7000,
        speed=0.5,
        threshold_s=10.0,
    ),
    "Mooncake synthetic": Trace(
        file="mooncake_synthetic.jsonl.gz",
        profile="a100-llama3.1-8b",
        seconds=2000,
        capacity=9000,
        speed=0.5,
        threshold_s=10.0,
    ),
    "ServeGen": Trace(
        file="servegen_r1", profile="a10g-llama3.2-3b", seconds=4800, capacity=2100, steps=False
    ),
}
SERVEGEN_LOAD: Final = 0.1
"""Of the published rates: 6,000 to 19,000 weighted tokens per second in the first hours of the day."""


def workload(trace: Trace, folder: Path, *, seed: int, flood: bool = False) -> Workload:
    """A trace by its own clients, or by 12 to which a seed assigns its sessions."""
    seconds = trace.seconds
    if trace.steps:
        found = programs(
            read_trace(folder / trace.file), hash_clients(12, seed=seed), speed=trace.speed
        )
        kept = [
            one
            for number, one in enumerate(found)
            if one.arrival_s < seconds
            and (seconds / 3 <= one.arrival_s < 2 * seconds / 3 or (number + seed) % 3 == 0)
        ]
    else:
        rates, lengths = (folder / f"{trace.file}_{name}.csv.gz" for name in ("rates", "lengths"))
        clients = read_tables(rates, lengths).programs(
            start_s=0, duration_s=seconds, load=SERVEGEN_LOAD, seed=seed
        )
        kept = [one for client in clients for one in client]
    if flood:
        kept += _flood(seconds)
    kept.sort(key=lambda one: one.arrival_s)
    return Workload(trace.file, kept, size=len(kept), duration_s=seconds)


def _flood(seconds: float) -> Iterator[Program]:
    """15 requests per second for a sixth of the time, in the last third."""
    for number in range(int(15 * seconds / 6)):
        call = Call(input_tokens=1200, output_tokens=200, max_output_tokens=200)
        yield Program(f"flood-{number}", "flood", 0.7 * seconds + number / 15, (call,))


def terms_of(trace: Trace) -> autoscale.ServiceTerms:
    """Of the manifest, with the targets of a trace."""
    limit_s = trace.threshold_s
    text = MANIFEST.replace("threshold: 5s", f"threshold: {limit_s:g}s")
    targets = f"queueTime: {limit_s / 5:g}s, ttftP95: {limit_s:g}s"
    with TemporaryDirectory() as temporary:
        path = Path(temporary) / "service.yaml"
        path.write_text(text.replace("queueTime: 1s, ttftP95: 5s", targets))
        return autoscale.read_terms(path)


def candidates(trace: Trace, terms: autoscale.ServiceTerms) -> list[Scaler]:
    """The operator with and without knowledge, and rivals with two targets each, since their owner must guess one."""
    scaling, first = terms.scaling, terms.first
    given = replace(scaling.targets, service_per_replica=Quantity.from_plain(trace.capacity))
    return [
        *(
            _named(
                name, OperatorScaler(replace(scaling, targets=targets), terms.parts, replicas=first)
            )
            for name, targets in (
                ("evenkeel", scaling.targets),
                ("evenkeel, capacity given", given),
                ("evenkeel, demand only", Targets()),
            )
        ),
        *(QueueScaler(scaling, target=target, replicas=first) for target in (2.0, 8.0)),
        *(PanicScaler(scaling, target=target) for target in (16.0, 48.0)),
        *(StaticScaler(size) for size in (3, 6)),
    ]


def _named(name: str, scaler: OperatorScaler) -> OperatorScaler:
    scaler.name = name
    return scaler


def main(folder: Path, *, names: Sequence[str], seeds: int, startup_s: float) -> None:
    print(
        "| trace | scaler | GPU hours | in time | TTFT p50 | TTFT p99 | starts | flaps | peak |\n|---|---|---|---|---|---|---|---|---|",
        flush=True,
    )
    for name in names:
        trace = TRACES[name]
        terms, setup = terms_of(trace), Setup(profile=PROFILES[trace.profile])
        for flood in (False, True) if trace.steps else (False,):
            title = f"{name}, flood" if flood else name
            found: defaultdict[str, list[ScalingFigures]] = defaultdict(list)
            for seed in range(seeds):
                work = workload(trace, folder, seed=seed, flood=flood)
                for one in autoscale.compare(
                    setup, work, terms, candidates(trace, terms), startup_s=startup_s
                )[0]:
                    found[one.scaler].append(one)
            for scaler, runs in found.items():
                print(_row(title, scaler, runs), flush=True)


def _row(title: str, scaler: str, runs: list[ScalingFigures]) -> str:
    parts = [one.attainment or 0.0 for one in runs]
    return (
        f"| {title} | {scaler} | {mean(one.gpu_s for one in runs) / 3600:.2f} "
        f"| {mean(parts):.1%} ({min(parts):.1%} to {max(parts):.1%}) "
        f"| {mean(one.ttft_p50_s for one in runs):.2f} s | {mean(one.ttft_p99_s for one in runs):.1f} s "
        f"| {mean(one.starts for one in runs):.1f} | {mean(one.flaps for one in runs):.1f} | {max(one.peak for one in runs)} |"
    )


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--names", nargs="+", default=list(TRACES), choices=list(TRACES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--startup", type=float, default=120.0)
    given = parser.parse_args()
    main(given.traces, names=given.names, seeds=given.seeds, startup_s=given.startup)
