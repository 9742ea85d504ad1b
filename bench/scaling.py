"""The scaling laboratory over the shared traces: `python -m bench.scaling --traces FOLDER [--names Azure] [--seeds 3] [--seconds 1800]`.

The operator's decision core against rivals, on traces whose load changes: three times its rate in the middle third. The flood adds
a client that asks for more than the whole fleet gives for a sixth of the time. Prints a Markdown table of means over seeds.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Final

from evenkeel_cli import autoscale
from evenkeel_cli.scalers import OperatorScaler, PanicScaler, QueueScaler, StaticScaler
from evenkeel_simulator.engine.profiles import PROFILES
from evenkeel_simulator.experiments.scaling import Scaler, ScalingFigures
from evenkeel_simulator.experiments.setup import Setup
from evenkeel_simulator.experiments.traces import hash_clients, programs, read_trace
from evenkeel_simulator.experiments.workload import Call, Program, Workload

MANIFEST: Final = """
apiVersion: evenkeel.dev/v1alpha1
kind: FairInferenceService
metadata: {name: lab}
spec:
  model: {source: "hf://org/model", servedName: m}
  slo: {ttft: {threshold: 5s}}
  autoscaling:
    maxReplicas: 6
    maxReplicasPerClient: 50%
    prometheus: {url: "http://prometheus:9090"}
    targets: {queueTime: 1s, ttftP95: 5s}
"""
TRACES: Final = {
    "Azure": ("azure_llm_2023_conv.csv.gz", "a100-llama2-13b", 1.0),
    "Mooncake": ("mooncake_conversation.public.jsonl.gz", "a100-llama3.1-8b", 0.5),
}
"""Name → file, profile, speed."""


def workload(name: str, folder: Path, *, seed: int, seconds: float, flood: bool) -> Workload:
    """The trace's first seconds by 12 clients; all of its requests in the middle third, and every third one otherwise."""
    file, _, speed = TRACES[name]
    found = programs(read_trace(folder / file), hash_clients(12, seed=seed), speed=speed)
    kept = [
        one
        for number, one in enumerate(found)
        if one.arrival_s < seconds
        and (seconds / 3 <= one.arrival_s < 2 * seconds / 3 or (number + seed) % 3 == 0)
    ]
    if flood:
        kept = sorted([*kept, *_flood(seconds)], key=lambda one: one.arrival_s)
    return Workload(name, kept, size=len(kept), duration_s=seconds)


def _flood(seconds: float) -> Iterator[Program]:
    """15 requests per second for a sixth of the time, in the last third."""
    for number in range(int(15 * seconds / 6)):
        call = Call(input_tokens=1200, output_tokens=200, max_output_tokens=200)
        yield Program(f"flood-{number}", "flood", 0.7 * seconds + number / 15, (call,))


def candidates(terms: autoscale.Terms) -> list[Callable[[], Scaler]]:
    """Rivals with two targets each, since their owner must guess one."""
    scaling = terms.scaling
    return [
        lambda: OperatorScaler(scaling, terms.parts, replicas=terms.first),
        *(
            lambda target=target: QueueScaler(scaling, target=target, replicas=terms.first)
            for target in (2.0, 8.0)
        ),
        *(lambda target=target: PanicScaler(scaling, target=target) for target in (16.0, 48.0)),
        *(lambda size=size: StaticScaler(size) for size in (3, 6)),
    ]


def main(folder: Path, *, names: list[str], seeds: int, seconds: float, startup_s: float) -> None:
    with TemporaryDirectory() as temporary:
        path = Path(temporary) / "service.yaml"
        path.write_text(MANIFEST)
        terms = autoscale.read_terms(path)
    print(
        "| trace | scaler | GPU hours | in 5 s | TTFT p50 | TTFT p99 | starts | flaps | peak |\n|---|---|---|---|---|---|---|---|---|",
        flush=True,
    )
    for name in names:
        for flood in (False, True):
            found: defaultdict[str, list[ScalingFigures]] = defaultdict(list)
            for seed in range(seeds):
                work = workload(name, folder, seed=seed, seconds=seconds, flood=flood)
                setup = Setup(profile=PROFILES[TRACES[name][1]])
                scalers = [make() for make in candidates(terms)]
                for one in autoscale.compare(
                    replace(setup), work, terms, scalers, startup_s=startup_s
                )[0]:
                    found[one.scaler].append(one)
            title = f"{name}, flood" if flood else name
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
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--startup", type=float, default=120.0)
    given = parser.parse_args()
    main(
        given.traces,
        names=given.names,
        seeds=given.seeds,
        seconds=given.seconds,
        startup_s=given.startup,
    )
