"""Andes: average QoE and capacity over the rate of requests, against FCFS and round-robin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Final

import msgspec
from evenkeel_fairshare.qoe import Expectation

from evenkeel_laboratory.experiments.setup import find_profile
from evenkeel_laboratory.papers.panels import Panel, curves
from evenkeel_laboratory.papers.results import Table, row
from evenkeel_laboratory.papers.runs import Context, Run, run, scaled

POLICIES: Final = {"Andes": "Andes", "FCFS": "FCFS", "round-robin": "PreemptiveRoundRobin"}
RECOMPUTED: Final = "Andes, recomputed"
"""Andes on an engine that drops the memory of preempted requests."""
SWAP_TOKEN_MS: Final = 2 * 819_200 / 25e9 * 1e3
"""A KV token of the 13B model to the host and back, over PCIe 4.0 x16 at an assumed 25 GB/s."""
THRESHOLD: Final = 0.9
"""Average QoE below which a system is beyond its capacity."""
WORKLOADS: Final = ("sharegpt", "sharegpt-rounds")
LOADS: Final = (0.6, 0.8, 1.0, 1.2, 1.4, 1.8)
"""Factors on the arrivals of a workload."""
QUICK: Final = (0.8, 1.0, 1.4)
QUICK_LENGTH: Final = 0.25


def _quality(workload: str, context: Context) -> Table:
    length = QUICK_LENGTH if context.quick else 1.0
    base = context.spec(workload)
    results: dict[float, dict[str, Run]] = {}
    for load in QUICK if context.quick else LOADS:
        spec = scaled(base, load=load, length=length)
        dropping = find_profile(spec.profile)
        swapping = msgspec.structs.replace(dropping, swap_token_ms=SWAP_TOKEN_MS)
        results[load] = {
            name: run(
                context,
                spec,
                f"{workload}, ×{load:g}, {name}",
                {
                    "replica_policy": policy,
                    "fleet_policy": "RoundRobin",
                    "expectation": Expectation(),
                    "profile": dropping if name == RECOMPUTED else swapping,
                },
            )
            for name, policy in {**POLICIES, RECOMPUTED: "Andes"}.items()
        }
    return _table(workload, base.clients[0].arrivals.rate_per_s, results)


def _table(workload: str, rate_per_s: float, results: Mapping[float, Mapping[str, Run]]) -> Table:
    rows = []
    for load, by_policy in results.items():
        qualities = [_mean(by_policy[name]) for name in POLICIES]
        andes, fcfs = by_policy["Andes"], by_policy["FCFS"]
        throughput = _rate(andes) / _rate(fcfs)
        rows.append(
            row(
                f"{rate_per_s * load:.2f} programs/s",
                *qualities,
                _mean(andes) / max(1e-9, _mean(fcfs)),
                f"{throughput - 1:+.1%}",
                f"{_rate(by_policy[RECOMPUTED]) / _rate(fcfs) - 1:+.1%}",
                met=_mean(andes) >= max(qualities) - 0.02 and throughput >= 0.9,
            )
        )
    capacity = {name: rate_per_s * _capacity(results, name) for name in POLICIES}
    gain = capacity["Andes"] / capacity["FCFS"] if capacity["FCFS"] else float("inf")
    best = max(_mean(r["Andes"]) / max(1e-9, _mean(r["FCFS"])) for r in results.values())
    rows += [
        row(
            f"capacity, programs/s: paper up to 1.6 times; here {gain:.2f}",
            *capacity.values(),
            None,
            None,
            None,
            met=1 <= gain,
        ),
        row(
            f"largest gain of QoE: paper up to 3.2 times; here {best:.2f}",
            None,
            None,
            None,
            best,
            None,
            None,
            met=best >= 1.5,
        ),
    ]
    return Table(
        name=f"andes-{workload}",
        title=f"Average QoE over the rate: {workload}",
        about="Users expect the first token in 1 s and 4.8 tokens/s. Throughput is of output tokens, against FCFS; the paper loses less than 10 %. Capacity is the largest rate "
        f"with an average QoE of {THRESHOLD} (interpolated between the rates that were run). The paper's model, GPU and lengths are not those of this profile. "
        "Preempted requests move to the host and back at an assumed 25 GB/s; the last column is of Andes where they are computed again.",
        headings=("rate", *POLICIES, "Andes over FCFS", "throughput", "recomputed"),
        rows=tuple(rows),
        figure_only=True,
        panels=_panels(rate_per_s, results),
    )


def _panels(rate_per_s: float, results: Mapping[float, Mapping[str, Run]]) -> tuple[Panel, ...]:
    def over_rate(title: str, y: str, of: Callable[[Run], float]) -> Panel:
        points = {
            name: [(rate_per_s * load, of(by_policy[name])) for load, by_policy in results.items()]
            for name in POLICIES
        }
        return curves(title, points, x="programs/s", y=y)

    return (
        over_rate("Average QoE", "", _mean),
        over_rate("Output", "tokens/s", _rate),
    )


def _capacity(results: Mapping[float, Mapping[str, Run]], name: str) -> float:
    """The load at which the mean QoE falls below the threshold; the first or last load if none is beyond."""
    loads = list(results)
    for low, high in pairwise(loads):
        above, below = _mean(results[low][name]), _mean(results[high][name])
        if above >= THRESHOLD > below:
            return low + (high - low) * (above - THRESHOLD) / (above - below)
    return loads[-1] if _mean(results[loads[-1]][name]) >= THRESHOLD else loads[0]


def _mean(result: Run) -> float:
    return result.summary.qoe_mean or 0.0


def _rate(result: Run) -> float:
    return result.summary.output_tokens_per_s


EXPERIMENTS: Final[Mapping[str, Callable[[Context], Table]]] = MappingProxyType(
    {f"andes-{workload}": partial(_quality, workload) for workload in WORKLOADS}
)
