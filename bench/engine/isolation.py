"""What one client may cost another whose requests run, on the real SGLang (design R13).

    make sglang && python -m bench.engine.isolation [--seconds 40] [--isolation Off 0.5]

Runs the closed loops of `bench/workloads/isolation/` against one engine in real time, and prints the figures of the measured
client: requests that ended per second, and the time between two tokens of a stream. `bench.isolation` runs the same
workloads in virtual time. The engine computes on a CPU, so only ratios to the first row of the same setting count.
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
from itertools import count
from pathlib import Path
from typing import Any, Final

import httpx
from evenkeel_contract.enginesettings import ISOLATION_VARIABLE

from bench.closed_loop import (
    LoopClient,
    LoopFigures,
    LoopSpec,
    read_loop,
    total_service_per_s,
)
from tests.sglang.engine import ROOT, Engine, ask, tokens

FOLDER: Final = ROOT / "bench/workloads/isolation"
SHAPES: Final = (
    "alone",
    "prompts-3000",
    "six-prompts-3000",
    "prompts-20000",
    "prompts-1000",
    "honest-flood",
)
SETTINGS: Final = ("Off", "0.5")
CHUNK_TOKENS: Final = 2048
POOL_TOKENS: Final = 131_072
CONTEXT_TOKENS: Final = 32_768
"""The tiny model's weights are random, so it may read longer prompts than its configuration says."""


async def stream(
    http: httpx.AsyncClient, body: Mapping[str, Any], figures: LoopFigures, began_s: float
) -> None:
    """Send one request, and note the times of its tokens in seconds since `began_s`."""
    before_s, tokens_before, meta = 0.0, 0, {}
    async with http.stream("POST", "/generate", json={**body, "stream": True}) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            now_s = time.perf_counter() - began_s
            meta = json.loads(line.removeprefix("data: "))["meta_info"]
            if not tokens_before:
                computed = meta["prompt_tokens"] - (meta.get("cached_tokens") or 0)
                figures.computed.append((now_s, computed))
            elif meta["completion_tokens"] > tokens_before:
                figures.gaps_s.append((now_s, now_s - before_s))
            figures.tokens.append((now_s, meta["completion_tokens"] - tokens_before))
            before_s, tokens_before = now_s, meta["completion_tokens"]
    figures.finished.append(time.perf_counter() - began_s)


async def send(
    http: httpx.AsyncClient,
    client: LoopClient,
    figures: LoopFigures,
    *,
    until_s: float,
    began_s: float,
    rng: random.Random,
) -> None:
    """Keep the client's requests open until then; requests that still run then are left unfinished."""
    shared = tokens(rng, client.shared_tokens)
    own = client.input_tokens - client.shared_tokens
    key = f"{client.name}-{rng.randrange(10**9)}"

    async def one_after_another() -> None:
        for _ in count():
            prompt = shared + tokens(rng, own)
            body = ask(key, prompt, output_tokens=client.output_tokens)
            await stream(http, body, figures, began_s)

    tasks = [asyncio.create_task(one_after_another()) for _ in range(client.open_requests)]
    await asyncio.wait(tasks, timeout=until_s, return_when=asyncio.FIRST_EXCEPTION)
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, Exception):
            raise ended


async def played(
    engine: Engine, spec: LoopSpec, *, seconds: float, seed: int
) -> Mapping[str, LoopFigures]:
    """One run with an empty cache; figures by client."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=engine.url, timeout=600, limits=limits) as http:
        await engine.idle(http)
        (await http.post("/flush_cache")).raise_for_status()
        figures = {client.name: LoopFigures() for client in spec.clients}
        began_s = time.perf_counter()
        await asyncio.gather(
            *(
                send(
                    http,
                    client,
                    figures[client.name],
                    until_s=seconds,
                    began_s=began_s,
                    rng=random.Random(seed + n),
                )
                for n, client in enumerate(spec.clients)
            )
        )
        return figures


def row(
    setting: str, shape: str, figures: Mapping[str, LoopFigures], interval: tuple[float, float]
) -> str:
    """One line of the table."""
    measured = figures["measured"]
    return (
        f"| {setting} | {shape} | {measured.rate_per_s(*interval):.2f} "
        f"| {1e3 * measured.mean_gap_s(interval[0]):.0f} | {1e3 * measured.p99_gap_s(interval[0]):.0f} "
        f"| {total_service_per_s(figures.values(), *interval):.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--warmup", type=float, default=8, metavar="SECONDS")
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    parser.add_argument("--isolation", nargs="+", default=SETTINGS)
    parser.add_argument("--chunk", type=int, default=CHUNK_TOKENS, metavar="TOKENS")
    options = parser.parse_args()
    interval = (options.warmup, options.seconds)
    print("| isolation | shape | requests/s | ITL mean, ms | ITL p99, ms | service/s |")
    print("|---|---|---:|---:|---:|---:|")
    for setting in options.isolation:
        with tempfile.TemporaryDirectory() as folder:
            engine = Engine(
                *("--schedule-policy", "dlpm", "--max-total-tokens", str(POOL_TOKENS)),
                *("--chunked-prefill-size", str(options.chunk)),
                *("--context-length", str(CONTEXT_TOKENS)),
                log=Path(folder) / "log",
                environment={
                    ISOLATION_VARIABLE: setting,
                    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
                },
            )
            with engine:
                for seed, shape in enumerate(options.shapes):
                    spec = read_loop(FOLDER / f"{shape}.yaml")
                    run = played(engine, spec, seconds=options.seconds, seed=100 * seed)
                    print(row(setting, shape, asyncio.run(run), interval), flush=True)
    print(f"\nLoad average {os.getloadavg()[0]:.1f} at the end.")


if __name__ == "__main__":
    main()
