"""Two clients on one real SGLang, one of them flooding: how long the other's requests take, and what is cached.

    make sglang && python -m bench.engine.contended [--rounds 3] [--out out/engine]

The workload is `bench/workloads/engine/flood.yaml`. Under upstream's fcfs and lpm and Evenkeel's dlpm: the modest client alone, then
beside the flooder, whose queue is full when the modest client begins. Each round has an empty cache and clients of its own. Completion is
counted in forward passes of the engine and in CPU time of its scheduler, which do not depend on what else the machine does, and in
seconds, which do.

The fair-share ideal is twice the time alone: a client with half of a replica cannot ask for less.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from statistics import mean, median
from typing import Any

import httpx
import yaml

from tests.sglang.engine import ROOT, Engine, ask, probed, tokens
from tests.sglang.ways import Way, ways

WORKLOAD = ROOT / "bench/workloads/engine/flood.yaml"
POLICIES = ("fcfs", "lpm", "dlpm")
UPSTREAM = ("fcfs", "lpm")


@dataclass(frozen=True, slots=True)
class Client:
    """A client that keeps `outstanding` requests in flight until it has sent all."""

    requests: int
    outstanding: int
    prefixes: int
    prefix_tokens: int
    tail_tokens: int
    output_tokens: int

    def asks(self, name: str, rng: random.Random) -> list[dict[str, Any]]:
        """Its requests in order, each below one of its prefixes by chance."""
        prefixes = [tokens(rng, self.prefix_tokens) for _ in range(self.prefixes)]
        return [
            ask(
                name,
                rng.choice(prefixes) + tokens(rng, self.tail_tokens),
                output_tokens=self.output_tokens,
            )
            | {"rid": f"{name}-{number}"}
            for number in range(self.requests)
        ]


@dataclass(frozen=True, slots=True)
class Run:
    """Results of one run of the light client; times of its requests only."""

    policy: str
    flooded: bool
    mean_steps: float
    p99_steps: float
    mean_cpu_ms: float
    p99_cpu_ms: float
    mean_s: float
    p99_s: float
    hit_rate: float
    """Share of all input tokens of the run, including the heavy client's."""
    during_flood: int
    """How many of its requests ended before the flooder's last one."""


def p99(values: Sequence[float]) -> float:
    """The 99th percentile."""
    return sorted(values)[-(-99 * len(values) // 100) - 1]


async def send(
    http: httpx.AsyncClient,
    asks: Sequence[dict[str, Any]],
    outstanding: int,
    answered: asyncio.Event | None = None,
) -> list[float]:
    """Keep that many requests in flight; returns the seconds of each. `answered` is set at the first answer."""
    waiting = iter(asks)
    times_s: list[float] = []

    async def one_after_another() -> None:
        for body in waiting:
            began_s = time.perf_counter()
            (await http.post("/generate", json=body)).raise_for_status()
            times_s.append(time.perf_counter() - began_s)
            if answered is not None:
                answered.set()

    await asyncio.gather(*(one_after_another() for _ in range(outstanding)))
    return times_s


async def measure(
    engine: Engine,
    trace: Path,
    workload: dict[str, Any],
    serial: int,
    *,
    flooded: bool,
    policy: str,
) -> Run:
    """One run with an empty cache."""
    rng = random.Random(serial // 2)  # the same requests alone and beside the flood
    modest, flooder = Client(**workload["modest"]), Client(**workload["flooder"])
    name, other = f"modest{serial}", f"flooder{serial}"
    asks, flood = modest.asks(name, rng), flooder.asks(other, rng)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=engine.url, timeout=600, limits=limits) as http:
        await engine.idle(http)
        (await http.post("/flush_cache")).raise_for_status()
        flooding: asyncio.Task[list[float]] | None = None
        if flooded:
            full = asyncio.Event()
            flooding = asyncio.create_task(send(http, flood, flooder.outstanding, full))
            await full.wait()
        times_s = await send(http, asks, modest.outstanding)
        if flooding is not None:
            await flooding
    return summary(ways(trace, name), ways(trace, other), times_s, flooded=flooded, policy=policy)


def summary(
    modest: dict[str, Way],
    flooder: dict[str, Way],
    times_s: list[float],
    *,
    flooded: bool,
    policy: str,
) -> Run:
    """Figures of the light client's requests; the hit rate is of all requests."""
    steps = [way.steps for way in modest.values()]
    cpu_ms = [way.cpu_ms for way in modest.values()]
    all_ways = [*modest.values(), *flooder.values()]
    cached = sum(way.cached_tokens for way in all_ways)
    last = max((way.finished_step or 0 for way in flooder.values()), default=0)
    return Run(
        policy=policy,
        flooded=flooded,
        mean_steps=mean(steps),
        p99_steps=p99(steps),
        mean_cpu_ms=mean(cpu_ms),
        p99_cpu_ms=p99(cpu_ms),
        mean_s=mean(times_s),
        p99_s=p99(times_s),
        hit_rate=cached / (cached + sum(way.extend_tokens for way in all_ways)),
        during_flood=sum((way.finished_step or 0) <= last for way in modest.values()),
    )


def measured(policy: str, workload: dict[str, Any], rounds: int) -> list[Run]:
    """Runs alone and with the flood in turns, on one engine."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace"
        settings = {"EVENKEEL_CLIENT_QUANTUM": str(workload["quantum"])}
        engine = Engine(
            *("--schedule-policy", policy, "--max-total-tokens", str(workload["pool_tokens"])),
            *("--max-running-requests", str(workload["running"]), "--disable-overlap-schedule"),
            log=Path(folder) / "log",
            environment=probed(trace, with_plug_in=policy not in UPSTREAM)
            | (settings if policy not in UPSTREAM else {}),
        )
        runs = []
        with engine:
            for serial in range(2 * rounds):
                flooded = bool(serial % 2)
                run = measure(engine, trace, workload, serial, flooded=flooded, policy=policy)
                runs.append(asyncio.run(run))
                print(runs[-1], flush=True)
        return runs


def table(runs: Sequence[Run]) -> str:
    """Medians over the rounds."""
    lines = [
        "| policy | | mean, passes | p99, passes | p99 / ideal | mean, CPU ms | p99, CPU ms | p99 / ideal | p99, s | p99 / ideal | hit rate | served in the flood |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for policy in dict.fromkeys(run.policy for run in runs):
        alone = [run for run in runs if run.policy == policy and not run.flooded]
        for flooded in (False, True):
            rows = [run for run in runs if run.policy == policy and run.flooded is flooded]

            def of(name: str, rows: Sequence[Run] = rows) -> float:
                return float(median(getattr(row, name) for row in rows))

            # The fair-share ideal: as if alone on half a replica.
            ideal_steps = 2 * median(run.p99_steps for run in alone)
            ideal_ms = 2 * median(run.p99_cpu_ms for run in alone)
            ideal_s = 2 * median(run.p99_s for run in alone)
            lines.append(
                f"| {policy} | {'beside the flood' if flooded else 'alone'} "
                f"| {of('mean_steps'):.0f} | {of('p99_steps'):.0f} | {of('p99_steps') / ideal_steps:.2f} "
                f"| {of('mean_cpu_ms'):.0f} | {of('p99_cpu_ms'):.0f} | {of('p99_cpu_ms') / ideal_ms:.2f} "
                f"| {of('p99_s'):.3f} | {of('p99_s') / ideal_s:.2f} "
                f"| {of('hit_rate'):.3f} | {of('during_flood') if flooded else ''} |"
            )
    return "\n".join(lines)


def plot(runs: Sequence[Run], path: Path) -> None:
    """p99 over the ideal, and the hit rate, of every flooded round."""
    import matplotlib

    matplotlib.use("Agg")  # no display needed
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    for place, policy in zip(count(), dict.fromkeys(run.policy for run in runs)):
        alone = [run.p99_steps for run in runs if run.policy == policy and not run.flooded]
        flooded = [run for run in runs if run.policy == policy and run.flooded]
        ratios = [run.p99_steps / (2 * median(alone)) for run in flooded]
        left.bar(place, median(ratios), color=f"C{place}", label=policy)
        left.plot([place] * len(ratios), ratios, "k.", markersize=4)
        right.bar(place, median(run.hit_rate for run in flooded), color=f"C{place}")
        right.plot([place] * len(flooded), [run.hit_rate for run in flooded], "k.", markersize=4)
    left.axhline(2, color="grey", linestyle="--")
    left.set_yscale("log")
    left.set_title("the modest client's p99 over its fair-share ideal")
    left.legend()
    right.set_title("hit rate beside the flood")
    for axes in (left, right):
        axes.set_xticks([])
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measure, print and write the table; plot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--out", type=Path, default=Path("out/engine"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    workload = yaml.safe_load(WORKLOAD.read_text())
    before = os.getloadavg()[0]
    runs = [
        run for policy in arguments.policies for run in measured(policy, workload, arguments.rounds)
    ]
    text = (
        table(runs)
        + f"\n\nLoad average {before:.1f} at the start, {os.getloadavg()[0]:.1f} at the end.\n"
    )
    print(text)
    (arguments.out / "contended.md").write_text(text)
    (arguments.out / "contended.json").write_text(
        json.dumps([asdict(run) for run in runs], indent=1)
    )
    plot(runs, arguments.out / "contended.png")


if __name__ == "__main__":
    main()
