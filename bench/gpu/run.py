"""Measures a real SGLang step by step, and keeps what it found when a step fails or time runs out.

    python -m bench.gpu.run STEP ... --out FOLDER                             # one GPU; see bench/gpu/README.md
    python -m bench.gpu.run STEP ... --cpu .venv-sglang --out FOLDER          # a toy on the CPU

A step is measured on each of its engines in turn, while the others rest. On a GPU the engines run side by side, on a CPU one after
another, as with `--apart`. `results.jsonl` has a line for each version, start, step, point, request and figure; `engine-NAME.log` is the end of an engine's log.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.closed_loop import LoopSpec, read_loop
from bench.gpu.bundle import ROOT
from bench.gpu.device import device
from bench.gpu.engine import EngineError
from bench.gpu.fleet import CPU_ATTEMPTS, GPU_ATTEMPTS, Engines, shape_of
from bench.gpu.journal import RESULTS, Journal
from bench.gpu.loops import alone, figures_of, play, scaled
from bench.gpu.papers import add_options, measure_papers, plan_of, vocabulary_of
from bench.gpu.profiling import grid, profile
from bench.gpu.report import Measurement, RunResult, write
from bench.gpu.routed import running_router
from bench.gpu.sending import clear, open_session

WORKLOADS: Final = Path(__file__).parent / "workloads"
POOL_TOKENS: Final = 40_000
_PACKAGES: Final = ("torch", "triton", "transformers", "sglang-kernel")
_LOG_BYTES: Final = 1_000_000
_CALL_S: Final = 560.0
TOY_OPEN: Final = 200
"""Most open requests of a client on a toy."""


@dataclass(slots=True)
class Context:
    """What the steps share."""

    options: argparse.Namespace
    journal: Journal
    vocabulary: int
    capacities: dict[str, float] = field(default_factory=dict)
    papers: list[RunResult] = field(default_factory=list)

    def spec(self, name: str) -> LoopSpec:
        """A closed loop, at the scale of this run."""
        options = self.options
        spec = read_loop(WORKLOADS / f"{name}.yaml")
        if options.scale == 1 and options.pace == 1:
            return spec
        most_open = TOY_OPEN if options.scale < 1 else 10**9
        return scaled(spec, tokens=options.scale, seconds=options.pace, most_open=most_open)


Measure = Callable[[Context, str, Engines], Awaitable[None]]
"""(context, name of the engine, all engines)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One experiment."""

    limit_s: float
    """The most seconds for each engine, at pace 1."""
    engines: tuple[str, ...]
    beside: tuple[str, ...] = ()
    """Engines that must run too."""
    otherwise: str = ""
    """The engine that is measured instead if the first does not start."""
    measure: Measure


async def _profile(context: Context, name: str, engines: Engines) -> None:
    options = context.options
    shape = shape_of(scale=options.scale, pool_tokens=options.pool)
    points = grid(
        scale=options.scale,
        pool_tokens=shape.pool_tokens,
        context_tokens=shape.context_tokens,
        max_running=shape.max_running,
    )
    async with open_session() as session:
        await profile(
            session,
            engines.urls[name],
            points,
            vocabulary=context.vocabulary,
            note=context.journal.note,
        )


def _scenes(*names: str, beside_nobody: bool = True) -> Measure:
    async def measure(context: Context, name: str, engines: Engines) -> None:
        url = engines.urls[name]
        for scene in names:
            spec = context.spec(scene)
            if beside_nobody:
                await _play(context, f"{scene}-alone", alone(spec), url, engines=[url])
            await _play(context, scene, spec, url, engines=[url])

    return measure


async def _play(
    context: Context, scene: str, spec: LoopSpec, url: str, *, engines: Sequence[str]
) -> None:
    """Play a workload at `url`. `engines`: addresses of the engines behind it, which are empty before and after."""
    context.journal.context["scene"] = scene
    try:
        async with open_session() as session:
            for engine in engines:
                await clear(session, engine)
            figures = await play(
                session,
                url,
                spec,
                scene=scene,
                vocabulary=context.vocabulary,
                note=context.journal.note,
            )
            for row in figures_of(figures, spec):
                context.journal.note({"kind": "figures", **msgspec.to_builtins(row)})
            for engine in engines:
                await clear(session, engine)
    finally:
        del context.journal.context["scene"]


async def _papers(context: Context, name: str, engines: Engines) -> None:
    plan = plan_of(context.options, tokens=context.options.scale, vocabulary=context.vocabulary)

    def report(found: RunResult) -> None:
        context.papers.append(found)
        context.journal.note({"kind": "paper", **msgspec.to_builtins(found)})

    await measure_papers(
        engines.urls[name], name.upper(), plan, capacities=context.capacities, report=report
    )


async def _replicas(context: Context, name: str, engines: Engines) -> None:
    spec = context.spec("flood")
    replicas = {one: (engines.urls[one], engines.reports[one]) for one in (name, "dlpm-2")}
    clients = [client.name for client in spec.clients]
    with running_router(replicas, clients, log=context.options.work / "router.log") as url:
        await _play(context, "replicas", spec, url, engines=[one for one, _ in replicas.values()])


_THREE: Final = ("dlpm", "fcfs", "lpm")
STEPS: Final[Mapping[str, Step]] = {
    "profile": Step(limit_s=90, engines=("dlpm",), otherwise="fcfs", measure=_profile),
    "flood": Step(limit_s=55, engines=_THREE, measure=_scenes("flood")),
    "runner": Step(limit_s=40, engines=_THREE, measure=_scenes("runner")),
    "queue": Step(limit_s=45, engines=_THREE, measure=_scenes("queue", beside_nobody=False)),
    "long": Step(limit_s=125, engines=_THREE, measure=_scenes("long")),
    "papers": Step(limit_s=500, engines=("lpm", "vtc", "dlpm"), measure=_papers),
    "replicas": Step(limit_s=60, engines=("dlpm",), beside=("dlpm-2",), measure=_replicas),
}
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "smoke": ("profile",),
    "policies": ("flood", "runner", "queue"),
}
"""Steps that one call of the runbook makes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; the exit status is 0 if every step was measured on every engine."""
    options = _parser().parse_args(arguments)
    options.apart |= options.cpu is not None
    options.model = options.model or options.bundle / "model"
    options.out.mkdir(parents=True, exist_ok=True)
    options.work.mkdir(parents=True, exist_ok=True)
    journal = Journal(options.out / RESULTS)
    signal.signal(signal.SIGTERM, _interrupt)
    engines = _engines(options, journal)
    try:
        context = Context(options, journal, vocabulary_of(options.model))
        journal.note({"kind": "plan", **_plan(options)})
        journal.note({"kind": "versions", **engines.versions(_PACKAGES), **device()})
        engines.recover()
        complete = _run(context, engines)
        if context.papers:
            write(_measurement(context, engines), options.out)
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        _copy_logs(options.work, options.out)
        if not options.keep:
            for name in list(engines.urls):
                engines.stop(name)
    return 0 if complete else 1


def plan_of_steps(
    names: Sequence[str], *, side_by_side: bool, engines: Sequence[str] | None = None
) -> list[tuple[str, str]]:
    """(step, engine) in order. Engines one after another are started once each."""
    steps = [step for name in names for step in GROUPS.get(name, (name,))]
    pairs = [
        (step, engine)
        for step in steps
        for engine in STEPS[step].engines
        if engines is None or engine in engines
    ]
    if not side_by_side:
        order = list(dict.fromkeys(engine for _, engine in pairs))
        pairs.sort(key=lambda pair: order.index(pair[1]))
    return pairs


def _run(context: Context, engines: Engines) -> bool:
    """Whether all of it was measured."""
    options, complete = context.options, True
    pairs = plan_of_steps(options.steps, side_by_side=not options.apart, engines=options.engines)
    together = list(dict.fromkeys(engine for _, engine in pairs))
    for place, (step, name) in enumerate(pairs):
        needed = (name, *STEPS[step].beside)
        context.journal.context = {"step": step, "engine": name}
        if options.apart:
            for other in [one for one in engines.urls if one not in needed]:
                engines.stop(other)
        elif place == 0:
            needed = (*needed, *(one for one in together if one not in needed))
        if not _started(engines, needed, name) and STEPS[step].otherwise:
            name = STEPS[step].otherwise
            context.journal.context["engine"] = name
            _started(engines, (name,), name)
        complete &= _measured(context, engines, step, name)
    context.journal.context = {}
    return complete


def _started(engines: Engines, names: Sequence[str], name: str) -> bool:
    """Start these engines; whether `name` runs."""
    try:
        engines.start(names)
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
    return name in engines.urls


def _measured(context: Context, engines: Engines, step: str, name: str) -> bool:
    """Measure one step on one engine; a failure is noted, and does not end the call."""
    note = context.journal.note
    left_s = engines.deadline_s - time.monotonic()
    limit_s = min(STEPS[step].limit_s * context.options.patience, left_s)
    if name not in engines.urls or limit_s <= 0:
        reason = "no time is left" if name in engines.urls else "the engine did not start"
        note({"kind": "step", "status": "left out", "error": reason})
        return False
    began_s = time.monotonic()

    async def measure() -> None:
        async with asyncio.timeout(limit_s):
            await STEPS[step].measure(context, name, engines)

    error = ""
    try:
        asyncio.run(measure())
    except TimeoutError:
        error = f"not done in {limit_s:.0f} s"
    except Exception as failure:  # noqa: BLE001 (the next step may still work)
        error = repr(failure)[:500]
    record = {
        "kind": "step",
        "status": "failed" if error else "done",
        "seconds": round(time.monotonic() - began_s, 1),
        **device(),
    }
    note(record | ({"error": error} if error else {}))
    return not error


def _engines(options: argparse.Namespace, journal: Journal) -> Engines:
    return Engines(
        python=options.cpu / "bin/python" if options.cpu else Path(sys.executable),
        model=options.model,
        shape=shape_of(scale=options.scale, pool_tokens=options.pool),
        attempts=CPU_ATTEMPTS if options.cpu else GPU_ATTEMPTS,
        work=options.work,
        site=options.work / "site",
        first=options.attempt,
        cpu=options.cpu is not None,
        flags=options.flag,
        note=journal.note,
        deadline_s=time.monotonic() + options.limit,
    )


def _plan(options: argparse.Namespace) -> dict[str, Any]:
    shape = shape_of(scale=options.scale, pool_tokens=options.pool)
    return {
        "steps": list(options.steps),
        "scale": options.scale,
        "pace": options.pace,
        "model": str(options.model),
        "commit": options.commit,
        "date": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        "flags": list(options.flag),
        "pool_tokens": shape.pool_tokens,
        "chunk_tokens": shape.chunk_tokens,
        "max_running": shape.max_running,
    }


def _measurement(context: Context, engines: Engines) -> Measurement:
    options = context.options
    return Measurement(
        engine=engines.sglang,
        device=str(device().get("gpu", "cpu")),
        model=options.model.name,
        flags=tuple(options.flag),
        shrink=1 / options.scale,
        load=options.load,
        duration_s=options.duration,
        seed=options.seed,
        runs=tuple(context.papers),
    )


def _copy_logs(work: Path, out: Path) -> None:
    """Copy the ends of the logs. The folder of results may be emptied between two calls, so engines write elsewhere."""
    for path in work.glob("*.log"):
        (out / path.name).write_bytes(path.read_bytes()[-_LOG_BYTES:])


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench.gpu.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("steps", nargs="+", choices=[*GROUPS, *STEPS])
    add("--out", type=Path, required=True, help=f"for {RESULTS} and the logs")
    add("--engines", nargs="+", help="only these of the steps' engines")
    add("--cpu", type=Path, metavar="ENVIRONMENT", help="compute on the CPU: a toy")
    add("--bundle", type=Path, default=ROOT / ".gpu", help="folder of the model's shape")
    add("--model", type=Path, help="a model's folder; default: that of the bundle")
    add("--work", type=Path, default=Path(tempfile.gettempdir()) / "evenkeel-gpu")
    add("--limit", type=float, default=_CALL_S, help="seconds for everything")
    add("--patience", type=float, default=1.0, help="factor on each step's limit")
    add("--scale", type=float, default=1.0, help="factor on token counts")
    add("--pace", type=float, default=1.0, help="factor on the closed loops' seconds")
    add("--pool", type=int, default=POOL_TOKENS, help="tokens of each KV pool, at scale 1")
    add("--attempt", type=int, default=0, metavar="N", help="begin with this way to start engines")
    add("--apart", action="store_true", help="engines one after another on a GPU too: larger pools")
    add("--keep", action="store_true", help="engines run on, for a next call")
    add("--commit", default="", help="what is measured, for the record")
    add("--flag", action="append", default=[], help="a further flag of SGLang: --flag=--x=y")
    add_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
