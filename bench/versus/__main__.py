"""LiteLLM's limiter, limits per key, turns by request, vLLM's and SGLang's orders, and Evenkeel on the same simulated engines.

    python -m bench.versus --litellm VENV [--seconds 130] [--workloads flood swarm half-load] [--contenders NAME ...] [--out bench/results]
    python -m bench.versus --page [--out bench/results]

`VENV` has LiteLLM's proxy (`make versus` installs it). All contenders of a workload run at the same time. Writes `versus/` (raw data),
`versus.md` and `images/versus.png` to `--out`; with `--page` it reads the raw data instead.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from evenkeel_fairshare.measures import percentile

from bench.gate import noted_logs
from bench.versus import raw
from bench.versus.clients import Run
from bench.versus.contenders import CONTENDERS, LITELLM, Engines, engines, in_front, sending
from bench.versus.page import found_in, page
from bench.versus.plot import plot
from bench.versus.workloads import CASES

RESULTS: Final = Path(__file__).resolve().parents[1] / "results"
SECONDS: Final = 130.0
SEED: Final = 1
_LOOK_S: Final = 0.05


@dataclass(slots=True)
class Lateness:
    """Delays of this program's timers, which a busy machine makes late."""

    late_s: list[float] = field(default_factory=list)

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            due_s = time.monotonic() + _LOOK_S
            await asyncio.sleep(_LOOK_S)
            self.late_s.append(time.monotonic() - due_s)


Sites = dict[str, tuple[Engines, str | None, Path]]
"""Contender → its engines, the address of what stands in front of them, and its folder."""


async def drive(case: str, sites: Sites, seconds: float) -> tuple[dict[str, raw.Trial], float]:
    """All contenders at once; what was seen, and the 99th percentile of the lateness."""
    began_s = time.monotonic()
    late = Lateness()
    watching = asyncio.create_task(late.watch())

    def now() -> float:
        return time.monotonic() - began_s

    runs: dict[str, Run] = {}
    async with AsyncExitStack() as stack:
        for name, (running, url, _) in sites.items():
            send = await stack.enter_async_context(sending(name, case, running, url=url, now=now))
            runs[name] = Run(CASES[case], send, now, seconds, SEED)
        await asyncio.gather(*(run.run() for run in runs.values()))
        watching.cancel()
    trials = {
        name: raw.Trial(run.seen, raw.samples_of(sites[name][2] / "samples", began_s))
        for name, run in runs.items()
    }
    return trials, percentile(late.late_s, 99)


def trial(
    case: str, names: list[str], seconds: float, litellm: Path
) -> tuple[dict[str, raw.Trial], float]:
    """One workload, with new processes."""
    with tempfile.TemporaryDirectory(prefix="versus-") as root, ExitStack() as stack:
        started: dict[str, tuple[Engines, Path]] = {}
        for name in names:
            folder = Path(root) / name
            folder.mkdir()
            stack.enter_context(noted_logs(folder))
            started[name] = stack.enter_context(engines(CONTENDERS[name], folder)), folder
        sites: Sites = {}
        for name, (running, folder) in started.items():
            running.await_ready()
            url = stack.enter_context(in_front(name, case, running, folder, litellm=litellm))
            sites[name] = running, url, folder
        print(f"{CASES[case].title}: {seconds:.0f} s", flush=True)
        return asyncio.run(drive(case, sites, seconds))


def measure(options: argparse.Namespace) -> None:
    """All workloads, and their raw data."""
    before = os.getloadavg()[0]
    found, late = {}, {}
    litellm = options.litellm / "bin" / "litellm"
    for case in options.workloads:
        found[case], late[case] = trial(case, options.contenders, options.seconds, litellm)
    facts = raw.Facts(
        command="make versus" if options.is_whole else "python -m bench.versus",
        commit=_said("git", "rev-parse", "--short=8", "HEAD"),
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        seconds=options.seconds,
        litellm=_version(options.litellm) if LITELLM in options.contenders else "not run",
        cores=os.cpu_count() or 1,
        nice=os.nice(0),
        load_before=before,
        load_after=os.getloadavg()[0],
        late_p99_s=late,
    )
    raw.write(options.out / "versus", facts, found)


def write_page(out: Path) -> None:
    """The page and the picture of the raw data under `out`."""
    facts, trials = raw.read(out / "versus")
    found = found_in(trials, facts.seconds)
    (out / "versus.md").write_text(page(facts, found), encoding="utf-8")
    (out / "images").mkdir(exist_ok=True)
    plot(found, out / "images" / "versus.png")
    print(f"written: {out / 'versus.md'}")


def _said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=RESULTS)
    return done.stdout.strip() or "unknown"


def _version(venv: Path) -> str:
    program = "import importlib.metadata as m; print(m.version('litellm'))"
    return _said(str((venv / "bin" / "python").absolute()), "-c", program)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--litellm", type=Path, help="environment with LiteLLM's proxy")
    add("--seconds", type=float, default=SECONDS)
    add("--workloads", nargs="+", choices=list(CASES), default=list(CASES))
    add("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    add("--out", type=Path, default=RESULTS)
    add("--page", action="store_true", help="only write the page of the raw data again")
    options = parser.parse_args()
    if not options.page:
        if options.litellm is None and LITELLM in options.contenders:
            parser.error(
                "set --litellm to an environment with litellm[proxy], or use `make versus`"
            )
        options.litellm = options.litellm or Path()
        options.is_whole = options.contenders == list(CONTENDERS) and options.seconds == SECONDS
        measure(options)
    write_page(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
