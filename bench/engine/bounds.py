"""Minutes of contention on the real SGLang, its own counters against what DLPM proves.

    make sglang && python -m bench.engine.bounds [--minutes 10] [--out out/engine]

Two tenants at 4:1 and four clients, each with more requests waiting than fit, of lengths by chance. The engine's reports are read as often as they come. In every one of them, for every client that waits, at both
levels: W = q(t1) + k·Q^u·w - q(t2) with k a whole number, from the first report on (the identity in the proof of theorem 4.1). And over all
intervals between two of them: the gap of theorem 4.1, with M' = the largest sum of final lengths that ran together (ALGORITHMS §7 A1), by the probe's trace.

Identities are compared with ==: all charges are whole tokens, so floats are exact.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import combinations
from math import inf
from pathlib import Path
from typing import Any

import httpx
from evenkeel_contract.reports import ClientReport
from evenkeel_fairshare.bounds import dlpm_overshoot
from evenkeel_fairshare.replica.deficit import DEFERRED_REFILLS

from tests.sglang.engine import Engine, ask, clients_of, probed, tokens, unused_port
from tests.sglang.ways import events
from tests.support.theorems import dlpm_backlogged_gap

POOL_TOKENS, RUNNING, QUANTUM = 3072, 16, 1000
SENDERS, BATCH = 6, 50
"""Of each client: six calls under way with fifty requests each, so that none runs out while the load generator waits for a
busy machine. One that did would forfeit credit, and the theorem's premise would be false."""
PREFIX_TOKENS, MOST_TAIL_TOKENS, MOST_OUTPUT_TOKENS = 200, 100, 60
TENANTS = {"ns/big": 4, "ns/small": 1}
CLIENTS = {"ns/big/chat": 3, "ns/big/batch": 1, "ns/small/solo": 1, "ns/small/twin": 2}


@dataclass(slots=True)
class Range:
    """Of a difference that changes with time: its largest change between any two moments."""

    least: float = inf
    most: float = -inf

    def add(self, value: float) -> None:
        """Where it is now."""
        self.least, self.most = min(self.least, value), max(self.most, value)

    @property
    def width(self) -> float:
        return self.most - self.least


@dataclass(slots=True)
class Found:
    """The results of a run's reports."""

    samples: int = 0
    identities: int = 0
    """Number of checked reports, all of them exact (otherwise `check` raises)."""
    remainders: dict[str, float] = field(default_factory=dict)
    """Of W + q by the quantum, the same in every sample."""
    requests: int = 0
    service: dict[str, float] = field(default_factory=dict)
    refills: dict[str, float] = field(default_factory=dict)
    gaps: dict[str, Range] = field(default_factory=dict)
    """By pair of clients of one tenant, and by the pair of tenants."""
    resident_tokens: int = 0
    """M'."""
    retractions: int = 0

    def check(self, sample: Mapping[str, ClientReport]) -> None:
        """Check one report; raises `AssertionError` if an identity is broken."""
        waiting = [name for name in CLIENTS if name in sample and sample[name].waiting]
        if len(waiting) < len(CLIENTS):
            return  # before the start or after the end
        self.samples += 1
        tenants = dict.fromkeys(TENANTS, 0.0)
        for name in CLIENTS:
            tenants[name.rsplit("/", 1)[0]] += sample[name].service
        for name, weight in CLIENTS.items():
            self._identity(name, sample[name].service + sample[name].deficit, QUANTUM * weight)
            tenant = name.rsplit("/", 1)[0]
            whole = tenants[tenant] + sample[name].tenant_deficit
            self._identity(tenant, whole, QUANTUM * TENANTS[tenant])
            self.service[name] = sample[name].service
        for one, other in combinations(CLIENTS, 2):
            if one.rsplit("/", 1)[0] == other.rsplit("/", 1)[0]:
                gap = sample[one].normalised - sample[other].normalised
                self.gaps.setdefault(f"{one}, {other}", Range()).add(gap)
        big, small = (tenants[name] / weight for name, weight in TENANTS.items())
        self.gaps.setdefault(", ".join(TENANTS), Range()).add(big - small)

    def _identity(self, name: str, whole: float, quantum: float) -> None:
        # Credit that a client lost before all clients waited is in the first remainder.
        began = self.remainders.setdefault(name, whole % quantum)
        assert whole % quantum == began, f"{name}: W + q is {whole}, not {began} + k·{quantum}"
        self.identities += 1
        self.refills[name] = whole / quantum

    def bounds(self) -> dict[str, float]:
        """Theorem 4.1 for each pair of clients, which may have arrived while the engine warmed up."""
        overshoot = dlpm_overshoot(
            max_input_tokens=PREFIX_TOKENS + MOST_TAIL_TOKENS + MOST_OUTPUT_TOKENS,  # once more
            memory_tokens=self.resident_tokens,
        )
        weights = {**CLIENTS, **TENANTS}
        return {
            pair: dlpm_backlogged_gap(
                overshoot,
                QUANTUM,
                (weights[one], weights[other]),
                deferred_refills=DEFERRED_REFILLS,
            )
            for pair in self.gaps
            for one, other in [pair.split(", ")]
        }


async def contend(engine: Engine, reports_port: int, *, for_s: float) -> Found:
    """Keep all clients backlogged for that time, and check every report."""
    found = Found()
    end_s = time.monotonic() + for_s
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=engine.url, timeout=None, limits=limits) as http:

        async def send(name: str, rng: random.Random, prefix: list[int]) -> None:
            while True:
                batch = [_ask(name, prefix, rng) for _ in range(BATCH)]
                found.requests += BATCH
                answers = (await http.post("/generate", json=_together(batch))).raise_for_status()
                made = [len(answer["output_ids"]) for answer in answers.json()]
                assert made == [body["sampling_params"]["max_new_tokens"] for body in batch]

        async def watch() -> None:
            while time.monotonic() < end_s:
                found.check(await asyncio.to_thread(clients_of, reports_port))
                await asyncio.sleep(0.02)

        senders = []
        for name in CLIENTS:
            prefix = tokens(random.Random(name), PREFIX_TOKENS)
            for number in range(SENDERS):
                sender = send(name, random.Random(f"{name}{number}"), prefix)
                senders.append(asyncio.create_task(sender))
        try:
            await watch()
        finally:
            for task in senders:
                task.cancel()  # requests in flight are not awaited
            ended = await asyncio.gather(*senders, return_exceptions=True)
        failed = [error for error in ended if isinstance(error, Exception)]
        if failed:
            raise ExceptionGroup("calls failed", failed)
    return found


def _ask(name: str, prefix: list[int], rng: random.Random) -> dict[str, Any]:
    """One request; its id ends with its final length."""
    _, tenant, client = name.split("/")
    tail = tokens(rng, rng.randrange(1, MOST_TAIL_TOKENS + 1))
    output_tokens = rng.randrange(1, MOST_OUTPUT_TOKENS + 1)
    weights = (TENANTS[f"ns/{tenant}"], CLIENTS[name])
    body = ask(client, prefix + tail, output_tokens=output_tokens, tenant=tenant, weights=weights)
    # The engine assumes early ends that do not come, so it retracts requests.
    body["sampling_params"] |= {"ignore_eos": False, "min_new_tokens": output_tokens}
    final_tokens = PREFIX_TOKENS + len(tail) + output_tokens
    return body | {"rid": f"{client}-{rng.getrandbits(64):x}-{final_tokens}"}


def _together(batch: list[dict[str, Any]]) -> dict[str, Any]:
    """One call for many requests of one client."""
    return {
        "input_ids": [body["input_ids"] for body in batch],
        "sampling_params": [body["sampling_params"] for body in batch],
        "rid": [body["rid"] for body in batch],
        "routing_key": batch[0]["routing_key"],
    }


def resident(trace: Path) -> tuple[int, int]:
    """(largest sum of final lengths of requests that were in the batch together, retractions)."""
    running: dict[str, int] = {}
    most = retracted = 0
    for event in events(trace):
        match event["kind"]:
            case "arrival" if event["retracted"]:
                retracted += 1
                running.pop(event["rid"], None)
            case "pass":
                for rid, _, _ in event["admitted"]:
                    running[rid] = int(rid.rsplit("-", 1)[1]) if rid.count("-") == 2 else 0
                most = max(most, sum(running.values()))
            case "step":
                for rid in event["finished"]:
                    running.pop(rid, None)
    return most, retracted


def run(minutes: float, folder: Path) -> Found:
    """Run one engine for that time; raises `AssertionError` if an identity or a bound is broken."""
    trace, port = folder / "trace", unused_port()
    engine = Engine(
        *("--schedule-policy", "dlpm", "--max-total-tokens", str(POOL_TOKENS)),
        *("--max-running-requests", str(RUNNING), "--schedule-conservativeness", "0.1"),
        log=folder / "log",
        environment={
            **probed(trace, with_plug_in=True),
            "EVENKEEL_CLIENT_QUANTUM": str(QUANTUM),
            "EVENKEEL_REPORTS_PORT": str(port),
        },
    )
    with engine:
        found = asyncio.run(contend(engine, port, for_s=60 * minutes))
    found.resident_tokens, found.retractions = resident(trace)
    for pair, bound in found.bounds().items():
        assert found.gaps[pair].width <= bound, f"{pair}: {found.gaps[pair].width} > {bound}"
    return found


def table(found: Found) -> str:
    """A table for the documents."""
    lines = ["| pair | largest gap over any interval | bound | |", "|---|---:|---:|---:|"]
    for pair, bound in found.bounds().items():
        width = found.gaps[pair].width
        lines.append(f"| {pair} | {width:.0f} | {bound:.0f} | {width / bound:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Run, print and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--out", type=Path, default=Path("out/engine"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        found = run(arguments.minutes, Path(folder))
    print(json.dumps(asdict(found), indent=1))
    text = f"{table(found)}\n\nLoad average {os.getloadavg()[0]:.1f}.\n"
    print(text)
    (arguments.out / "bounds.md").write_text(text)
    (arguments.out / "bounds.json").write_text(json.dumps(asdict(found), indent=1))


if __name__ == "__main__":
    main()
