"""This router against sglang-router, in turns: `python -m bench.router.run` (`make bench-router`).

Each run has new workers and a new router. The router has a core of its own, so that its CPU time is its own. Two workers and the
load generator share another core. Rounds alternate the order of the routers. Every answer is checked. A wrong answer, or a
worker without requests, ends the benchmark.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.request import urlopen

from bench.router import measure, report
from bench.router.contenders import (
    KEYS,
    Contender,
    Evenkeel,
    GatedEvenkeel,
    Place,
    contenders,
)

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("fairshare", "contract", "kube", "simulator", "router", "cli", ".")
_START_S = 30.0
_LEAST_SHARE = 0.1
_END_BUSY = 0.95  # of the core of workers and load: beyond this latencies are theirs


@dataclass(frozen=True, slots=True)
class Scenario:
    """The load of a run. `rate_per_s` 0 means a closed loop."""

    name: str
    mode: str
    rate_per_s: float = 0.0
    connections: int = 32
    unaligned: bool = False
    """Each stream has its own clock; otherwise all streams step together."""
    delayed_ack: bool = False
    """Clients acknowledge as Linux does by default. A router that merges events gains by it."""


SCENARIOS = (
    Scenario("unary 1000/s", "unary", 1000),
    Scenario("unary closed loop", "unary"),
    Scenario("streams 100/s", "stream", 100),
    Scenario("streams 300/s", "stream", 300),
    Scenario("streams 600/s", "stream", 600),
    Scenario("streams 200/s unaligned", "stream", 200, unaligned=True),
    Scenario("streams 100/s delayed acks", "stream", 100, delayed_ack=True),
    Scenario("mixed 300/s", "mixed", 300),
)
QUICK = ("unary 1000/s", "streams 100/s")


class BenchError(Exception):
    """A run that cannot be counted; the message has the reason."""


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def process(command: Sequence[str], *, cpu: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process pinned to one core, stopped at the end."""
    with log.open("wb") as out:
        child = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment(),
            cwd=ROOT,
            preexec_fn=lambda: os.sched_setaffinity(0, {cpu}),  # noqa: PLW1509 - no threads here
        )
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def environment() -> dict[str, str]:
    """This environment with the source on the path, so that no package must be installed."""
    parts = [str(ROOT / part) for part in PARTS] + [os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, parts))}


@dataclass(frozen=True, slots=True)
class Running:
    """A router and its workers, by their process ids."""

    contender: Contender
    place: Place
    pid: int
    workers: list[int]
    log: Path


class Bench:
    """Runs scenarios with shared settings."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self._arguments = arguments
        self._folder = folder
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) < 2:
            raise BenchError(
                "the benchmark needs two cores: one for the router, one for load and workers"
            )
        self._router_cpu, self._ends_cpu = cpus[:2]

    def one(self, contender: Contender, scenario: Scenario, number: int) -> report.Run:
        """One run."""
        with self.router(contender, scenario) as running:
            figures = self.load(running, scenario, number)
        return report.Run(number, scenario.name, contender.name, figures)

    @contextlib.contextmanager
    def router(self, contender: Contender, scenario: Scenario, name: str = "") -> Iterator[Running]:
        """A router that is ready, before two workers of its own; `name` is the folder of its files."""
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        ports = free_ports(5)
        with contextlib.ExitStack() as stack:
            workers = [
                stack.enter_context(
                    process(
                        self._worker(port, scenario),
                        cpu=self._ends_cpu,
                        log=folder / f"worker-{port}.log",
                    )
                )
                for port in ports[3:]
            ]
            urls = tuple(f"http://127.0.0.1:{port}" for port in ports[3:])
            for port in ports[3:]:
                _wait(lambda port=port: _accepts(port), lambda: "a worker did not start")
            place = Place(ports[0], ports[1], ports[2], urls, folder)
            log = folder / f"{contender.name}.log"
            started = process(contender.command(place), cpu=self._router_cpu, log=log)
            child = stack.enter_context(started)
            _wait(
                lambda: contender.ready(place),
                lambda: f"{contender.name} did not become ready{_tail(log)}",
                alive=child,
            )
            yield Running(contender, place, child.pid, [worker.pid for worker in workers], log)

    def load(self, running: Running, scenario: Scenario, number: int) -> dict[str, float | None]:
        """The figures of one load; `number` seeds its arrivals."""
        before = sum(measure.cpu_s(worker) for worker in running.workers)
        started_s = time.monotonic()
        figures = self._load(running.place, running.pid, scenario, number)
        used = sum(measure.cpu_s(worker) for worker in running.workers) - before
        figures["workers_busy"] = used / (time.monotonic() - started_s)
        figures["peak_rss_mib"] = measure.peak_rss_bytes(running.pid) / 2**20
        figures["least_share"] = _least_share(running.place.workers)
        self._judge(figures, running.contender, running.log)
        return figures

    def _worker(self, port: int, scenario: Scenario) -> list[str]:
        command = [sys.executable, "-m", "bench.router.worker", f"--port={port}"]
        command.append(f"--pace-ms={self._arguments.pace_ms}")
        return command + ["--unaligned"] * scenario.unaligned

    def _load(
        self, place: Place, pid: int, scenario: Scenario, number: int
    ) -> dict[str, float | None]:
        command = [
            sys.executable,
            "-m",
            "bench.router.load",
            f"--port={place.port}",
            f"--pid={pid}",
            f"--mode={scenario.mode}",
            f"--rate={scenario.rate_per_s}",
            f"--connections={scenario.connections}",
            f"--events={self._arguments.events}",
            f"--prompt-bytes={self._arguments.prompt_bytes}",
            f"--warmup-s={self._arguments.warmup_s}",
            f"--seconds={self._arguments.seconds}",
            f"--seed={number}",  # the same arrivals for every router, others in the next round
            *(f"--key={key}" for key in KEYS),
            *(["--delayed-ack"] * scenario.delayed_ack),
        ]
        done = subprocess.run(
            command,
            check=True,
            stdout=subprocess.PIPE,
            env=environment(),
            cwd=ROOT,
            timeout=120 + self._arguments.seconds,
            preexec_fn=lambda: os.sched_setaffinity(0, {self._ends_cpu}),
        )
        figures: dict[str, float | None] = json.loads(done.stdout)
        return figures

    def _judge(self, figures: dict[str, float | None], contender: Contender, log: Path) -> None:
        if figures["errors"]:
            raise BenchError(f"{contender.name}: {figures['errors']}{_tail(log)}")
        share = figures["least_share"]
        if share is None or share < _LEAST_SHARE:
            raise BenchError(
                f"{contender.name} sends too few requests to a worker: its share is {share}"
            )


def _least_share(urls: Sequence[str]) -> float:
    counts = []
    for url in urls:
        with urlopen(f"{url}/bench/stats", timeout=5) as answer:
            counts.append(json.load(answer)["requests"])
    return min(counts) / max(sum(counts), 1)


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _wait(
    holds: Callable[[], bool],
    otherwise: Callable[[], str],
    alive: subprocess.Popen[bytes] | None = None,
) -> None:
    end_s = time.monotonic() + _START_S
    while not holds():
        if time.monotonic() > end_s or (alive is not None and alive.poll() is not None):
            raise BenchError(otherwise())
        time.sleep(0.05)


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-10:]
    return "".join(f"\n  {line[:300]}" for line in lines)


def machine() -> dict[str, object]:
    """Cores, processor, memory, kernel and load."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "unknown",
    )
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model,
        "memory_gib": round(memory_bytes / 2**30),
        "kernel": platform.release().split("-")[0],
        "load_average": os.getloadavg()[0],
    }


def python_version(python: str) -> str:
    """Version and compiler of an interpreter."""
    done = subprocess.run([python, "-VV"], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def measured(bench: Bench, arguments: argparse.Namespace) -> list[report.Run]:
    """All runs: in each round every scenario with every router, in rotating order."""
    known = contenders(arguments.venv, arguments.python)
    chosen = [known[name] for name in arguments.routers]
    scenarios = [s for s in SCENARIOS if not arguments.scenarios or s.name in arguments.scenarios]
    runs: list[report.Run] = []
    for number in range(arguments.rounds):
        turned = chosen[number % len(chosen) :] + chosen[: number % len(chosen)]
        for scenario in scenarios:
            for contender in turned:
                run = bench.one(contender, scenario, number)
                runs.append(run)
                print(line(run), flush=True)
    order = {name: place for place, name in enumerate(arguments.routers)}
    return sorted(runs, key=lambda run: (run.round, order[run.contender]))


def line(run: report.Run) -> str:
    """One run in one line."""
    figures = run.figures
    ends = figures["load_busy"] + figures["workers_busy"]
    note = "  (the core of workers and load is full)" if ends > _END_BUSY else ""
    if figures["unanswered"]:
        note += f"  ({figures['unanswered']} without an answer)"
    return (
        f"round {run.round + 1}  {run.scenario:27} {run.contender:20}"
        f"{figures['cpu_us_per_request'] or 0:8.0f} µs CPU  busy {figures['router_busy']:4.0%}"
        f"  TTFT p50 {figures['ttft_p50_ms']:7.2f} p99 {figures['ttft_p99_ms']:7.1f} ms"
        f"  {figures['peak_rss_mib']:4.0f} MiB{note}"
    )


def save(runs: list[report.Run], arguments: argparse.Namespace, out: Path) -> None:
    """JSON, table and plot."""
    known = contenders(arguments.venv, arguments.python)
    about = {
        "machine": machine(),
        "python": python_version(arguments.python),
        "versions": [known[name].version() for name in arguments.routers],
        "rounds": arguments.rounds,
        "seconds": arguments.seconds,
        "events": arguments.events,
        "pace_ms": arguments.pace_ms,
        "prompt_bytes": arguments.prompt_bytes,
    }
    document = {"about": about, "runs": [asdict(run) for run in runs]}
    (out / "bench-router.json").write_text(json.dumps(document, indent=1))
    references = [name for name in arguments.routers if name.startswith("sglang-router")]
    if GatedEvenkeel.name in arguments.routers:
        references.append(Evenkeel.name)
    table = report.markdown(runs, references)
    (out / "bench-router.md").write_text(table)
    report.plot(runs, out / "bench-router.svg")
    print(f"\n{table}\nwritten to {out}/bench-router.{{json,md,svg}}")


def parser() -> argparse.ArgumentParser:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "bench-router")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv-sglang-router")
    parser.add_argument(
        "--python",
        default=sys.executable,
        help="interpreter for the routers in Python, with their dependencies (default: this one)",
    )
    parser.add_argument(
        "--routers",
        nargs="+",
        default=["evenkeel", "sglang-router", "sglang-router-quiet", "bare-proxy", "byte-relay"],
    )
    parser.add_argument(
        "--scenarios",
        nargs="+",
        choices=[scenario.name for scenario in SCENARIOS],
        metavar="NAME",
        help="; ".join(scenario.name for scenario in SCENARIOS) + " (default: all)",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warmup-s", type=float, default=2.0)
    parser.add_argument("--events", type=int, default=64)
    parser.add_argument("--pace-ms", type=float, default=10.0)
    parser.add_argument("--prompt-bytes", type=int, default=2048)
    parser.add_argument("--quick", action="store_true", help="one short round of two scenarios")
    return parser


def main() -> int:
    """Command line."""
    arguments = parser().parse_args()
    if arguments.quick:
        arguments.rounds, arguments.seconds, arguments.warmup_s = 1, 2.0, 1.0
        arguments.scenarios = arguments.scenarios or list(QUICK)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-router-") as folder:
        try:
            runs = measured(Bench(arguments, Path(folder)), arguments)
        except BenchError as error:
            print(f"bench-router: {error}", file=sys.stderr)
            return 1
    save(runs, arguments, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
