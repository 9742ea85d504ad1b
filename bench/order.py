"""Orders among the requests that DLPM may admit, against the longest match first (docs/design/0007).

    python -m bench.order [--workloads judge-s1 ...] [--orders "HRRN" ...] [--load 2.5] [--seeds 4] [--resume]

Prints a Markdown table: means over seeds of the ratio to longest match first with the same seed, and their standard deviation. TTFT
is the mean of all requests. *Well-behaved* columns have the mean and the p99 of the clients that do not overload the fleet. Fleets and
loads are those of `fleet_comparison.py`. An order *passes* a workload with at least `LEAST_THROUGHPUT` and `LEAST_HITS` of longest match
first. On Mooncake's traces it also needs at most `MOST_TTFT` of the TTFT of all, and no more for well-behaved clients. Writes `order.json`
(every run) to `--out`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Final

from evenkeel_contract.enginesettings import WARMUP_S
from evenkeel_fairshare.replica.contract import Arrival, Request
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.order import MATCH_BITS, OCTAVE_TOKENS, Order, match_octaves
from evenkeel_fairshare.replica.order import ORDERS as OFFERED
from evenkeel_laboratory.experiments.fleet import FleetConfig
from evenkeel_laboratory.experiments.workload_file import WorkloadSpec

from bench.fleet_comparison import OURS, Case, Result, cell, compare, fleet_of, label, options_of

REFERENCE: Final = "longest match"
LEAST_THROUGHPUT: Final = 0.98
LEAST_HITS: Final = 0.95
MOST_TTFT: Final = 0.75
MEASURES: Final = ("throughput", "hit_rate", "ttft_mean_s", "well_ttft_mean_s", "well_ttft_p99_s")
SCALE: Final = 10**6
"""Sort keys are whole numbers; ratios are multiplied by this."""


class HrrnInside(Dlpm):
    """The highest response ratio first: input tokens computed since the arrival over uncached input."""

    def __init__(self, *, warmup_s: float = 0.0) -> None:
        super().__init__(order=Order(self._minus_ratio), warmup_s=warmup_s)
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


def single_octaves(request: Request) -> int:
    """Match octaves where each octave is a class of its own."""
    matched = request.matched_tokens
    octaves = (request.input_tokens - matched + OCTAVE_TOKENS).bit_length()
    return (octaves - (matched + OCTAVE_TOKENS).bit_length() << MATCH_BITS) - matched


ORDERS: Final[Mapping[str, Callable[..., Dlpm]]] = {
    REFERENCE: partial(Dlpm, order=OFFERED["LongestMatch"]),
    "match octaves": partial(Dlpm, order=OFFERED["MatchOctaves"]),
    **{f"limit {most}": partial(Dlpm, order=Order(match_octaves, most)) for most in (16, 24, 32)},
    "single octaves": partial(Dlpm, order=Order(single_octaves)),
    "share of match": partial(Dlpm, order=Order(share_of_match)),
    "least uncached": partial(Dlpm, order=Order(lambda request: request.uncached_tokens)),
    "HRRN": HrrnInside,
}


def ordered_fleet(order: str, spec: WorkloadSpec) -> FleetConfig:
    """What a service runs by default, in another order."""
    return replace(fleet_of(OURS, spec), replica_policy=partial(ORDERS[order], warmup_s=WARMUP_S))


def ratios(results: Sequence[Result], case: Case, order: str) -> tuple[list[float], ...]:
    """`MEASURES` over those of longest match first, a list of seeds each. No hits with either order are the ratio 1."""
    of = {(r.system, r.seed): r for r in results if r.case == case}
    pairs = [(of[s, n], of[REFERENCE, n]) for s, n in of if s == order and (REFERENCE, n) in of]
    return tuple(
        [
            getattr(one, name) / getattr(base, name) if getattr(base, name) else 1.0
            for one, base in pairs
        ]
        for name in MEASURES
    )


def passes(workload: str, ratios: Sequence[Sequence[float]]) -> bool:
    """Whether the means over seeds reach the goal."""
    throughput, hits, ttft, well, _ = map(fmean, ratios)
    is_trace = workload in {"mooncake-conversation", "mooncake-synthetic"}
    is_better = not is_trace or (ttft <= MOST_TTFT and well <= 1)
    return throughput >= LEAST_THROUGHPUT and hits >= LEAST_HITS and is_better


def table(results: Sequence[Result]) -> str:
    """A row per workload and order."""
    lines = [
        "| workload | order | seeds | throughput | hit rate | TTFT | well-behaved | p99 | passes |"
    ]
    lines.append("|---|---|---:|---:|---:|---:|---:|---:|---|")
    for case in dict.fromkeys(result.case for result in results):
        for order in dict.fromkeys(r.system for r in results if r.case == case):
            found = ratios(results, case, order)
            if order == REFERENCE or not found[0]:
                continue
            cells = " | ".join(cell("{:.3f}", values) for values in found)
            verdict = "yes" if passes(case[0], found) else "no"
            lines.append(f"| {label(case)} | {order} | {len(found[0])} | {cells} | {verdict} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Orders among the eligible requests of DLPM.")
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=list(ORDERS)[1:])
    options = options_of(parser)
    systems = (REFERENCE, *options.orders)
    print("\n" + table(compare(options, systems, "order", make_fleet=ordered_fleet)))


if __name__ == "__main__":
    main()
