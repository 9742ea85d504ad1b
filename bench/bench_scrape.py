"""What a scrape of a router's metrics costs the streams that it serves.

    python -m bench.bench_scrape [--clients 1000] [--tenants 20] [--rounds 10] [--tree FOLDER] [--check]

One router and one fake worker run as processes, each on a core of its own. So many clients send one request that is
served and one that fails; then one stream delivers a token every 10 ms. Windows of that stream take turns: quiet; one
scrape; one reading of `/v1/state`; eight readers that scrape without a pause. For each kind the benchmark prints the
longest gap between two tokens (median and maximum over the rounds), what the answer's size is and what it cost the
router in CPU time. `--tree` is a checkout whose router is measured, to compare two versions. `--check` fails if the
longest gap of a window with a scrape is more than 20 ms above that of a quiet window.

Wall-clock figures need two cores without other work. For other figures of the same run compare ratios only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from evenkeel_contract import routerconfig as rc
from evenkeel_contract.decode import to_plain
from evenkeel_contract.names import CLIENT_HEADERS

from bench.router.measure import cpu_s
from bench.router.run import PARTS, ROOT, free_ports
from bench.router.worker import MODEL

ALLOWED_MS: Final = 20.0
READERS: Final = 8
AT_ONCE: Final = 16
PACE_MS: Final = 10
START_S: Final = 30.0
KINDS: Final = ("quiet", "scrape", "state", "flood")


def config(arguments: argparse.Namespace, ports: Sequence[int], folder: Path) -> Path:
    """The router's configuration, as a file."""
    found = rc.RouterConfig(
        namespace="bench",
        service="bench",
        model=MODEL,
        listen=rc.ListenConfig(traffic_port=ports[0], probe_port=ports[1], admin_port=ports[2]),
        tenancy=rc.TenancyConfig(
            trusted_proxies=("127.0.0.0/8",),
            tenants=tuple(
                rc.TenantConfig(namespace="bench", name=f"tenant-{n}")
                for n in range(arguments.tenants)
            ),
        ),
        replicas=(rc.ReplicaConfig(name="worker", url=f"http://127.0.0.1:{ports[3]}"),),
    )
    path = folder / f"router-{hashlib.sha256(str(ports).encode()).hexdigest()[:8]}.json"
    path.write_text(json.dumps(to_plain(found)))
    return path


@contextlib.contextmanager
def process(command: Sequence[str], *, tree: Path, cpu: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the checkout `tree` on one core, stopped at the end."""
    parts = os.pathsep.join(str(tree / part) for part in PARTS)
    child = subprocess.Popen(
        [sys.executable, "-m", *command],
        env=os.environ | {"PYTHONPATH": parts},
        cwd=tree,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, {cpu}),  # noqa: PLW1509 - no threads here
    )
    try:
        yield child
    finally:
        child.terminate()
        child.wait()


def fetch(url: str) -> int:
    """Read the answer; its bytes."""
    try:
        with urlopen(url, timeout=60) as answer:
            return len(answer.read())
    except (HTTPError, URLError, ConnectionError):
        return 0


def fetch_until(url: str, until_s: float) -> int:
    """Read answers without a pause; the number of those that came."""
    count = 0
    while time.monotonic() < until_s:
        count += fetch(url) > 0
    return count


@contextlib.asynccontextmanager
async def answer(
    port: int, client: str, body: dict[str, object]
) -> AsyncIterator[asyncio.StreamReader]:
    """Send one request; its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: router\r\nConnection: close\r\n"
        f"{CLIENT_HEADERS[0]}: {client}\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    writer.write(head.encode() + data)
    try:
        yield reader
    finally:
        writer.close()


async def fill(arguments: argparse.Namespace, port: int) -> None:
    """One request of every client that is served, and one that fails."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(n: int) -> None:
        name = f"tenant-{n % arguments.tenants}/client-{n}"
        for model in (MODEL, "another"):
            body: dict[str, object] = {"model": model, "prompt": f"request-{n:06}", "max_tokens": 2}
            async with slots, answer(port, name, body) as reader:
                await reader.read()

    await asyncio.gather(*(one(n) for n in range(arguments.clients)))


class Stream:
    """One stream; the times at which its tokens came."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    async def read(self, port: int) -> None:
        """Read it; a new one begins where one ends."""
        body: dict[str, object] = {"model": MODEL, "prompt": "request-999999", "stream": True}
        while True:
            self.times_s.append(float("nan"))  # no gap between two streams
            async with answer(port, "tenant-0/stream", body | {"max_tokens": 4096}) as reader:
                async for line in reader:
                    if line.startswith(b"data: {"):
                        self.times_s.append(time.monotonic())

    def longest_gap_ms(self, since_s: float, until_s: float) -> float:
        """Between two tokens, of which one came in that time."""
        gaps = [
            after - before
            for before, after in zip(self.times_s, self.times_s[1:], strict=False)
            if after >= since_s and before <= until_s
        ]
        return 1000 * max(gaps)


@contextlib.asynccontextmanager
async def streaming(port: int) -> AsyncIterator[Stream]:
    """A stream in the background."""
    stream = Stream()
    task = asyncio.create_task(stream.read(port))
    try:
        await asyncio.sleep(1.0)
        yield stream
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def measured(
    arguments: argparse.Namespace, ports: Sequence[int], pid: int, pool: ProcessPoolExecutor
) -> None:
    """All windows, and the figures of them."""
    loop = asyncio.get_running_loop()
    metrics, state = f"http://127.0.0.1:{ports[1]}/metrics", f"http://127.0.0.1:{ports[2]}/v1/state"
    gaps: defaultdict[str, list[float]] = defaultdict(list)
    costs: defaultdict[str, list[float]] = defaultdict(list)
    answers: defaultdict[str, list[int]] = defaultdict(list)
    await fill(arguments, ports[0])
    await asyncio.sleep(3.0)  # until the ledger's figures are current
    async with streaming(ports[0]) as stream:
        for _ in range(arguments.rounds):
            for kind in KINDS:
                cpu, since_s = cpu_s(pid), time.monotonic()
                until_s = since_s + arguments.window_s
                await asyncio.sleep(0.3)
                if kind == "flood":
                    flood = (
                        loop.run_in_executor(pool, fetch_until, metrics, until_s - 0.5)
                        for _ in range(READERS)
                    )
                    answers[kind].append(sum(await asyncio.gather(*flood)))
                elif kind != "quiet":
                    url = metrics if kind == "scrape" else state
                    answers[kind].append(await loop.run_in_executor(pool, fetch, url))
                await asyncio.sleep(max(0.0, until_s - time.monotonic()))
                gaps[kind].append(stream.longest_gap_ms(since_s, time.monotonic()))
                costs[kind].append(cpu_s(pid) - cpu)
    show(arguments, gaps, costs, answers)


def show(
    arguments: argparse.Namespace,
    gaps: dict[str, list[float]],
    costs: dict[str, list[float]],
    answers: dict[str, list[int]],
) -> None:
    """Print the figures; exit with an error if a checked figure exceeds its limit."""
    print(f"{arguments.clients} clients of {arguments.tenants} tenants, {arguments.rounds} rounds")
    for kind in KINDS:
        line = (
            f"{kind:<7} longest gap {median(gaps[kind]):7.1f} ms (at most {max(gaps[kind]):7.1f})"
        )
        cpu_ms = 1000 * (median(costs[kind]) - median(costs["quiet"]))
        if kind == "flood":
            line += f"   CPU {cpu_ms:7.1f} ms a window   {median(answers[kind]):9.0f} answers"
        elif kind != "quiet":
            line += f"   CPU {cpu_ms:7.1f} ms   {median(answers[kind]) / 1e6:9.2f} MB"
        print(line, flush=True)
    more_ms = median(gaps["scrape"]) - median(gaps["quiet"])
    print(f"a scrape adds {more_ms:.1f} ms to the longest gap (allowed: {ALLOWED_MS:.0f})")
    if arguments.check and more_ms > ALLOWED_MS:
        raise SystemExit(1)


def ready(port: int) -> bool:
    """Whether the router takes requests."""
    return fetch(f"http://127.0.0.1:{port}/readyz") > 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--tenants", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--window-s", type=float, default=2.5)
    parser.add_argument("--tree", type=Path, default=ROOT)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    router_cpu, own_cpu = sorted(os.sched_getaffinity(0))[:2]
    ports = free_ports(4)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        worker = ["bench.router.worker", f"--port={ports[3]}", f"--pace-ms={PACE_MS}"]
        stack.enter_context(process(worker, tree=ROOT, cpu=own_cpu))
        command = [
            "evenkeel_router",
            f"--config={config(arguments, ports, folder)}",
            "--no-request-log",
        ]
        router = stack.enter_context(process(command, tree=arguments.tree, cpu=router_cpu))
        os.sched_setaffinity(0, {own_cpu})
        pool = stack.enter_context(ProcessPoolExecutor(READERS))
        until_s = time.monotonic() + START_S
        while not ready(ports[1]):
            if time.monotonic() > until_s or router.poll() is not None:
                raise SystemExit("the router does not start")
            time.sleep(0.1)
        asyncio.run(measured(arguments, ports, router.pid, pool))


if __name__ == "__main__":
    main()
