"""A light client beside a flood, at many engines with small batches and several routers (R12).

    python -m bench.gate_many [--engines 64] [--places 2] [--service-s 1.536] [--step-s 0] [--routers 3] [--seconds 20]

All run in one process. The routers are real ones with their ports, and exchange their ledgers. Engines are `placed_engines`, without
steps unless `--step-s` says how long one takes. With the defaults a place becomes free about every 12 ms.

The clock stands still while the program computes, and jumps to the next event when there is nothing to do. So the figures do not depend
on other work on the machine, and messages between routers take no time.

The first router gets a flood, or every router with `--everywhere`: three times as many open streams as there are places. Each router gets a request of another tenant
every half second. The table has the wait of these requests: from the client's request to the first event of the answer.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import selectors
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from random import Random
from statistics import fmean, median
from typing import Final, Self

import aiohttp
from evenkeel_contract import routerconfig as rc
from evenkeel_contract.queueorder import QueueOwner
from evenkeel_router.app import Router, running

from bench.placed_engines import HOST, OUTPUT_TOKENS, PROMPT_WORDS, Engine, Engines

MODEL: Final = "tiny"
FLOOD: Final = "flood"
LIGHT: Final = "light"
OPEN_STREAMS: Final = 3
"""Open streams of the flood for each place."""
LIGHT_PAUSE_S: Final = 0.5
LOOK_S: Final = 0.05
PATIENCE_S: Final = 600.0
SETTLE_S: Final = 0.0002


@dataclass(frozen=True, slots=True)
class Load:
    """What runs."""

    engines: int = 64
    places: int = 2
    service_s: float = 1.536
    step_s: float = 0.0
    routers: int = 3
    warmup_s: float = 8.0
    seconds: float = 20.0
    everywhere: bool = False
    """Whether the flood enters at every router."""

    @property
    def all_places(self) -> int:
        return self.engines * self.places


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run showed."""

    waits_s: Sequence[Sequence[float]]
    """Waits of the light client's requests, by router."""
    queue: float
    """Requests inside the engines' queues, the mean."""
    used: float
    """Part of the places' time that requests used."""

    @classmethod
    def of(cls, seen: Seen, *, used_s: float, possible_s: float) -> Self:
        return cls(seen.waits_s, fmean(seen.queue), used_s / possible_s)

    def table(self) -> str:
        """The figures for people."""
        lines = ["| router | requests | wait, median s | p95 s | largest s |", "|---|---:|---:|---:|---:|"]  # fmt: skip
        for number, waits_s in enumerate(self.waits_s):
            name = str(number)
            late_s = sorted(waits_s)[ceil(0.95 * len(waits_s)) - 1]
            lines.append(
                f"| {name} | {len(waits_s)} | {median(waits_s):.3f} | {late_s:.3f} | {max(waits_s):.3f} |"
            )
        lines.append(f"\nRequests inside the engines' queues: {self.queue:.1f} (mean).")
        lines.append(f"Time of places that was used: {self.used:.3f} of the possible.")
        return "\n".join(lines)


@dataclass(slots=True)
class Seen:
    """A run so far."""

    waits_s: list[list[float]]
    queue: list[int] = field(default_factory=list)


def _tenant(name: str) -> rc.TenantConfig:
    digest = hashlib.sha256(name.encode()).hexdigest()
    key = rc.ApiKeyConfig(name="key", client="app", sha256=digest)
    client = rc.ClientConfig(name="app")
    return rc.TenantConfig(namespace="bench", name=name, clients=(client,), api_keys=(key,))


def _config(names: Sequence[str], pages: str) -> rc.RouterConfig:
    return rc.RouterConfig(
        namespace="bench",
        service="bench",
        model=MODEL,
        listen=rc.ListenConfig(host=HOST, traffic_port=0, probe_port=0, admin_port=0),
        scheduling=rc.SchedulingConfig(queue=QueueOwner.AUTO),
        tenancy=rc.TenancyConfig(tenants=(_tenant(FLOOD), _tenant(LIGHT))),
        limits=rc.LimitsConfig(
            queue_timeout_s=PATIENCE_S, first_token_timeout_s=PATIENCE_S, idle_timeout_s=PATIENCE_S
        ),
        replicas=tuple(rc.ReplicaConfig(name=name, url=f"{pages}/{name}") for name in names),
    )


@asynccontextmanager
async def routers(engines: Engines, count: int) -> AsyncIterator[list[Router]]:
    """Routers that know one another and have found all engines."""
    async with AsyncExitStack() as stack:
        pages = await stack.enter_async_context(engines.pages())
        names = list(engines.by_name)
        config = _config(names, pages)
        opened = [
            await stack.enter_async_context(running(config, upstream=engines, prober=engines))
            for _ in range(count)
        ]
        for router in opened:
            peers = tuple(
                rc.PeerConfig(name=f"peer{number}", url=f"http://{HOST}:{other.admin_port}")
                for number, other in enumerate(opened)
                if other is not router
            )
            await router.apply(replace(config, state=rc.StateConfig(peers=peers)))
        async with asyncio.timeout(PATIENCE_S):
            for router in opened:
                found = router.rooms.replicas.fleet
                while found.routable.bit_count() < len(names):  # noqa: ASYNC110 - no event says so
                    await asyncio.sleep(LOOK_S)
        yield opened


async def _stream(
    http: aiohttp.ClientSession,
    url: str,
    tenant: str,
    *,
    rng: Random,
    note: Callable[[float], None],
) -> None:
    """One request; `note` gets the seconds until its first event."""
    prompt = " ".join(str(rng.randrange(1000)) for _ in range(PROMPT_WORDS))
    body = {"model": MODEL, "prompt": prompt, "max_tokens": OUTPUT_TOKENS, "stream": True}
    headers = {"Authorization": f"Bearer {tenant}"}
    now = asyncio.get_running_loop().time
    began_s = now()
    async with http.post(f"{url}/v1/completions", json=body, headers=headers) as response:
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {await response.text()}")
        await response.content.readline()
        note(now() - began_s)
        await response.read()


async def _flood(http: aiohttp.ClientSession, url: str, number: int) -> None:
    rng = Random(number)
    while True:
        await _stream(http, url, FLOOD, rng=rng, note=lambda _: None)


async def _light(http: aiohttp.ClientSession, url: str, number: int, seen: Seen) -> None:
    """A request every `LIGHT_PAUSE_S`, whether the last one was answered or not."""
    rng = Random(f"light {number}")
    async with asyncio.TaskGroup() as group:
        while True:
            await asyncio.sleep(LIGHT_PAUSE_S * rng.uniform(0.5, 1.5))
            note = seen.waits_s[number].append
            group.create_task(_stream(http, url, LIGHT, rng=rng, note=note))


async def _look(engines: Engines, seen: Seen) -> None:
    while True:
        seen.queue.append(engines.queue)
        await asyncio.sleep(LOOK_S)


async def measure(load: Load) -> Figures:
    """One run."""
    names = [f"engine-{number}" for number in range(load.engines)]
    engines = Engines(
        {one: Engine(load.places, load.service_s, Random(one), load.step_s) for one in names}
    )
    seen = Seen([[] for _ in range(load.routers)])
    async with (
        routers(engines, load.routers) as opened,
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout()
        ) as http,
        asyncio.TaskGroup() as group,
    ):
        flooded = opened if load.everywhere else opened[:1]
        tasks = [
            group.create_task(_flood(http, flooded[number % len(flooded)].url, number))
            for number in range(OPEN_STREAMS * load.all_places)
        ]
        tasks += [
            group.create_task(_light(http, router.url, number, seen))
            for number, router in enumerate(opened)
        ]
        tasks.append(group.create_task(_look(engines, seen)))
        await asyncio.sleep(load.warmup_s)
        seen.queue.clear()
        for waits_s in seen.waits_s:
            waits_s.clear()
        now = asyncio.get_running_loop().time
        began_s, used_s = now(), engines.used_s
        await asyncio.sleep(load.seconds)
        possible_s = (now() - began_s) * load.all_places
        figures = Figures.of(
            replace(seen, waits_s=[list(one) for one in seen.waits_s]),
            used_s=engines.used_s - used_s,
            possible_s=possible_s,
        )
        for task in tasks:
            task.cancel()
    return figures


class _Clock(selectors.DefaultSelector):  # type: ignore[misc, valid-type] # which class it is depends on the system
    """Gives out what sockets have, and moves the time on where they have nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Sockets of this process have at once what was sent; threads get a moment."""
        events = super().select(0) or super().select(SETTLE_S)
        if events or not timeout or timeout < 0:
            return events if events or timeout is not None else super().select(None)
        self.now_s += timeout
        return []


def run(load: Load) -> Figures:
    """One run, on a clock that jumps to the next event."""
    clock = _Clock()

    def loop() -> asyncio.AbstractEventLoop:
        made = asyncio.SelectorEventLoop(clock)
        made.time = lambda: clock.now_s  # type: ignore[method-assign]
        return made

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(measure(load))


def main() -> int:
    """Command line."""
    parser, usual = argparse.ArgumentParser(description=__doc__), Load()
    parser.add_argument("--engines", type=int, default=usual.engines)
    parser.add_argument("--places", type=int, default=usual.places, help="of each engine")
    parser.add_argument("--service-s", type=float, default=usual.service_s, help="of a request")
    parser.add_argument("--step-s", type=float, default=usual.step_s, help="of an engine")
    parser.add_argument("--routers", type=int, default=usual.routers)
    parser.add_argument("--warmup-s", type=float, default=usual.warmup_s)
    parser.add_argument("--seconds", type=float, default=usual.seconds)
    parser.add_argument("--everywhere", action="store_true", help="the flood enters at all routers")
    load = Load(**vars(parser.parse_args()))
    cpu_s = time.process_time()
    print(run(load).table())
    print(f"CPU time {time.process_time() - cpu_s:.1f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
