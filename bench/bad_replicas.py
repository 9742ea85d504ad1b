"""One of three replicas fails, or falls silent, while its health check says 200 (R20): `python -m bench.bad_replicas`.

A router process with its default times and limits, three scripted replicas, and nine clients that send one request after the other. The
prompts of a client begin alike, so that a cache attracts them to one replica. For each failure:

| column   | requests | the failing replica                                                                     |
|----------|----------|-----------------------------------------------------------------------------------------|
| new      | 240      | fails from the start of the router                                                      |
| cured    | until it is trusted | answers from now on; the time until its first answer, and until it is trusted |
| later    | 240      | fails again, after its answers; prefixes of some clients are in its cache               |
| all bad  | 24 at once | so do both others; the time of the slowest error, and the most attempts of one request  |

Requests that were answered rightly are counted, and requests that reached the failing replica. `--busy` adds processes that compute all
the time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp import web

from bench.router.contenders import KEYS, Evenkeel, Place
from bench.router.run import ROOT, environment, free_ports
from bench.router.worker import MODEL

REQUESTS: Final = 240
CLIENTS: Final = 9
LAST: Final = 24
EVENTS: Final = 8
PACE_S: Final = 0.01
PREFIX: Final = "begins all prompts of client {} " * 120
DONE: Final = b"data: [DONE]\n\n"
EVENT: Final = b'data: {"choices":[{"index":0,"text":"a"}],"usage":null}\n\n'
USAGE: Final = {"prompt_tokens": 950, "completion_tokens": EVENTS}
LAST_EVENT: Final = b"data: %b\n\n" % json.dumps({"choices": [], "usage": USAGE}).encode()
RIGHT: Final = EVENT * EVENTS + DONE
RECOVERY_S: Final = 60.0

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def _stream(request: web.Request, *events: bytes, pace_s: float = 0.0) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    for event in events:
        await asyncio.sleep(pace_s)
        await response.write(event)
    return response


async def fine(request: web.Request) -> web.StreamResponse:
    """Answer rightly."""
    return await _stream(request, *[EVENT] * EVENTS, LAST_EVENT, DONE, pace_s=PACE_S)


def _status(status: int) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(
            {"object": "error", "message": "no", "code": status}, status=status
        )

    return answer


def _sends(*events: bytes) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await _stream(request, *events)

    return answer


async def _hangs(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(3600)
    raise AssertionError


FAILURES: Final[dict[str, Answer]] = {
    **{str(status): _status(status) for status in (400, 404, 429, 500, 503)},
    "empty stream": _sends(DONE),
    "error event at once": _sends(b'data: {"error":{"message":"CUDA error","code":500}}\n\n', DONE),
    "one token and the end": _sends(EVENT),
    "silence": _hangs,
}


@dataclass(eq=False)
class Replica:
    """A scripted engine, whose health check always says 200."""

    answer: Answer = fine
    asked: Counter[str] = field(default_factory=Counter)
    """Prompt → how often it came."""

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/completions`."""
        self.asked[json.loads(await request.read())["prompt"]] += 1
        return await self.answer(request)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve; yields the address."""

        async def healthy(_: web.Request) -> web.Response:
            return web.Response()

        app = web.Application()
        app.router.add_get("/health", healthy)
        app.router.add_post("/v1/completions", self.completions)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await runner.setup()
        (port,) = free_ports(1)
        await web.TCPSite(runner, "127.0.0.1", port, shutdown_timeout=0.1).start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            await runner.cleanup()


@dataclass(eq=False)
class Bench:
    """One router, its replicas and its clients."""

    session: aiohttp.ClientSession
    port: int
    probe_port: int
    replicas: tuple[Replica, ...]
    sent: int = 0

    async def one(self, client: int) -> tuple[int, bytes, float]:
        """Send one request: its status, its answer, and how long that took."""
        self.sent += 1
        prompt = PREFIX.replace("{}", str(client)) + str(self.sent)
        body = {"model": MODEL, "prompt": prompt, "stream": True, "max_tokens": 99}
        headers = {"authorization": f"Bearer {KEYS[client % len(KEYS)]}"}
        url, since_s = f"http://127.0.0.1:{self.port}/v1/completions", time.perf_counter()
        async with self.session.post(url, json=body, headers=headers) as response:
            answer = await response.read()
        return response.status, answer, time.perf_counter() - since_s

    async def many(self, count: int, clients: int = CLIENTS) -> list[tuple[int, bytes, float]]:
        """Send so many requests."""
        left, got = iter(range(count)), []

        async def sends(client: int) -> None:
            for _ in left:
                got.append(await self.one(client))

        await asyncio.gather(*map(sends, range(clients)))
        return got

    async def with_one_bad(self, failure: Answer) -> tuple[int, int]:
        """Requests that were answered rightly while the first replica fails, and those that it got."""
        bad = self.replicas[0]
        bad.answer = failure
        bad.asked.clear()
        got = await self.many(REQUESTS)
        return sum((status, answer) == (200, RIGHT) for status, answer, _ in got), bad.asked.total()

    async def cured(self) -> tuple[float, float, int]:
        """Seconds from the cure to the first answer of the replica, and until it is trusted; wrong answers meanwhile."""
        bad, since_s, first_s, wrong = self.replicas[0], time.perf_counter(), 0.0, 0
        bad.asked.clear()
        bad.answer = fine
        while (took_s := time.perf_counter() - since_s) < RECOVERY_S:
            got = await self.many(CLIENTS)
            wrong += sum((status, answer) != (200, RIGHT) for status, answer, _ in got)
            if not first_s and bad.asked:
                first_s = took_s
            if await self.trusts("worker-0"):
                return first_s, time.perf_counter() - since_s, wrong
        return first_s, took_s, wrong

    async def trusts(self, replica: str) -> bool:
        """Whether the router sends any number of requests to the replica."""
        async with self.session.get(f"http://127.0.0.1:{self.probe_port}/metrics") as response:
            page = await response.text()
        value = {
            name: float(re.findall(rf'_{name}\{{[^}}]*replica="{replica}"[^}}]*\}} (\S+)', page)[0])
            for name in ("replica_routable", "replica_suspect", "replica_returning")
        }
        return tuple(value.values()) == (1, 0, 0)

    async def all_bad(self, failure: Answer) -> tuple[Counter[int], float, int]:
        """Statuses while all replicas fail, the slowest error, and the most attempts of one request."""
        for replica in self.replicas:
            replica.answer = failure
            replica.asked.clear()
        got = await self.many(LAST, LAST)
        attempts = sum((replica.asked for replica in self.replicas), Counter[str]())
        slowest_s = max(took_s for _, _, took_s in got)
        return Counter(status for status, _, _ in got), slowest_s, max(attempts.values())


@contextlib.asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Bench]:
    """A router in front of three replicas."""
    async with contextlib.AsyncExitStack() as stack:
        replicas = tuple(Replica() for _ in range(3))
        urls = tuple([await stack.enter_async_context(one.serving()) for one in replicas])
        contender, place = Evenkeel(sys.executable), Place(*free_ports(3), urls, folder)
        log = stack.enter_context((folder / "router.log").open("ab"))
        router = subprocess.Popen(  # noqa: ASYNC220 - a millisecond
            contender.command(place), stdout=log, stderr=log, env=environment(), cwd=ROOT
        )
        stack.callback(router.wait)
        stack.callback(router.terminate)
        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        bench = Bench(
            await stack.enter_async_context(session), place.port, place.probe_port, replicas
        )
        async with asyncio.timeout(60):
            while not await asyncio.to_thread(contender.ready, place):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        yield bench


async def measured(failure: Answer, folder: Path) -> list[str]:
    """The cells of one row."""
    async with running(folder) as bench:
        new, new_bad = await bench.with_one_bad(failure)
        first_s, trusted_s, wrong = await bench.cured()
        later, later_bad = await bench.with_one_bad(failure)
        statuses, slowest_s, attempts = await bench.all_bad(failure)
    seen = ", ".join(f"{count} × {status}" for status, count in sorted(statuses.items()))
    return [
        f"{new} of {REQUESTS}, {new_bad}", f"{first_s:.1f} s, {trusted_s:.1f} s, {wrong} wrong",
        f"{later} of {REQUESTS}, {later_bad}", f"{seen}; {slowest_s:.1f} s, {attempts}",
    ]  # fmt: skip


def _compute() -> None:
    while True:
        pass


@contextlib.contextmanager
def computing(count: int) -> Iterator[None]:
    """So many processes that compute all the time."""
    processes = [multiprocessing.Process(target=_compute, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="failures whose names contain this")
    parser.add_argument("--busy", type=int, default=0, help="processes that compute meanwhile")
    parser.add_argument("--log", type=Path, help="folder for the router's log")
    arguments = parser.parse_args()
    print(
        "| failure | new: right, at the replica | cured: first answer, trusted | later: right, at the replica | all bad: statuses, slowest, attempts |"
    )
    print("|---|---|---|---|---|")
    if arguments.log is not None:
        arguments.log.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, computing(arguments.busy):
        for name, failure in FAILURES.items():
            if arguments.only in name:
                cells = asyncio.run(measured(failure, arguments.log or Path(folder)))
                print("|", " | ".join([name, *cells]), "|", flush=True)
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
