"""The papers' workloads on an engine: LPM, VTC and DLPM by throughput, Jain's index and the others' latency.

How much an engine manages of a workload is measured first, under the first policy; then every policy gets a multiple of that, for some
time, the same programs each. A run ends when all requests of the well-behaved clients have ended, at the latest after twice the time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
from evenkeel_laboratory.experiments.workload_file import read_spec

from bench.gpu.engine import EngineError
from bench.gpu.load import burst, longest_call, shrunk
from bench.gpu.measuring import MeasurementPlan, measure
from bench.gpu.report import RunResult

_HERE: Final = Path(__file__).parent
WORKLOADS: Final[Mapping[str, Path]] = {
    "tot-s1": _HERE.parent / "workloads" / "tot-s1.yaml",
    "judge-s1": _HERE.parent / "workloads" / "judge-s1.yaml",
    "qa-s1": _HERE.parent / "workloads" / "qa-s1.yaml",
    "multi-turn": _HERE / "workloads" / "multi-turn.yaml",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the step `papers`."""
    add = parser.add_argument_group("papers").add_argument
    add("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    add("--load", type=float, default=2.0, help="arrivals, in multiples of what is managed")
    add("--burst", type=int, default=24, help="programs by which that is measured")
    add("--duration", type=float, default=120.0, help="seconds for which programs arrive")
    add("--seed", type=int, default=0)


def plan_of(options: argparse.Namespace, *, tokens: float, vocabulary: int) -> MeasurementPlan:
    """The plan by these options; token counts are multiplied by `tokens`."""
    return MeasurementPlan(
        workloads={
            name: shrunk(read_spec(WORKLOADS[name]), 1 / tokens) for name in options.workloads
        },
        burst_programs=options.burst,
        load=options.load,
        duration_s=options.duration,
        seed=options.seed,
        vocabulary=vocabulary,
    )


async def measure_papers(
    url: str,
    policy: str,
    plan: MeasurementPlan,
    *,
    capacities: dict[str, float],
    report: Callable[[RunResult], None],
) -> Sequence[RunResult]:
    """Every workload on this engine; raises `EngineError` if a request cannot fit into its pool."""
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        info = (await http.get(f"{url}/server_info")).raise_for_status()
    _check_room(info.json(), plan)
    return await measure(url, policy, plan, capacities=capacities, report=report)


def _check_room(info: Mapping[str, Any], plan: MeasurementPlan) -> None:
    holds = info["max_total_num_tokens"]
    for name, spec in plan.workloads.items():
        needs = longest_call(burst(spec, plan.burst_programs, seed=plan.seed))
        if needs > holds:
            raise EngineError(
                f"{name}: its longest request has {needs} tokens, and the engine holds {holds}; "
                f"give a smaller --scale or a larger --pool"
            )


def vocabulary_of(model: Path) -> int:
    """Tokens of a model's vocabulary; raises `EngineError` if its folder has none."""
    try:
        config = msgspec.json.decode((model / "config.json").read_bytes())
        return int(config["vocab_size"])
    except (OSError, msgspec.MsgspecError, LookupError, TypeError, ValueError) as error:
        raise EngineError(f"--model {model} is not the folder of a model: {error!r}") from error
