"""The load for the router's gate in front of one engine, and the figures that it gives (R12). `gate` has the engines.

Two tenants with weights 4 and 1 keep far more streams open than the batch takes. A third one sends a request at a time to each router.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from random import Random
from statistics import fmean, median, quantiles
from typing import Any, Final, Self, TypeAlias

import aiohttp
from evenkeel_cli.up import ports
from evenkeel_contract import routerconfig as rc
from evenkeel_contract.decode import to_plain
from evenkeel_contract.queueorder import QueueOwner
from evenkeel_router.gate.engine_load import EngineLoad

from bench.gpu.engine import HOST, running_process

MODEL: Final = "tiny"
WEIGHTS: Final = {"light": 4, "heavy": 1, "single": 1}
RUNNING: Final = 8
SINGLE_OUTPUT_TOKENS: Final = 8
SINGLE_PAUSE_S: Final = 0.25
SINGLE_REQUESTS: Final = 10
LOOK_S: Final = 0.1
LIMIT_S: Final = 600.0
PATIENCE_S: Final = 3600.0
"""No request of a flood ends for its wait, also on a busy machine."""
AskLoad: TypeAlias = Callable[[aiohttp.ClientSession, str], Awaitable[EngineLoad]]
"""Asks an engine how many requests run and wait in it."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the flooding tenants send, and where it enters."""

    streams: Mapping[str, tuple[int, ...]]
    """Tenant → its open requests at each router."""
    weights: Mapping[str, int] = field(default_factory=WEIGHTS.copy)
    prefix_words: int = 240
    """That all prompts of a tenant begin with: about 900 bytes. Routers know prefixes in blocks of 256."""
    own_words: int = 8
    output_tokens: int = 64

    @property
    def owed(self) -> float:
        """The part of the tenant `light`."""
        return self.weights["light"] / (self.weights["light"] + self.weights["heavy"])


ONE_ROUTER: Final = Traffic({"light": (64,), "heavy": (16,)})
"""Streams by weight, so that a pause of this program empties neither queue first."""


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
    batch: list[float] = field(default_factory=list)
    """Requests that run in the engine."""


HEAD: Final = """\
| | light's part | single tenant's TTFT p50, p99 ms | output tokens/s | hit rate | queue | batch |
|---|---:|---:|---:|---:|---:|---:|"""


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
    batch: float
    """Mean. It shows places that stay free, also where the machine has other work."""

    def row(self, name: str) -> str:
        """Of the table under `HEAD`."""
        return (
            f"| {name} | {self.light:.3f} | {self.ttft_p50_s * 1e3:.0f}, {self.ttft_p99_s * 1e3:.0f} "
            f"| {self.output_per_s:.0f} | {self.hit_rate:.3f} | {self.queue:g} | {self.batch:.2f} |"
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


def promises(gate: Figures, plug_in: Figures) -> Iterator[Promise]:
    """The gate's figures beside the plug-in's on the same engine."""
    owed = ONE_ROUTER.owed
    off = abs(gate.light / owed - 1)
    yield Promise("light's part", f"{gate.light:.3f}", f"{owed:g} ± 5 %", off <= 0.05)
    ttft = gate.ttft_p99_s / plug_in.ttft_p99_s
    yield Promise("single tenant's TTFT p99 / plug-in's", f"{ttft:.2f}", "≤ 1.5", ttft <= 1.5)
    output = gate.output_per_s / plug_in.output_per_s
    yield Promise("output tokens/s / plug-in's", f"{output:.3f}", "≥ 0.97", output >= 0.97)
    batch = gate.batch / plug_in.batch
    yield Promise("batch / plug-in's", f"{batch:.3f}", "≥ 0.97", batch >= 0.97)
    points = 100 * (gate.hit_rate - plug_in.hit_rate)
    yield Promise("hit rate − plug-in's, points", f"{points:+.1f}", "± 3", abs(points) <= 3)
    yield Promise("engine's queue, median", f"{gate.queue:g}", "≤ 2", gate.queue <= 2)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Of a router."""

    url: str
    admin_url: str


@contextmanager
def routers(
    queue: QueueOwner,
    replicas: Mapping[str, str | None],
    folder: Path,
    *,
    weights: Mapping[str, int] = WEIGHTS,
    count: int = 1,
    shared: bool = True,
) -> Iterator[list[Addresses]]:
    """Routers, a process each; with `shared` they know one another. `replicas`: address of an engine → where it reports."""
    listens = [_listen() for _ in range(count)]
    with ExitStack() as stack:
        for number, listen in enumerate(listens):
            others = [one for one in listens if one is not listen] if shared else []
            config = rc.RouterConfig(
                namespace="bench",
                service="bench",
                model=MODEL,
                listen=listen,
                scheduling=rc.SchedulingConfig(queue=queue),
                tenancy=rc.TenancyConfig(tenants=tuple(_tenant(*one) for one in weights.items())),
                state=rc.StateConfig(peers=tuple(map(_peer, others))),
                limits=rc.LimitsConfig(
                    queue_timeout_s=PATIENCE_S,
                    first_token_timeout_s=PATIENCE_S,
                    idle_timeout_s=PATIENCE_S,
                ),
                replicas=tuple(
                    rc.ReplicaConfig(name=f"replica-{index}", url=url, reports=reports)
                    for index, (url, reports) in enumerate(replicas.items())
                ),
            )
            path = folder / f"router-{number}.json"
            path.write_text(json.dumps(to_plain(config)))
            command = (sys.executable, "-m", "evenkeel_router", "--config", str(path))
            ready, log = f"http://{HOST}:{listen.probe_port}", folder / f"router-{number}.log"
            stack.enter_context(running_process(command, os.environ, ready, "/readyz", log=log))
        yield [
            Addresses(f"http://{HOST}:{one.traffic_port}", f"http://{HOST}:{one.admin_port}")
            for one in listens
        ]


def _listen() -> rc.ListenConfig:
    traffic, probes, admin = (ports.free_port(HOST) for _ in range(3))
    return rc.ListenConfig(traffic_port=traffic, probe_port=probes, admin_port=admin)


def _peer(other: rc.ListenConfig) -> rc.PeerConfig:
    return rc.PeerConfig(name=f"r{other.admin_port}", url=f"http://{HOST}:{other.admin_port}")


def _tenant(name: str, weight: int) -> rc.TenantConfig:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return rc.TenantConfig(
        namespace="bench",
        name=name,
        weight=weight,
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


def prompt(tenant: str, rng: Random, prefix_words: int, own_words: int) -> str:
    """A tenant's prefix and a tail of its own."""
    shared = Random(tenant)
    words = [str(shared.randrange(1000)) for _ in range(prefix_words)]
    return " ".join([*words, *(str(rng.randrange(1000)) for _ in range(own_words))])


async def flood(
    http: aiohttp.ClientSession, tenant: str, name: str, *, traffic: Traffic, seen: Seen
) -> None:
    """One request after the other; `name` is unique to the stream."""
    rng = Random(name)
    while True:
        text = prompt(tenant, rng, traffic.prefix_words, traffic.own_words)
        await stream(http, tenant, text, seen, output_tokens=traffic.output_tokens)


async def single(http: aiohttp.ClientSession, name: str, seen: Seen) -> None:
    """A request now and then."""
    rng = Random(name)
    while True:
        await asyncio.sleep(SINGLE_PAUSE_S)
        text = prompt("single", rng, 10, 8)
        ttft_s = await stream(http, "single", text, seen, output_tokens=SINGLE_OUTPUT_TOKENS)
        seen.ttft_s.append(ttft_s)


async def look(engine: str, seen: Seen, ask: AskLoad) -> None:
    """The lengths of the engine's own queue and of its batch, again and again."""
    async with aiohttp.ClientSession() as http:
        while True:
            found = await ask(http, engine)
            seen.queue.append(found.waiting)
            seen.batch.append(found.running)
            await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def load(
    urls: Sequence[str], engine: str, *, seen: Seen, ask: AskLoad, traffic: Traffic
) -> AsyncIterator[None]:
    """All of these while the context is open. The first failure ends it, with an `ExceptionGroup`."""
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with AsyncExitStack() as stack:
        sessions = [
            await stack.enter_async_context(
                aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0), timeout=timeout)
            )
            for url in urls
        ]
        group = await stack.enter_async_context(asyncio.TaskGroup())
        tasks = [
            group.create_task(
                flood(http, tenant, f"{tenant} {place}.{number}", traffic=traffic, seen=seen)
            )
            for tenant, counts in traffic.streams.items()
            for place, (http, count) in enumerate(zip(sessions, counts, strict=True))
            for number in range(count)
        ]
        tasks += [
            group.create_task(single(http, f"single {place}", seen))
            for place, http in enumerate(sessions)
        ]
        tasks.append(group.create_task(look(engine, seen, ask)))
        yield
        for task in tasks:
            task.cancel()


async def observe(
    urls: Sequence[str],
    engine: str,
    *,
    warmup_s: float,
    seconds: float,
    requests: int = 0,
    ask: AskLoad,
    traffic: Traffic = ONE_ROUTER,
) -> Figures:
    """The figures after the warm-up, of at least `seconds` and so many requests of the flooding tenants. `urls`: the routers'.

    A busy machine gets more time, for the warm-up too; `RuntimeError` if it needs more than `LIMIT_S`.
    """
    seen = Seen()
    async with load(urls, engine, seen=seen, ask=ask, traffic=traffic):
        await asyncio.sleep(warmup_s)
        await _answers(seen, traffic, requests=sum(map(sum, traffic.streams.values())))
        seen.tenants, seen.ttft_s, seen.queue, seen.batch = Seen().tenants, [], [], []
        started_s = time.monotonic()
        await asyncio.sleep(seconds)
        await _answers(seen, traffic, requests=requests)
        elapsed_s = time.monotonic() - started_s
        tenants, ttft_s, lengths, batch = seen.tenants, seen.ttft_s, seen.queue, seen.batch
    light, heavy = tenants["light"], tenants["heavy"]
    inputs = light.input_tokens + heavy.input_tokens
    return Figures(
        light=light.service / (light.service + heavy.service),
        ttft_p50_s=median(ttft_s),
        ttft_p99_s=quantiles(ttft_s, n=100, method="inclusive")[98],
        output_per_s=sum(one.output_tokens for one in tenants.values()) / elapsed_s,
        hit_rate=(light.cached_tokens + heavy.cached_tokens) / inputs,
        queue=median(lengths),
        batch=fmean(batch),
    )


async def _answers(seen: Seen, traffic: Traffic, *, requests: int) -> None:
    """Wait for so many answers of the flooding tenants, and for some of the single one."""
    started_s = time.monotonic()
    while (
        sum(seen.tenants[name].requests for name in traffic.streams) < requests
        or len(seen.ttft_s) < SINGLE_REQUESTS
    ):
        await asyncio.sleep(LOOK_S)
        if time.monotonic() - started_s > LIMIT_S:
            raise RuntimeError(f"too few answers in {LIMIT_S:g} s: {seen.tenants}")
