"""Orders among the requests that DLPM may admit, against the longest match first (docs/design/0007).

    python -m bench.order [--workloads judge-s1 ...] [--orders "HRRN" ...] [--load 2.5] [--seeds 4]

Prints a Markdown table: means over seeds, with the ratio to longest match first in the same run. TTFT is that of well-behaved
clients. Fleets run D2LPM, and all quanta are automatic.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Final

from evenkeel_fairshare.replica.contract import Arrival, Request
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.order import least_work_for_its_match, longest_match
from evenkeel_simulator.experiments.fleet import Fleet
from evenkeel_simulator.experiments.records import Record
from evenkeel_simulator.experiments.setup import Setup, engine_config, find_profile
from evenkeel_simulator.experiments.summary import summarise
from evenkeel_simulator.experiments.workload_file import WorkloadSpec, make_workload, read_spec

from bench.fleet_comparison import COMPARED, TRACES, WORKLOADS, scaled

REFERENCE: Final = "longest match"
SCALE: Final = 10**6
"""Sort keys are whole numbers; ratios are multiplied by this."""


class HrrnInside(Dlpm):
    """The highest response ratio first: input tokens computed since the arrival over uncached input."""

    def __init__(self) -> None:
        super().__init__(order=self._minus_ratio)
        self._work = 0
        self._work_at_arrival: dict[Request, int] = {}

    def arrive(self, request: Request, now_s: float) -> Arrival:
        self._work_at_arrival[request] = self._work
        return super().arrive(request, now_s)

    def leave(self, request: Request, now_s: float) -> None:
        super().leave(request, now_s)
        del self._work_at_arrival[request]

    def _admit(self, request: Request) -> None:
        self._work += request.extend_tokens
        super()._admit(request)

    def _minus_ratio(self, request: Request) -> int:
        waited = self._work - self._work_at_arrival[request]
        return -SCALE * waited // request.uncached_tokens


def share_of_match(request: Request) -> int:
    """The most cached tokens for each uncached one; without a match the shortest."""
    return -SCALE * (request.matched_tokens + 1000) // request.uncached_tokens


def warm_then_short(request: Request) -> int:
    """Longest match first from a quarter of the input; then the shortest."""
    is_warm = 4 * request.matched_tokens >= request.input_tokens
    return -request.matched_tokens if is_warm else request.uncached_tokens


ORDERS: Final[Mapping[str, Callable[[], Dlpm]]] = {
    REFERENCE: partial(Dlpm, order=longest_match),
    "least work for its match": partial(Dlpm, order=least_work_for_its_match),
    "warm, then short": partial(Dlpm, order=warm_then_short),
    "share of match": partial(Dlpm, order=share_of_match),
    "least uncached": partial(Dlpm, order=lambda request: request.uncached_tokens),
    "HRRN": HrrnInside,
}


def run(name: str, spec: WorkloadSpec, order: str, seed: int) -> tuple[float, float, float]:
    """(throughput, hit rate, mean TTFT of well-behaved clients) of one run."""
    setup = Setup(
        profile=find_profile(spec.profile),
        replicas=spec.replicas,
        engine=engine_config(kv_tokens=spec.kv_tokens),
    )
    config = replace(setup.fleet(), replica_policy=ORDERS[order])
    records: list[Record] = []
    work = make_workload(name, spec, seed=seed, traces=TRACES)
    summary = summarise(records, Fleet(config, records.append).run(work))
    ttfts = [
        record.ttft_s
        for record in records
        if record.client not in spec.misbehaving and record.ttft_s is not None
    ]
    return summary.throughput_tokens_per_s, summary.hit_rate, fmean(ttfts)


def main() -> None:
    parser = argparse.ArgumentParser(description="Orders among the eligible requests of DLPM.")
    parser.add_argument("--workloads", nargs="+", default=list(COMPARED))
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=list(ORDERS)[1:])
    parser.add_argument("--load", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    print("| workload | order | throughput, tokens/s | | hit rate | | mean TTFT, s | |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for name in options.workloads:
        spec = scaled(read_spec(WORKLOADS / f"{name}.yaml"), options.load)
        reference: list[float] = []
        for order in (REFERENCE, *options.orders):
            seeds = [run(name, spec, order, seed) for seed in range(options.seeds)]
            means = [fmean(column) for column in zip(*seeds, strict=True)]
            reference = reference or means
            cells = [
                f"{form.format(mean)} | {mean / base:.3f}"
                for form, mean, base in zip(
                    ("{:,.0f}", "{:.3f}", "{:.2f}"), means, reference, strict=True
                )
            ]
            print(f"| {name} | {order} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
