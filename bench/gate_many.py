"""A light client beside a flood, at many engines with small batches and several routers (R12).

    python -m bench.gate_many [--engines 64] [--places 2] [--service-s 1.536] [--step-s 0] [--routers 3] [--seconds 20]

All run in one process. The routers are real ones with their ports, and exchange their ledgers. Engines stand at the router's seam to
the network: a batch of so many places, and a queue by arrival. They report both as vLLM does, at `/metrics`. With the defaults a
place becomes free about every 12 ms. With `--step-s` requests begin and end between the steps of an engine, as in a real one: it fills the
free places from its queue, and a request that comes later waits for the next step. What it reports is as of the end of a step.

The clock stands still while the program computes, and jumps to the next event when there is nothing to do. So the figures do not depend
on other work on the machine, and messages between routers take no time.

The first router gets a flood, or every router with `--everywhere`: three times as many open streams as there are places. Each router gets a request of another tenant
every half second. The table has the wait of these requests: from the client's request to the first event of the answer.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import selectors
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from math import ceil
from random import Random
from statistics import fmean, median
from typing import Final, Self

import aiohttp
from evenkeel_contract import routerconfig as rc
from evenkeel_contract.queueorder import QueueOwner
from evenkeel_router.app import Router, running
from evenkeel_router.fleet.probe import EngineSize, ProbeVerdict
from evenkeel_router.transport.upstream import (
    Exchange,
    Feed,
    IsOverdue,
    Outgoing,
    Passes,
    Reply,
    Sink,
    never_overdue,
)

HOST: Final = "127.0.0.1"
MODEL: Final = "tiny"
FLOOD: Final = "flood"
LIGHT: Final = "light"
OPEN_STREAMS: Final = 3
"""Open streams of the flood for each place."""
LIGHT_PAUSE_S: Final = 0.5
LOOK_S: Final = 0.05
PATIENCE_S: Final = 600.0
SETTLE_S: Final = 0.0002
OUTPUT_TOKENS: Final = 8
FIRST_EVENTS: Final = b"".join(
    b'data: {"id":"1","object":"text_completion","model":"tiny","choices":[{"index":0,"text":"a "}]}\n\n'
    for _ in range(OUTPUT_TOKENS)
)
"""What a request gets when it has a place: as many tokens as prove a replica that is new to a router."""
PROMPT_WORDS: Final = 512
USAGE: Final = {
    "prompt_tokens": PROMPT_WORDS,
    "completion_tokens": OUTPUT_TOKENS,
    "total_tokens": PROMPT_WORDS + OUTPUT_TOKENS,
}
LAST_EVENTS: Final = (
    f'data: {{"id":"1","object":"text_completion","model":"tiny","choices":[],"usage":{json.dumps(USAGE)}}}\n\n'
    "data: [DONE]\n\n"
).encode()


@dataclass(slots=True)
class Engine:
    """An engine that computes a request for a random time, about `service_s`, once it has a place for it."""

    places: int
    service_s: float
    rng: Random
    step_s: float = 0.0
    """0: places are filled at any time."""
    running: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    finished_s: float = 0.0
    """Time of places that was used, of requests that ended."""
    reported: tuple[int, int] = (0, 0)
    """Requests that run and wait, as of the end of the last step."""
    _steps: bool = False

    async def place(self) -> None:
        """Wait for a place in the order of arrival."""
        if self.running < self.places and not self.step_s:
            self.running += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        if self.step_s and not self._steps:
            self._steps = True
            self._await_step()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        """A place is free: the next one gets it."""
        self.running -= 1
        if self.step_s:
            asyncio.get_running_loop().call_soon(
                self._fill
            )  # after the others that end with this step
        else:
            self._fill()

    def _fill(self) -> None:
        self.reported = self.running, self.queue
        while self.waiting and self.running < self.places:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self.running += 1

    def _await_step(self) -> None:
        loop = asyncio.get_running_loop()
        loop.call_at((round(loop.time() / self.step_s) + 1) * self.step_s, self._step)

    def _step(self) -> None:
        self._fill()
        self._steps = bool(self.running or self.waiting)
        if self._steps:
            self._await_step()

    @property
    def queue(self) -> int:
        """Requests that wait inside the engine."""
        return sum(not turn.done() for turn in self.waiting)

    def time_s(self) -> float:
        """How long the next request takes."""
        seconds = self.service_s * self.rng.uniform(0.5, 1.5)
        return max(1, round(seconds / self.step_s)) * self.step_s if self.step_s else seconds

    def page(self) -> bytes:
        """`/metrics`."""
        running, waiting = self.reported if self.step_s else (self.running, self.queue)
        return (
            f"vllm:num_requests_running {running}\n"
            f"vllm:num_requests_waiting {waiting}\n"
            "vllm:kv_cache_usage_perc 0.5\n"
        ).encode()


@dataclass(slots=True)
class _Stream:
    """The answer to one request: it begins at once, and ends when its time is over."""

    engine: Engine
    takes_s: float
    status: int = 200
    content_type: str = "text/event-stream"
    retry_after: str = ""
    metadata: str = ""
    body: None = None
    _began: bool = False

    async def relay(self, feed: Feed, *, idle_s: float) -> bool:
        if not self._began:
            self._began = True
            feed(FIRST_EVENTS, False)
        await asyncio.sleep(self.takes_s)
        self.engine.finished_s += self.takes_s
        feed(LAST_EVENTS, True)
        return True

    def splice(self, passes: Passes, client: Sink) -> None:
        return None

    def begun(self) -> None:
        return None

    def hold(self) -> None:
        return None


@dataclass(slots=True)
class _Exchange:
    engine: Engine
    _has_place: bool = False

    async def ask(
        self, request: Outgoing, *, silence_s: float, is_overdue: IsOverdue = never_overdue
    ) -> Reply:
        await self.engine.place()
        self._has_place = True
        return _Stream(self.engine, self.engine.time_s())

    def break_off(self) -> bool:
        return False

    def close(self) -> None:
        if self._has_place:
            self._has_place = False
            self.engine.leave()


@dataclass(slots=True)
class Engines:
    """All engines, at the seam to the network: what sends requests to them, and what asks whether they are ready."""

    by_name: dict[str, Engine]

    def pooled(self, replica: rc.ReplicaConfig) -> Exchange | None:
        return None

    async def connect(self, replica: rc.ReplicaConfig) -> Exchange:
        return _Exchange(self.by_name[replica.name])

    async def probe(self, replica: rc.ReplicaConfig) -> ProbeVerdict:
        return ProbeVerdict.READY

    def refusal(self, replica: rc.ReplicaConfig) -> str:
        return ""

    async def size(self, replica: rc.ReplicaConfig) -> EngineSize | None:
        return None

    async def started_s(self, replica: rc.ReplicaConfig) -> float | None:
        return 1.0

    @property
    def queue(self) -> int:
        """Requests that wait inside engines."""
        return sum(engine.queue for engine in self.by_name.values())

    @property
    def used_s(self) -> float:
        """Time of places that was used."""
        return sum(engine.finished_s for engine in self.by_name.values())

    @asynccontextmanager
    async def pages(self) -> AsyncIterator[str]:
        """Serve the engines' `/metrics`, each under its name; gives the address before the names."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    page = self.by_name[head.split(b"/", 2)[1].decode()].page()
                    size = f"HTTP/1.1 200 OK\r\nContent-Length: {len(page)}\r\n\r\n"
                    writer.write(size.encode() + page)
            writer.close()

        server = await asyncio.start_server(answer, HOST, 0)
        try:
            yield f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()


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
