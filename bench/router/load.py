"""A cheap load generator: `python -m bench.router.load --port N --mode stream --rate 300 …`.

Open loop (`--rate`): requests leave at Poisson times, also if earlier ones have no answer yet. Latency counts from the due time
of a request, so a router that stalls cannot hide it. Closed loop (`--connections`): each connection sends its next request once
it has an answer. The generator checks every answer. It acknowledges each read at once, so that a router gains nothing by merging
events; with `--delayed-ack` it uses the system's default. It prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import os
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import uvloop

from bench.router import measure
from bench.router.http1 import Body, FramingError, Head, body_of, split_head
from bench.router.workload import Mode, Question, Usage, Workload, WrongAnswerError, check

_ORDER_SAMPLE = 16  # of so many streams one has the order of its events looked at
_CONNECT_AHEAD = 64


@dataclass(slots=True)
class Answer:
    """The answer to one question, with times in seconds of the monotonic clock."""

    question: Question
    due_s: float
    """When it was due."""
    status: int = 0
    first_s: float = 0.0
    """When the first byte of the body arrived."""
    end_s: float = 0.0
    reads: int = 0
    """How many reads the body took."""
    parts: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class Tally:
    """Outcomes of a run."""

    done: list[Answer] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    unanswered: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def add(self, answer: Answer) -> None:
        """Check an answer and keep its times."""
        body = b"".join(answer.parts)
        answer.parts.clear()
        try:
            order = len(self.done) % _ORDER_SAMPLE == 0
            usage: Usage = check(answer.question, answer.status, body, order=order)
        except (WrongAnswerError, json.JSONDecodeError, KeyError) as error:
            self.errors[f"{type(error).__name__}: {error}"[:200]] += 1
            return
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.done.append(answer)


class Connection(asyncio.Protocol):
    """One connection to the router, one question at a time."""

    def __init__(
        self, freed: Callable[[Connection], None], tally: Tally, quick: socket.socket | None
    ) -> None:
        """`quick`: its socket, if every read is acknowledged at once."""
        self._freed = freed
        self._tally = tally
        self._quick = quick
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._head: Head | None = None
        self._body: Body | None = None
        self._data = b""

    @property
    def open(self) -> bool:
        """Whether it can still be used."""
        return self._transport is not None

    def ask(self, question: Question, due_s: float) -> None:
        """Send; the answer goes to the tally."""
        assert self._transport is not None and self._answer is None
        self._answer = Answer(question, due_s)
        self._transport.write(question.wire)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def connection_lost(self, exc: Exception | None) -> None:
        """A connection that is lost with a question open is an error."""
        self._transport = self._quick = None
        if self._answer is not None:
            self._tally.errors[f"connection lost: {exc}"] += 1
            self._answer = None

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        if self._quick is not None:
            self._quick.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        answer = self._answer
        if answer is None:
            self._tally.errors["bytes without a request"] += 1
            return
        try:
            self._read(answer, data)
        except FramingError as error:
            self._tally.errors[f"FramingError: {error}"] += 1
            self._answer = None
            self.close()

    def _read(self, answer: Answer, data: bytes) -> None:
        body = self._body
        if body is None:
            found = split_head(self._data + data)
            if found is None:
                self._data += data
                return
            self._data = b""
            head, data = found
            answer.status = head.status
            body = self._body = body_of(head)
        if not body.done and data:
            piece = body.feed(data)
            if piece:
                if not answer.parts:
                    answer.first_s = time.monotonic()
                answer.reads += 1
                answer.parts.append(piece)
        if body.done:
            answer.end_s = time.monotonic()
            self._body = self._answer = None
            self._tally.add(answer)
            self._freed(self)


class Alarm:
    """A timer of the kernel that is precise to microseconds; those of the loops are to milliseconds."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = int(self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK))
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._ring = ring
        asyncio.get_running_loop().add_reader(self._fd, self._fired)

    def set(self, at_s: float) -> None:
        """Set the timer to a time of the monotonic clock; a past time fires at once."""
        seconds, fraction = divmod(max(at_s, 1e-6), 1.0)
        new = struct.pack("qqqq", 0, 0, int(seconds), int(fraction * 1e9))
        if self._libc.timerfd_settime(self._fd, 1, new, None) != 0:  # 1: absolute
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        """Stop the timer."""
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)

    def _fired(self) -> None:
        os.read(self._fd, 8)
        self._ring()


class Load:
    """Sends a workload until it is stopped."""

    def __init__(self, port: int, workload: Workload, tally: Tally, *, delayed_ack: bool) -> None:
        self._port = port
        self._workload = workload
        self._tally = tally
        self._delayed_ack = delayed_ack
        self._idle: list[Connection] = []
        self._all: list[Connection] = []
        self._connecting: set[asyncio.Task[None]] = set()
        self.under_way = 0
        self._drained = asyncio.Event()

    async def _connect(self, question: Question | None, due_s: float) -> None:
        loop = asyncio.get_running_loop()
        own = socket.socket()
        own.setblocking(False)
        quick = None if self._delayed_ack else own
        try:
            await loop.sock_connect(own, ("127.0.0.1", self._port))
            _, connection = await loop.create_connection(
                lambda: Connection(self._freed, self._tally, quick), sock=own
            )
        except OSError as error:
            own.close()
            self._tally.errors[f"connect: {error.strerror}"] += 1
            self.under_way -= question is not None
            return
        self._all.append(connection)
        if question is None:
            self._idle.append(connection)
        else:
            connection.ask(question, due_s)

    def _freed(self, connection: Connection) -> None:
        self.under_way -= 1
        self._idle.append(connection)
        if not self.under_way:
            self._drained.set()

    def send(self, due_s: float) -> None:
        """Send the next question over an idle connection, or over a new one."""
        self.under_way += 1
        question = self._workload.ask()
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                connection.ask(question, due_s)
                return
        task = asyncio.get_running_loop().create_task(self._connect(question, due_s))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def open_loop(self, rate_per_s: float, until_s: float, rng: random.Random) -> None:
        """Poisson arrivals until a time of the monotonic clock."""
        for _ in range(_CONNECT_AHEAD):
            await self._connect(None, 0.0)
        over = asyncio.Event()
        due_s = time.monotonic() + rng.expovariate(rate_per_s)

        def ring() -> None:
            nonlocal due_s
            now_s = time.monotonic()
            while due_s <= now_s:
                self.send(due_s)
                due_s += rng.expovariate(rate_per_s)
            if due_s < until_s:
                alarm.set(due_s)
            else:
                over.set()

        alarm = Alarm(ring)
        alarm.set(due_s)
        await over.wait()
        alarm.close()

    async def closed_loop(self, connections: int, until_s: float) -> None:
        """Each connection sends its next question after an answer."""
        again = self._freed

        def freed(connection: Connection) -> None:
            again(connection)
            if time.monotonic() < until_s:
                self.send(time.monotonic())

        self._freed = freed  # type: ignore[method-assign]  # connections made from here on ask again
        for _ in range(connections):
            self.send(time.monotonic())
        await asyncio.sleep(until_s - time.monotonic())

    async def drain(self, timeout_s: float) -> None:
        """Wait for open questions; those without an answer count as infinitely late."""
        if self.under_way:
            self._drained.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), timeout_s)
        self._tally.unanswered = self.under_way
        for connection in self._all:
            connection.close()


@dataclass(frozen=True, slots=True)
class Window:
    """The measured part of a run, and the router's CPU in it."""

    start_s: float
    end_s: float
    router_cpu_s: float
    own_cpu_s: float


async def _watch(pid: int, start_s: float, end_s: float) -> Window:
    await asyncio.sleep(start_s - time.monotonic())
    before, own, began_s = measure.cpu_s(pid), time.process_time(), time.monotonic()
    await asyncio.sleep(end_s - time.monotonic())
    used, now_s = measure.cpu_s(pid) - before, time.monotonic()
    return Window(began_s, now_s, used, time.process_time() - own)


def summary(tally: Tally, window: Window) -> dict[str, object]:
    """The figures of one run. Rates and CPU cover answers that ended in the window, latencies questions that were due in it."""
    ended = [a for a in tally.done if window.start_s <= a.end_s < window.end_s]
    due = [a for a in tally.done if window.start_s <= a.due_s < window.end_s]
    streams = [a for a in ended if a.question.stream]
    never = [float("inf")] * tally.unanswered
    ttft_s = [a.first_s - a.due_s for a in due] + never
    total_s = [a.end_s - a.due_s for a in due] + never
    seconds = window.end_s - window.start_s
    return {
        "requests": len(ended),
        "requests_per_s": len(ended) / seconds,
        "router_cpu_s": window.router_cpu_s,
        "router_busy": window.router_cpu_s / seconds,
        "load_busy": window.own_cpu_s / seconds,
        "cpu_us_per_request": 1e6 * window.router_cpu_s / len(ended) if ended else None,
        "requests_per_cpu_s": len(ended) / window.router_cpu_s if window.router_cpu_s else None,
        "ttft_p50_ms": 1e3 * measure.quantile(ttft_s, 0.5),
        "ttft_p99_ms": 1e3 * measure.quantile(ttft_s, 0.99),
        "total_p50_ms": 1e3 * measure.quantile(total_s, 0.5),
        "total_p99_ms": 1e3 * measure.quantile(total_s, 0.99),
        "events_per_read": (
            sum(a.question.events + 1 for a in streams) / sum(a.reads for a in streams)
            if streams
            else None
        ),
        "hit_rate": tally.cached_tokens / tally.prompt_tokens if tally.prompt_tokens else 0.0,
        "unanswered": tally.unanswered,
        "errors": dict(tally.errors),
    }


async def run(arguments: argparse.Namespace) -> dict[str, object]:
    """One run."""
    workload = Workload(
        Mode(arguments.mode),
        keys=arguments.key,
        events=arguments.events,
        prompt_bytes=arguments.prompt_bytes,
        seed=arguments.seed,
    )
    tally = Tally()
    load = Load(arguments.port, workload, tally, delayed_ack=arguments.delayed_ack)
    start_s = time.monotonic() + arguments.warmup_s
    end_s = start_s + arguments.seconds
    watch = asyncio.create_task(_watch(arguments.pid, start_s, end_s))
    if arguments.rate:
        await load.open_loop(arguments.rate, end_s + 0.05, random.Random(arguments.seed))
    else:
        await load.closed_loop(arguments.connections, end_s + 0.05)
    window = await watch
    await load.drain(arguments.drain_s)
    return summary(tally, window)


def parser() -> argparse.ArgumentParser:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument(
        "--pid", type=int, default=os.getpid(), help="process id of the router to measure"
    )
    parser.add_argument("--mode", choices=[m.value for m in Mode], default=Mode.UNARY.value)
    parser.add_argument("--rate", type=float, default=0.0, help="requests per second, open loop")
    parser.add_argument(
        "--connections", type=int, default=32, help="number of connections of the closed loop"
    )
    parser.add_argument("--events", type=int, default=64, help="output tokens, one event each")
    parser.add_argument("--prompt-bytes", type=int, default=2048, help="bytes of the shared prefix")
    parser.add_argument("--key", action="append", default=None, help="API keys of the clients")
    parser.add_argument(
        "--delayed-ack",
        action="store_true",
        help="acknowledge up to 40 ms late, as Linux does by default",
    )
    parser.add_argument("--warmup-s", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--drain-s", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def main() -> None:
    """Command line."""
    arguments = parser().parse_args()
    arguments.key = arguments.key or ["sk-none"]
    print(json.dumps(uvloop.run(run(arguments))))


if __name__ == "__main__":
    main()
