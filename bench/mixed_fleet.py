"""SGLang and vLLM, each with the plug-in, behind one router: shares over time.

    python -m bench.mixed_fleet --sglang .venv-sglang --vllm .venv-vllm [--window-s 60] [--windows 6]

Two tenants with weights 4 and 1 keep 60 requests open each, far more than both batches take. Each row is one window of the same run,
from the first request on.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final

import aiohttp
from evenkeel_cli.up import ports
from evenkeel_contract.enginesettings import REPORTS_PORT_VARIABLE
from evenkeel_contract.queueorder import QueueOwner

from bench.gate import PLUG_IN, SGLANG, VLLM, noted_logs
from bench.gate_load import Queue, Seen, Traffic, load, routers
from bench.gpu.engine import HOST

TRAFFIC: Final = Traffic({"light": (60,), "heavy": (60,)})
HEAD: Final = """\
| window ends at s | light's part | since the start | requests | engines' queues |
|---:|---:|---:|---:|---:|"""


@contextmanager
def fleet(sglang: Path, vllm: Path, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The address of the router, and those of SGLang and vLLM."""
    replicas: dict[str, str | None] = {}
    with noted_logs(folder), ExitStack() as stack:
        for name, kind, environment in (("sglang", SGLANG, sglang), ("vllm", VLLM, vllm)):
            port = ports.free_port(HOST)
            settings = {REPORTS_PORT_VARIABLE: str(port)}
            log = folder / f"{name}.log"
            url = stack.enter_context(kind.start(kind.setups[PLUG_IN], environment, log, settings))
            replicas[url] = f"tcp://{HOST}:{port}"
        (router,) = stack.enter_context(routers(QueueOwner.AUTO, replicas, folder))
        yield router.url, list(replicas)


async def observe(url: str, engines: Sequence[str], *, window_s: float, windows: int) -> None:
    """Print a row for each window."""
    seen, queue = Seen(), _both(engines)
    given, sums = {"light": 0.0, "heavy": 0.0}, {"light": 0.0, "heavy": 0.0}
    async with load([url], "", seen=seen, queue=queue, traffic=TRAFFIC):
        for number in range(1, windows + 1):
            await asyncio.sleep(window_s)
            requests = sum(seen.tenants[name].requests for name in given)
            given = {name: seen.tenants[name].service for name in given}
            sums = {name: sums[name] + given[name] for name in sums}
            print(
                f"| {number * window_s:g} | {_light(given)} | {_light(sums)} | {requests} "
                f"| {median(seen.queue):g} |",
                flush=True,
            )
            seen.tenants, seen.queue = Seen().tenants, []


def _both(engines: Sequence[str]) -> Queue:
    kinds = list(zip((SGLANG, VLLM), engines, strict=True))

    async def queue(http: aiohttp.ClientSession, _: str) -> float:
        return sum([await kind.queue(http, engine) for kind, engine in kinds])

    return queue


def _light(service: dict[str, float]) -> str:
    total = sum(service.values())
    return f"{service['light'] / total:.3f}" if total else "–"


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sglang", type=Path, required=True, help="that of `make sglang`")
    parser.add_argument("--vllm", type=Path, required=True, help="that of `make vllm`")
    parser.add_argument("--window-s", type=float, default=60.0)
    parser.add_argument("--windows", type=int, default=6)
    options = parser.parse_args()
    before = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory(prefix="mixed-") as name,
        fleet(options.sglang, options.vllm, Path(name)) as (url, engines),
    ):
        print(HEAD, flush=True)
        asyncio.run(observe(url, engines, window_s=options.window_s, windows=options.windows))
    print(f"\nLoad average {before:.1f} at the start, {os.getloadavg()[0]:.1f} at the end.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
