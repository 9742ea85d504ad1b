"""What a scheduling pass costs inside the real SGLang, by how many requests wait: dlpm beside upstream's lpm.

    make sglang && python -m bench.engine.passes [--waiting 16 128 1024 4096] [--out out/engine]

The queue is filled while the scheduler is stopped; it then admits one or two requests a pass, as others finish, and the first passes are
measured, with the queue still about as long as named. All is CPU time of the scheduler's thread: of `calc_priority`, how much of it is
matching against the cache; of the whole pass (`get_new_batch_prefill`, with SGLang's own work for the batch in it); and of
`process_batch_result` for the decode steps in between, where output is charged.

Beyond 128 waiting requests upstream's lpm is fcfs and matches none.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from tests.sglang.engine import Engine, ask, probed, tokens
from tests.sglang.ways import events

POLICIES = ("lpm", "dlpm")
CLIENTS = 16
RUNNING = 16
MEASURED = 60
"""Passes, after those that fill the batch."""
OUTPUT_TOKENS = (8, 40)


@dataclass(frozen=True, slots=True)
class Costs:
    """Medians of CPU µs per pass; the last, per decode step."""

    policy: str
    waiting: int
    passes: int
    matches: float
    calc_us: float
    match_us: float
    pass_us: float
    beyond_us: float
    """Of the pass what is neither matching nor `add_one_req`."""
    worst_us: float
    """Of all measured passes."""
    result_us: float


def queue(waiting: int) -> list[dict[str, Any]]:
    """Clients with a prefix each, their requests mixed."""
    rng = random.Random(waiting)
    prefixes = [tokens(rng, 64) for _ in range(CLIENTS)]
    asks = []
    for number in range(waiting + RUNNING):
        client = rng.randrange(CLIENTS)
        body = ask(
            f"c{client}",
            prefixes[client] + tokens(rng, 16),
            output_tokens=rng.randrange(*OUTPUT_TOKENS),
        )
        asks.append(body | {"rid": f"{waiting}-{number}"})
    return asks


async def run(engine: Engine, trace: Path, waiting: int) -> None:
    """Fill the queue, let the engine go for as many passes as are measured, and break off."""
    began = len(passes(trace, waiting))
    answers = asyncio.create_task(engine.run_queue(queue(waiting)))
    while not answers.done():
        await asyncio.wait([answers], timeout=0.5)
        if len(await asyncio.to_thread(passes, trace, waiting)) > began + MEASURED + RUNNING:
            break
    async with httpx.AsyncClient(base_url=engine.url, timeout=120) as http:
        await http.post("/abort_request", json={"rid": "", "abort_all": True})
        await asyncio.gather(answers, return_exceptions=True)
        await engine.idle(http)
        (await http.post("/flush_cache")).raise_for_status()


def passes(trace: Path, waiting: int) -> list[Mapping[str, Any]]:
    """Those that admitted requests of this queue, and the decode steps in between."""
    found: list[Mapping[str, Any]] = []
    for event in events(trace):
        rids = [rid for rid, _, _ in event.get("admitted", ())]
        if any(rid.startswith(f"{waiting}-") for rid in rids):
            found.append(event)
    return found


def decode_results_us(trace: Path, waiting: int) -> list[float]:
    """What the result of each decode step of requests of this queue took."""
    return [
        event["result_ns"] / 1e3
        for event in events(trace)
        if event["kind"] == "step"
        and event["mode"] == "decode"
        and any(rid.startswith(f"{waiting}-") for rid in event["made"])
    ]


def costs(trace: Path, policy: str, waiting: int) -> Costs:
    """Without the passes that match all for the first time and fill the batch."""
    rows = [event for event in passes(trace, waiting) if event["waiting"] <= waiting]
    rows = rows[: min(MEASURED, waiting // 2)]

    def us(*names: str) -> float:
        first, *less = names
        return float(median(row[first] - sum(row[name] for name in less) for row in rows)) / 1e3

    return Costs(
        policy=policy,
        waiting=waiting,
        passes=len(rows),
        matches=median(row["matches"] for row in rows),
        calc_us=us("calc_ns"),
        match_us=us("match_ns"),
        pass_us=us("pass_ns"),
        beyond_us=us("pass_ns", "match_ns", "add_ns"),
        worst_us=max(row["pass_ns"] for row in rows) / 1e3,
        result_us=median(decode_results_us(trace, waiting)[:MEASURED]),
    )


def measured(policy: str, sizes: Sequence[int]) -> list[Costs]:
    """All sizes on one engine, one after another."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace"
        engine = Engine(
            *("--schedule-policy", policy, "--max-total-tokens", "16384"),
            *("--max-running-requests", str(RUNNING), "--disable-overlap-schedule"),
            log=Path(folder) / "log",
            environment=probed(trace, with_plug_in=policy != "lpm"),
        )
        with engine:
            for waiting in sizes:
                asyncio.run(run(engine, trace, waiting))
                found.append(costs(trace, policy, waiting))
                print(found[-1], flush=True)
    return found


def table(rows: Sequence[Costs]) -> str:
    """Policies beside each other."""
    lines = [
        "| waiting | policy | matched | calc_priority µs | of it matching | whole pass µs | beyond matching and add_one_req | worst pass | a decode step's result |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in sorted(rows, key=lambda row: row.waiting):
        lines.append(
            f"| {row.waiting} | {row.policy} | {row.matches:.0f} | {row.calc_us:.0f} | {row.match_us:.0f} "
            f"| {row.pass_us:.0f} | {row.beyond_us:.0f} | {row.worst_us:.0f} | {row.result_us:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--waiting", type=int, nargs="+", default=[16, 128, 1024, 4096])
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--out", type=Path, default=Path("out/engine"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = [row for policy in arguments.policies for row in measured(policy, arguments.waiting)]
    text = table(rows) + f"\n\nLoad average {os.getloadavg()[0]:.1f}.\n"
    print(text)
    (arguments.out / "passes.md").write_text(text)


if __name__ == "__main__":
    main()
