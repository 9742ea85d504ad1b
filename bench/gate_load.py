"""The load for the router's gate in front of one engine, and the figures that it gives (R12). `gate` has the engines.

Two tenants with weights 4 and 1 keep far more streams open than the batch takes. A third one sends a request at a time.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Any, Final, Self, TypeAlias

import aiohttp
from evenkeel_cli.up import ports
from evenkeel_contract import routerconfig as rc
from evenkeel_contract.decode import to_plain
from evenkeel_contract.queueorder import QueueOwner

from bench.gpu.engine import HOST, running_process

MODEL: Final = "tiny"
WEIGHTS: Final = {"light": 4, "heavy": 1, "single": 1}
QUANTUM: Final = 200
STREAMS: Final = {"light": 64, "heavy": 16}
"""Open requests of the flooding tenants: by weight, so that a pause of this program empties neither queue first."""
RUNNING: Final = 8
PREFIX_WORDS: Final = 60
OUTPUT_TOKENS: Final = 64
SINGLE_OUTPUT_TOKENS: Final = 8
SINGLE_PAUSE_S: Final = 0.25
LOOK_S: Final = 0.1
PATIENCE_S: Final = 3600.0
"""No request of a flood ends for its wait, also on a busy machine."""
Queue: TypeAlias = Callable[[aiohttp.ClientSession, str], Awaitable[float]]
"""Asks an engine for the length of its own queue."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What orders the queue."""

    policy: str
    """The engine's: `--schedule-policy` of SGLang, the name of the plug-in's policy in vLLM."""
    queue: QueueOwner
    has_plug_in: bool = False


@dataclass(slots=True)
class Sums:
    """What one tenant got."""

    service: float = 0.0
    """Weighted tokens, as clients see them."""
    requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


@dataclass(slots=True)
class Seen:
    """A run so far."""

    tenants: dict[str, Sums] = field(default_factory=lambda: {name: Sums() for name in WEIGHTS})
    ttft_s: list[float] = field(default_factory=list)
    """Of the tenant `single`."""
    queue: list[float] = field(default_factory=list)
    """Requests in the engine's own queue."""


HEAD: Final = """\
| | light's part | single tenant's TTFT p50, p99 ms | output tokens/s | hit rate | queue |
|---|---:|---:|---:|---:|---:|"""


@dataclass(frozen=True, slots=True)
class Figures:
    """A row of the table."""

    light: float
    """Its part of the service of both floods; 0.8 by weights."""
    ttft_p50_s: float
    ttft_p99_s: float
    output_per_s: float
    hit_rate: float
    queue: float
    """Median."""

    def row(self, name: str) -> str:
        """Of the table under `HEAD`."""
        return (
            f"| {name} | {self.light:.3f} | {self.ttft_p50_s * 1e3:.0f}, {self.ttft_p99_s * 1e3:.0f} "
            f"| {self.output_per_s:.0f} | {self.hit_rate:.3f} | {self.queue:g} |"
        )

    @classmethod
    def median(cls, rounds: Sequence[Self]) -> Self:
        """Of each figure over rounds."""
        return cls(*(median(getattr(one, name.name) for one in rounds) for name in fields(cls)))


@dataclass(frozen=True, slots=True)
class Promise:
    """What the gate owes, and what was measured."""

    name: str
    measured: str
    limit: str
    met: bool

    def row(self) -> str:
        """Of the table under `PROMISES_HEAD`."""
        return f"| {self.name} | {self.measured} | {self.limit} | {'yes' if self.met else 'no'} |"


PROMISES_HEAD: Final = "| {} | measured | limit | met |\n|---|---:|---:|---|"
OWED: Final = WEIGHTS["light"] / (WEIGHTS["light"] + WEIGHTS["heavy"])


def promises(gate: Figures, plug_in: Figures) -> Iterator[Promise]:
    """The gate's figures beside the plug-in's on the same engine."""
    off = abs(gate.light / OWED - 1)
    yield Promise("light's part", f"{gate.light:.3f}", f"{OWED:g} ± 5 %", off <= 0.05)
    ttft = gate.ttft_p99_s / plug_in.ttft_p99_s
    yield Promise("single tenant's TTFT p99 / plug-in's", f"{ttft:.2f}", "≤ 1.5", ttft <= 1.5)
    output = gate.output_per_s / plug_in.output_per_s
    yield Promise("output tokens/s / plug-in's", f"{output:.3f}", "≥ 0.97", output >= 0.97)
    points = 100 * (gate.hit_rate - plug_in.hit_rate)
    yield Promise("hit rate − plug-in's, points", f"{points:+.1f}", "± 3", abs(points) <= 3)
    yield Promise("engine's queue, median", f"{gate.queue:g}", "≤ 2", gate.queue <= 2)


@contextmanager
def router(setup: Setup, engine: str, reports_port: int, folder: Path) -> Iterator[tuple[str, str]]:
    """A router in front of the engine; its address for traffic and that of its admin port."""
    traffic, probes, admin = (ports.free_port(HOST) for _ in range(3))
    reports = f"tcp://{HOST}:{reports_port}" if setup.has_plug_in else None
    config = rc.RouterConfig(
        namespace="bench",
        service="bench",
        model=MODEL,
        listen=rc.ListenConfig(traffic_port=traffic, probe_port=probes, admin_port=admin),
        scheduling=rc.SchedulingConfig(queue=setup.queue, client_quantum=QUANTUM),
        tenancy=rc.TenancyConfig(tenants=tuple(map(_tenant, WEIGHTS))),
        limits=rc.LimitsConfig(
            queue_timeout_s=PATIENCE_S, first_token_timeout_s=PATIENCE_S, idle_timeout_s=PATIENCE_S
        ),
        replicas=(rc.ReplicaConfig(name="replica", url=engine, reports=reports),),
    )
    path = folder / "router.json"
    path.write_text(json.dumps(to_plain(config)))
    command = (sys.executable, "-m", "evenkeel_router", "--config", str(path))
    ready, log = f"http://{HOST}:{probes}", folder / "router.log"
    with running_process(command, os.environ, ready, "/readyz", log):
        yield f"http://{HOST}:{traffic}", f"http://{HOST}:{admin}"


def _tenant(name: str) -> rc.TenantConfig:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return rc.TenantConfig(
        namespace="bench",
        name=name,
        weight=WEIGHTS[name],
        clients=(rc.ClientConfig(name="app"),),
        api_keys=(rc.ApiKeyConfig(name="key", client="app", sha256=digest),),
    )


async def stream(
    http: aiohttp.ClientSession, tenant: str, text: str, seen: Seen, *, output_tokens: int
) -> float:
    """One streamed completion; seconds to its first event."""
    body = {
        "model": MODEL,
        "prompt": text,
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started_s, first_s = time.monotonic(), 0.0
    headers = {"Authorization": f"Bearer {tenant}"}
    usage: dict[str, Any] = {}
    async with http.post("/v1/completions", json=body, headers=headers) as response:
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {await response.text()}")
        async for line in response.content:
            if line.startswith(b"data: {"):
                first_s = first_s or time.monotonic()
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(str(event["error"]))
                usage = event.get("usage") or usage
    sums = seen.tenants[tenant]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    sums.requests += 1
    sums.input_tokens += usage["prompt_tokens"]
    sums.cached_tokens += cached
    sums.output_tokens += usage["completion_tokens"]
    sums.service += usage["prompt_tokens"] - cached + 2 * usage["completion_tokens"]
    return first_s - started_s


def prompt(tenant: str, rng: Random, prefix_words: int) -> str:
    """A tenant's prefix and a tail of its own."""
    shared = Random(tenant)
    words = [str(shared.randrange(1000)) for _ in range(prefix_words)]
    return " ".join([*words, *(str(rng.randrange(1000)) for _ in range(8))])


async def flood(http: aiohttp.ClientSession, tenant: str, number: int, seen: Seen) -> None:
    """One request after the other."""
    rng = Random(f"{tenant} {number}")
    while True:
        text = prompt(tenant, rng, PREFIX_WORDS)
        await stream(http, tenant, text, seen, output_tokens=OUTPUT_TOKENS)


async def single(http: aiohttp.ClientSession, seen: Seen) -> None:
    """A request now and then."""
    rng = Random("single")
    while True:
        await asyncio.sleep(SINGLE_PAUSE_S)
        text = prompt("single", rng, 10)
        ttft_s = await stream(http, "single", text, seen, output_tokens=SINGLE_OUTPUT_TOKENS)
        seen.ttft_s.append(ttft_s)


async def look(engine: str, seen: Seen, queue: Queue) -> None:
    """The length of the engine's own queue, again and again."""
    async with aiohttp.ClientSession() as http:
        while True:
            seen.queue.append(await queue(http, engine))
            await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def load(url: str, engine: str, seen: Seen, queue: Queue) -> AsyncIterator[None]:
    """All of these while the context is open."""
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as http:
        tasks = [
            asyncio.create_task(flood(http, tenant, number, seen))
            for tenant, count in STREAMS.items()
            for number in range(count)
        ]
        tasks.append(asyncio.create_task(single(http, seen)))
        tasks.append(asyncio.create_task(look(engine, seen, queue)))
        try:
            yield
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def observe(
    url: str,
    engine: str,
    *,
    warmup_s: float,
    seconds: float,
    requests: int = 0,
    queue: Queue,
) -> Figures:
    """The figures after the warm-up, of at least `seconds` and so many requests of the flooding tenants."""
    seen = Seen()
    async with load(url, engine, seen, queue):
        await asyncio.sleep(warmup_s)
        seen.tenants, seen.ttft_s, seen.queue = Seen().tenants, [], []
        started_s = time.monotonic()
        await asyncio.sleep(seconds)
        while sum(seen.tenants[name].requests for name in STREAMS) < requests:  # noqa: ASYNC110 - streams come by themselves
            await asyncio.sleep(LOOK_S)
        elapsed_s = time.monotonic() - started_s
        tenants, ttft_s, lengths = seen.tenants, seen.ttft_s, seen.queue
    light, heavy = tenants["light"], tenants["heavy"]
    inputs = light.input_tokens + heavy.input_tokens
    return Figures(
        light=light.service / (light.service + heavy.service),
        ttft_p50_s=median(ttft_s),
        ttft_p99_s=quantiles(ttft_s, n=100, method="inclusive")[98],
        output_per_s=sum(one.output_tokens for one in tenants.values()) / elapsed_s,
        hit_rate=(light.cached_tokens + heavy.cached_tokens) / inputs,
        queue=median(lengths),
    )
