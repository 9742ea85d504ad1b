"""Measures a real SGLang step by step, and keeps what it found when a step fails or time runs out.

    python -m bench.gpu.run STEP ... --out FOLDER                             # one GPU; see bench/gpu/README.md
    python -m bench.gpu.run STEP ... --cpu .venv-sglang --out FOLDER          # a toy on the CPU

A step is measured on each of its engines in turn, while the others rest. On a GPU the engines run side by side, on a CPU one after
another, as with `--apart`. `results.jsonl` has a line for each version, start, step, point, request and figure. `engine-NAME.log` is the
end of an engine's log.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.gpu.bundle import ROOT
from bench.gpu.device import device
from bench.gpu.engine import EngineError
from bench.gpu.fleet import CPU_ATTEMPTS, GPU_ATTEMPTS, Engines, shape_of
from bench.gpu.journal import RESULTS, Journal
from bench.gpu.on_gpu import CALL_S
from bench.gpu.papers import add_options, vocabulary_of
from bench.gpu.report import Measurement, write
from bench.gpu.steps import GROUPS, STEPS, Context, engines_at, plan_of_steps

POOL_TOKENS: Final = 40_000
_PACKAGES: Final = ("torch", "triton", "transformers", "sglang-kernel")
_LOG_BYTES: Final = 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; the exit status is 0 if every step was measured on every engine."""
    options = _parser().parse_args(arguments)
    options.apart |= options.cpu is not None
    options.model = options.model or options.bundle / "model"
    options.out.mkdir(parents=True, exist_ok=True)
    options.work.mkdir(parents=True, exist_ok=True)
    began_s, journal = time.time(), Journal(options.out / RESULTS)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (most_files, most_files)
    )  # a socket for each request
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
        _copy_logs(options.work, options.out, since_s=began_s)
        if not options.keep:
            engines.stop_all()
    return 0 if complete else 1


def _run(context: Context, engines: Engines) -> bool:
    """Whether all of it was measured."""
    options, complete = context.options, True
    pairs = plan_of_steps(options.steps, side_by_side=not options.apart, engines=options.engines)
    for place, (step, name) in enumerate(pairs):
        context.journal.context = {"step": step, "engine": name}
        wanted = engines_at(pairs, place, side_by_side=not options.apart)
        for other in [one for one in engines.urls if one not in wanted]:
            engines.stop(other)
        needed = wanted if place == 0 else (name, *STEPS[step].beside)
        if not _started(engines, needed, name) and STEPS[step].otherwise:
            name = STEPS[step].otherwise
            context.journal.context["engine"] = name
            _started(engines, (name,), name)
        complete &= measured(context, engines, step, name)
    context.journal.context = {}
    return complete


def _started(engines: Engines, names: Sequence[str], name: str) -> bool:
    """Start these engines; whether `name` runs."""
    try:
        engines.start(names)
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
    return name in engines.urls


def measured(context: Context, engines: Engines, step: str, name: str) -> bool:
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
    if metrics := engines.metrics(name):
        note({"kind": "metrics", "metrics": metrics})
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


def _copy_logs(work: Path, out: Path, *, since_s: float) -> None:
    """Copy the ends of the logs that were written since. The folder of results may be emptied between two calls, so engines write elsewhere."""
    for path in work.glob("*.log"):
        if path.stat().st_mtime < since_s:
            continue  # of an earlier call
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
    add("--limit", type=float, default=CALL_S, help="seconds for everything")
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
