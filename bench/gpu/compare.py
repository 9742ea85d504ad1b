"""The simulator beside what was measured: `python -m bench.gpu.compare results.jsonl ... [--profile FILE]`.

Runs the closed loops that the results name with the fitted profile (`bench.gpu.fit`), and prints each figure as a ratio, measured and
simulated. Ratios are those that the project claims: a client beside its rival to the same client alone, and a policy to FCFS.
A row whose ratios differ by more than 20 % is marked: its cause must be found.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_changes
from pathlib import Path
from typing import Any, Final

import msgspec
from evenkeel_laboratory.experiments.setup import Setup, SetupError, engine_config, find_profile
from evenkeel_simulator.engine.config import EngineConfig
from evenkeel_simulator.engine.model import Engine
from evenkeel_simulator.engine.profiles import CostProfile

from bench.closed_loop import LoopSpec, read_loop, run_closed_loop
from bench.gpu.fit import FitError, fit
from bench.gpu.fleet import STOCK
from bench.gpu.journal import read_records
from bench.gpu.loops import ClientFigures, alone, figures_of, scaled
from bench.gpu.steps import TOY_OPEN, WORKLOADS

LIMIT: Final = 0.2
"""Ratios that differ by more are marked."""
_ALONE: Final = "-alone"
_TIMES: Final = ("ttft_p50_ms", "ttft_p99_ms", "itl_mean_ms", "requests_per_s")
_BASE: Final = "fcfs"
_MEASURED: Final = "measured"

Scenes = Mapping[tuple[str, str], Sequence[ClientFigures]]
"""(scene, engine) → figures of its clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """One figure of one scene under one policy, as a ratio. None: there is no such figure."""

    scene: str
    engine: str
    name: str
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A ratio, measured and simulated."""

    ratio: Ratio
    simulated: float | None

    @property
    def differs(self) -> bool:
        """Whether they differ by more than `LIMIT`, or one of both is missing."""
        measured, simulated = self.ratio.value, self.simulated
        if measured is None or simulated is None:
            return measured is not simulated
        return abs(simulated - measured) > LIMIT * measured


def scenes_of(records: Iterable[Mapping[str, Any]]) -> Scenes:
    """The figures of all closed loops; the last measurement of a scene counts."""
    found: dict[tuple[str, str], dict[str, ClientFigures]] = {}
    for record in records:
        if record["kind"] == "figures":
            row = msgspec.convert(record, ClientFigures)
            found.setdefault((record["scene"], record["engine"]), {})[row.client] = row
    return {key: tuple(rows.values()) for key, rows in found.items()}


def ratios(scenes: Scenes) -> Iterator[Ratio]:
    """Ratios of each scene: the measured client beside its rival to alone, and all output to that under FCFS."""
    for (scene, engine), rows in scenes.items():
        own = _of(rows)
        before = scenes.get((scene + _ALONE, engine))
        if own is not None and before is not None and (base := _of(before)) is not None:
            for name in _TIMES:
                value = _divided(getattr(own, name), getattr(base, name))
                yield Ratio(scene=scene, engine=engine, name=f"{name} / alone", value=value)
        first = scenes.get((scene, _BASE))
        if first is None or engine == _BASE or scene.endswith(_ALONE):
            continue
        value = _divided(_output(rows), _output(first))
        yield Ratio(scene=scene, engine=engine, name=f"output tokens/s / {_BASE}", value=value)


def specs_of(plan: Mapping[str, Any], scenes: Iterable[str]) -> Mapping[str, LoopSpec]:
    """The workloads of these scenes, as they were played."""
    found = {}
    for scene in scenes:
        name = scene.removesuffix(_ALONE)
        if not (WORKLOADS / f"{name}.yaml").exists():
            continue
        spec = read_loop(WORKLOADS / f"{name}.yaml")
        most_open = TOY_OPEN if plan["scale"] < 1 else 10**9
        spec = scaled(spec, tokens=plan["scale"], seconds=plan["pace"], most_open=most_open)
        found[scene] = alone(spec) if scene.endswith(_ALONE) else spec
    return found


def simulated(
    spec: LoopSpec, engine: str, profile: CostProfile, plan: Mapping[str, Any]
) -> Sequence[ClientFigures]:
    """The same workload on a simulated engine of this policy and size."""
    rules = with_changes(
        EngineConfig(isolation=None) if engine in STOCK else engine_config(),
        kv_tokens=plan["pool_tokens"],
        max_running=plan["max_running"],
        prefill_tokens=plan["chunk_tokens"],
    )
    policy = engine.partition("-")[0].upper()
    fleet = Setup(profile=profile, engine=rules, replica_policy=policy).fleet()
    made = Engine(fleet.engine, fleet.replica_policy(), fleet.profile)
    figures = run_closed_loop(made, spec.clients, until_s=spec.duration_s)
    return figures_of(figures, spec)


def compared(records: Sequence[Mapping[str, Any]], profile: CostProfile) -> list[Row]:
    """All ratios of the records, beside the simulator's; raises `FitError` without a plan."""
    plans = [record for record in records if record["kind"] == "plan"]
    if not plans:
        raise FitError("there is no record of the plan: the results are not those of bench.gpu.run")
    plan = plans[-1]
    measured = scenes_of(records)
    specs = specs_of(plan, {scene for scene, _ in measured})
    known = {key: rows for key, rows in measured.items() if key[0] in specs}
    made = {
        (scene, engine): simulated(specs[scene], engine, profile, plan) for scene, engine in known
    }
    beside = {(one.scene, one.engine, one.name): one.value for one in ratios(made)}
    return [
        Row(ratio=one, simulated=beside.get((one.scene, one.engine, one.name)))
        for one in ratios(known)
    ]


def table_of(rows: Iterable[Row]) -> str:
    """A Markdown table."""
    lines = ["| scene | policy | ratio | measured | simulated | |", "|---|---|---|---:|---:|---|"]
    for row in rows:
        one = row.ratio
        values = " | ".join(
            "–" if value is None else f"{value:.2f}" for value in (one.value, row.simulated)
        )
        mark = "differs" if row.differs else ""
        lines.append(f"| {one.scene} | {one.engine} | {one.name} | {values} | {mark} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; the exit status."""
    parser = argparse.ArgumentParser(
        prog="bench.gpu.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--profile", help="a name or a JSON file; default: fitted to the results")
    options = parser.parse_args(arguments)
    try:
        records = list(read_records(options.results))
        profile = find_profile(options.profile) if options.profile else fit(records).profile
        print(table_of(compared(records, profile)))
    except (FitError, SetupError, OSError, msgspec.ValidationError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _of(rows: Iterable[ClientFigures]) -> ClientFigures | None:
    return next((row for row in rows if row.client == _MEASURED), None)


def _output(rows: Iterable[ClientFigures]) -> float:
    return sum(row.output_tokens_per_s for row in rows)


def _divided(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base


if __name__ == "__main__":
    sys.exit(main())
