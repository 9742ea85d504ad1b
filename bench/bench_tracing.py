"""CPU time of a router per request with traces off, of a part of all requests, and of all.

    python -m bench.bench_tracing [--requests 2000] [--rounds 5]

One router with everything on. Load, replica and collector are one other process, whose replica answers at once. The settings
take turns. CPU time is of the whole router process, with the thread that exports spans. The last line is the work
that tracing adds to a request while it is off.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing as mp
import time
import timeit
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

from aiohttp import ClientSession, TCPConnector, web
from evenkeel_contract.routerconfig import (
    Anonymous,
    ListenConfig,
    ReplicaConfig,
    RouterConfig,
    TenancyConfig,
)
from evenkeel_contract.tracingconfig import TracingConfig
from evenkeel_router.app import running
from evenkeel_router.request.request_state import RequestState
from evenkeel_router.telemetry.tracing import Tracing

CONNECTIONS = 16
ANSWER = {"choices": [], "usage": {"prompt_tokens": 200, "completion_tokens": 1}}
BODY = {"model": "llama", "prompt": "word " * 200, "max_tokens": 1}
RATES = {"off": None, "1 %": 10_000, "all": 1_000_000}


class Changes:
    """A source of configurations that this program changes."""

    def __init__(self) -> None:
        self.apply: Callable[[RouterConfig], None] = lambda config: None

    async def watch(self, apply: Callable[[RouterConfig], None], complain: object) -> None:
        self.apply = apply
        await asyncio.Event().wait()


def peer(pipe: Connection) -> None:
    """The other process: a replica, a collector, and the load."""
    asyncio.run(_peer(pipe))


async def _peer(pipe: Connection) -> None:
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.json_response(ANSWER)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    pipe.send(runner.addresses[0][1])
    async with ClientSession(connector=TCPConnector(limit=CONNECTIONS)) as session:
        while (work := await asyncio.to_thread(pipe.recv)) is not None:
            url, requests = work
            left = iter(range(requests))

            async def one_connection(url: str = url, left: Any = left) -> None:
                for _ in left:
                    async with session.post(url, json=BODY) as reply:
                        assert reply.status == 200
                        await reply.read()

            await asyncio.gather(*(one_connection() for _ in range(CONNECTIONS)))
            pipe.send(True)


async def measure(pipe: Connection, requests: int, rounds: int) -> dict[str, list[float]]:
    """CPU microseconds per request, by setting."""
    base = f"http://127.0.0.1:{await asyncio.to_thread(pipe.recv)}"
    off = RouterConfig(
        namespace="ns",
        service="svc",
        model="llama",
        listen=ListenConfig(traffic_port=0, probe_port=0, admin_port=0),
        tenancy=TenancyConfig(anonymous=Anonymous.SHARE),
        replicas=(ReplicaConfig(name="r0", url=base),),
    )
    source = Changes()
    found: dict[str, list[float]] = {name: [] for name in RATES}
    async with running(off, source=source) as router:  # type: ignore[arg-type]
        while not router.rooms.replicas.fleet.routable:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        work = (f"{router.url}/v1/completions", requests)
        for number in range(rounds + 1):
            for name, rate in RATES.items():
                tracing = None
                if rate is not None:
                    tracing = TracingConfig(endpoint=base, sampling_rate_per_million=rate)
                source.apply(replace(off, tracing=tracing))
                gc.collect()
                before = time.process_time()
                pipe.send(work)
                await asyncio.to_thread(pipe.recv)
                if number:  # the first round warms up
                    found[name].append((time.process_time() - before) / requests * 1e6)
    pipe.send(None)
    return found


def added_while_off_us() -> float:
    """Microseconds of the calls that tracing adds to a request while it is off; the loop's own time is taken off."""
    config = RouterConfig(namespace="ns", service="svc", model="llama")
    tracing, state = Tracing(config), RequestState(request_id="", path="", started_s=0.0)

    def calls() -> None:
        if (spans := tracing.spans) is not None:
            state.trace = spans.begin("", "", None)  # type: ignore[arg-type]
        for _ in range(8):  # four steps, attempt, headers, first byte, end
            if state.trace is not None:
                raise AssertionError

    def nothing() -> None:
        for _ in range(8):
            pass

    number = 50_000
    return (
        (
            min(timeit.repeat(calls, timer=time.process_time, number=number))
            - min(timeit.repeat(nothing, timer=time.process_time, number=number))
        )
        / number
        * 1e6
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    ours, theirs = mp.Pipe()
    child = mp.get_context("spawn").Process(target=peer, args=(theirs,), daemon=True)
    child.start()
    found = asyncio.run(measure(ours, arguments.requests, arguments.rounds))
    child.join()
    off_us = median(found["off"])
    for name, taken_us in found.items():
        ratios = [one / base for one, base in zip(taken_us, found["off"], strict=True)]
        print(
            f"{name:<4} {median(taken_us):7.1f} us per request ({min(taken_us):.0f} to {max(taken_us):.0f})"
            f"   ratio to off {median(ratios):5.2f}"
        )
    added_us = added_while_off_us()
    print(f"added while off: {added_us:.2f} us per request, {added_us / off_us:.2%} of it")


if __name__ == "__main__":
    main()
