"""This router against that of another checkout: `python -m bench.router.pairs --other ../evenkeel-before`.

A machine's speed changes by half from one minute to the next. So both routers run all the time on one core, each before workers of
its own, and the load turns from one to the other every few seconds. A pair is two such turns that follow each other. Two processes of
the same code differ by a few percent, too, as long as they live: by their addresses and the seeds of their hashes. So both routers
are started anew after `PAIRS_PER_START` pairs, in turns first and second. The median of the ratios of CPU per request is printed, with
an interval that holds the true median with 95 %.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Final

from bench.router import run
from bench.router.contenders import Evenkeel, Place

_HERE = "this checkout"
PAIRS_PER_START: Final = 4


# Each checkout writes the settings that it understands.
_COMMAND = """
import json, sys
from pathlib import Path
from bench.router.contenders import Evenkeel, Place
*ports, folder, workers = json.loads(sys.argv[1])
print(json.dumps(Evenkeel(sys.executable).command(Place(*ports, tuple(workers), Path(folder)))))
"""


class Checkout(Evenkeel):
    """The router of a checkout, with the interpreter of its own environment."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root / ".venv" / "bin" / "python"))
        self._root = root
        parts = (str(root / part) for part in run.PARTS)
        self._environment = os.environ | {"PYTHONPATH": os.pathsep.join(parts)}

    def command(self, place: Place) -> list[str]:
        """See `Contender`."""
        ports = (place.port, place.probe_port, place.admin_port)
        settings = json.dumps([*ports, str(place.folder), place.workers])
        done = subprocess.run(
            [self._python, "-c", _COMMAND, settings],
            check=True,
            stdout=subprocess.PIPE,
            cwd=self._root,
            env=self._environment,
        )
        command: list[str] = json.loads(done.stdout)
        return ["env", f"PYTHONPATH={self._environment['PYTHONPATH']}", *command]


def interval(ratios: list[float]) -> tuple[float, float]:
    """What holds the median of the distribution with 95 %, by the order of the sample (sign test)."""
    ordered = sorted(ratios)
    count = len(ordered)
    skip = max(0, int(count / 2 - 0.98 * count**0.5))
    return ordered[skip], ordered[count - 1 - skip]


def compared(bench: run.Bench, scenario: run.Scenario, other: Path, pairs: int) -> list[float]:
    """CPU per request of this checkout over the other's, one ratio for each pair."""
    ratios: list[float] = []
    while len(ratios) < pairs:
        number = len(ratios)
        checkouts = [(_HERE, run.ROOT), ("other", other)]
        if number // PAIRS_PER_START % 2:
            checkouts.reverse()
        with contextlib.ExitStack() as stack:
            sides = {
                name: stack.enter_context(bench.router(Checkout(root), scenario, name))
                for name, root in checkouts
            }
            ratios += _ratios(
                bench, scenario, sides, range(number, min(pairs, number + PAIRS_PER_START))
            )
    return ratios


def _ratios(
    bench: run.Bench, scenario: run.Scenario, sides: Mapping[str, run.Running], pairs: range
) -> Iterator[float]:
    """The ratios of pairs between the same two processes, in the order of their numbers."""
    for number in pairs:
        costs = {}
        for name in sides if number % 2 else reversed(sides):
            figures = bench.load(sides[name], scenario, number)
            costs[name] = figures["cpu_us_per_request"] or 0.0
        here, there = costs[_HERE], costs["other"]
        print(f"pair {number + 1}  {scenario.name}  {here:.0f} and {there:.0f} µs", flush=True)
        yield here / there


def main() -> int:
    """Command line."""
    parser = run.parser()
    parser.description = __doc__
    parser.add_argument("--other", type=Path, required=True, help="a checkout with its .venv")
    parser.add_argument("--pairs", type=int, default=30)
    parser.set_defaults(seconds=2.0, warmup_s=0.5)
    arguments = parser.parse_args()
    wanted = arguments.scenarios or [scenario.name for scenario in run.SCENARIOS]
    lines = []
    with tempfile.TemporaryDirectory(prefix="bench-router-") as folder:
        bench = run.Bench(arguments, Path(folder))
        for scenario in (one for one in run.SCENARIOS if one.name in wanted):
            ratios = compared(bench, scenario, arguments.other.resolve(), arguments.pairs)
            low, high = interval(ratios)
            lines.append(
                f"| {scenario.name} | {median(ratios):.3f} ({low:.3f}–{high:.3f}) | {len(ratios)} |"
            )
    print("\n| scenario | CPU over the other's | pairs |\n|---|---:|---:|")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
