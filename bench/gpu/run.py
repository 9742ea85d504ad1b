"""LPM, VTC and DLPM inside a real SGLang on the papers' workloads: throughput, Jain's index, the others' latency.

    python -m bench.gpu.run --sglang .venv-gpu --model out/model-1b --out out/gpu      # one GPU
    python -m bench.gpu.run --sglang .venv-sglang --model .venv-sglang/model --cpu --out out/gpu-toy

One engine per policy. How much it manages of a workload is measured first, under the first policy; then every policy
gets `--load` times that, for `--duration` seconds, the same programs each. A run ends when all requests of the
well-behaved clients have ended, at the latest after twice the duration.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
from evenkeel_cli.up.engines import find_interpreter
from evenkeel_cli.up.errors import FleetError
from evenkeel_laboratory.experiments.workload_file import read_spec

from bench.gpu.engine import EngineError, running_engine
from bench.gpu.load import burst, longest_call, shrunk
from bench.gpu.measuring import MeasurementPlan, measure
from bench.gpu.report import Measurement, RunResult, table_of, write

_HERE: Final = Path(__file__).parent
WORKLOADS: Final[Mapping[str, Path]] = {
    "tot-s1": _HERE.parent / "workloads" / "tot-s1.yaml",
    "judge-s1": _HERE.parent / "workloads" / "judge-s1.yaml",
    "qa-s1": _HERE.parent / "workloads" / "qa-s1.yaml",
    "multi-turn": _HERE / "workloads" / "multi-turn.yaml",
}
POLICIES: Final[Mapping[str, str]] = {
    "LPM": "lpm",  # SGLang's own, with its turn to FCFS beyond 128 waiting requests
    "VTC": "vtc",
    "DLPM": "dlpm",
}
"""Name → `--schedule-policy`."""
_CPU_SHRINK: Final = 16.0
_CPU_FLAGS: Final = ("--max-total-tokens=8192", "--max-running-requests=16")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; the exit status."""
    options = _parser().parse_args(arguments)
    shrink = options.shrink or (_CPU_SHRINK if options.cpu else 1.0)
    flags = (*(_CPU_FLAGS if options.cpu else ()), *options.flag)
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        plan = MeasurementPlan(
            workloads={
                name: shrunk(read_spec(WORKLOADS[name]), shrink) for name in options.workloads
            },
            burst_programs=options.burst,
            load=options.load,
            duration_s=options.duration,
            seed=options.seed,
            vocabulary=_vocabulary(options.model),
        )
        version, runs = _measure_all(options, plan, flags)
    except (EngineError, FleetError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    measurement = Measurement(
        engine=version,
        device="cpu" if options.cpu else options.device,
        model=options.model.name,
        flags=flags,
        shrink=shrink,
        load=plan.load,
        duration_s=plan.duration_s,
        seed=plan.seed,
        runs=tuple(runs),
    )
    write(measurement, options.out)
    print(f"\n{table_of(runs)}\nwritten to {options.out}/")
    return 0


def _measure_all(
    options: argparse.Namespace, plan: MeasurementPlan, flags: Sequence[str]
) -> tuple[str, list[RunResult]]:
    """SGLang's version, and the figures of all policies."""
    version, runs = "", []
    capacities: dict[str, float] = {}
    python = find_interpreter(options.sglang)
    for policy in options.policies:
        with running_engine(
            python=python,
            model=options.model,
            policy=POLICIES[policy],
            cpu=options.cpu,
            flags=flags,
            log=options.out / f"engine-{policy}.log",
        ) as url:
            info = httpx.get(f"{url}/server_info", timeout=60, trust_env=False).raise_for_status()
            version = str(info.json()["version"])
            _check_room(info.json(), plan)
            work = measure(url, policy, plan, capacities=capacities, report=_print)
            runs += asyncio.run(work)
    return version, runs


def _check_room(info: Mapping[str, Any], plan: MeasurementPlan) -> None:
    holds = info["max_total_num_tokens"]
    for name, spec in plan.workloads.items():
        needs = longest_call(burst(spec, plan.burst_programs, seed=plan.seed))
        if needs > holds:
            raise EngineError(
                f"{name}: its longest request has {needs} tokens, and the engine holds {holds}; "
                f"give a larger --shrink or a larger pool"
            )


def _vocabulary(model: Path) -> int:
    try:
        config = msgspec.json.decode((model / "config.json").read_bytes())
        return int(config["vocab_size"])
    except (OSError, msgspec.MsgspecError, LookupError, TypeError, ValueError) as error:
        raise EngineError(f"--model {model} is not the folder of a model: {error!r}") from error


def _print(found: RunResult) -> None:
    print(table_of([found]).splitlines()[-1], flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.gpu.run")
    add = parser.add_argument
    add("--sglang", type=Path, required=True, help="virtual environment that has SGLang")
    add("--model", type=Path, required=True, help="a model's folder")
    add("--out", type=Path, required=True, help="for figures.json, table.md, figures.png")
    add("--cpu", action="store_true", help="compute on the CPU: toys only")
    add("--device", default="gpu", help="what the machine has, for the report")
    add("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    add("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    add("--shrink", type=float, help=f"divides token counts (1; on the CPU {_CPU_SHRINK:g})")
    add("--load", type=float, default=2.0, help="arrivals, in multiples of what is managed")
    add("--burst", type=int, default=24, help="programs by which that is measured")
    add("--duration", type=float, default=120.0, help="seconds for which programs arrive")
    add("--seed", type=int, default=0)
    add("--flag", action="append", default=[], help="a further flag of SGLang: --flag=--x=y")
    return parser


if __name__ == "__main__":
    sys.exit(main())
