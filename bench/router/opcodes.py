"""Opcodes of one request in the router, by function: `python -m bench.router.opcodes --mode unary`.

A busy machine changes CPU time by up to two times, and this count not at all. The router runs in this process with the settings of
`bench.router.run`, before its fake workers. Only work of requests counts: what begins at a read of a socket. The median of the
requests is printed, with the calls of Python functions, and the functions that take most.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median
from types import CodeType, FrameType
from typing import Any

import uvloop
from evenkeel_router.app import running
from evenkeel_router.cluster.config_watch import load

from bench.router.contenders import KEYS, Evenkeel, GatedEvenkeel, Place
from bench.router.run import free_ports, process
from bench.router.worker import DONE
from bench.router.workload import Mode, Workload

_ROOT = Path(__file__).resolve().parents[2]
_EDGE = "/evenkeel_router/transport/"


class Count:
    """Opcodes and calls by function, while `sys.settrace` has its `call`."""

    def __init__(self) -> None:
        self.opcodes: Counter[CodeType] = Counter()
        self.calls: Counter[CodeType] = Counter()

    def call(self, frame: FrameType, event: str, _argument: Any) -> Any:
        """A function is called, or a coroutine goes on."""
        above: FrameType | None = frame
        begin = ""
        while above is not None:
            if "/evenkeel_" in above.f_code.co_filename:
                begin = above.f_code.co_filename
            above = above.f_back
        if _EDGE not in begin:
            return None
        self.calls[frame.f_code] += 1
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._step

    def _step(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "opcode":
            self.opcodes[frame.f_code] += 1
        return self._step


def ask(connection: socket.socket, workload: Workload) -> None:
    """Send one request and read its whole answer."""
    question = workload.ask()
    connection.sendall(question.wire)
    got = b""
    while not got.endswith(DONE + b"\r\n0\r\n\r\n" if question.stream else b"}}"):
        got += connection.recv(65536)


async def counted(arguments: argparse.Namespace, folder: Path) -> list[Count]:
    """A count for each request, after a warm-up."""
    ports = free_ports(5)
    urls = tuple(f"http://127.0.0.1:{port}" for port in ports[3:])
    contender = (GatedEvenkeel if arguments.gate else Evenkeel)(sys.executable)
    command = contender.command(Place(*ports[:3], urls, folder))
    config, faults, _ = load(Path(command[-1]))
    assert config is not None, faults
    mode = Mode(arguments.mode)
    workload = Workload(mode, keys=list(KEYS), events=arguments.events, prompt_bytes=2048, seed=0)
    counts = []
    with contextlib.ExitStack() as stack:
        for port in ports[3:]:
            worker = [sys.executable, "-m", "bench.router.worker", f"--port={port}", "--pace-ms=1"]
            stack.enter_context(process(worker, cpu=0, log=folder / f"worker-{port}.log"))
        log = stack.enter_context((folder / "requests.log").open("w"))
        async with running(config, log_output=log) as router:
            while not router.rooms.replicas.fleet.routable:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.05)
            client = await asyncio.to_thread(
                socket.create_connection, ("127.0.0.1", router.traffic_port)
            )
            with client:
                for number in range(arguments.warmup + arguments.requests):
                    count = Count()
                    if number >= arguments.warmup:
                        counts.append(count)
                        sys.settrace(count.call)
                    await asyncio.to_thread(ask, client, workload)
                    await asyncio.sleep(0.005)  # until the request has ended in the router
                    sys.settrace(None)
    return counts


def name_of(code: CodeType) -> str:
    """File and function."""
    path = code.co_filename
    where = path.removeprefix(f"{_ROOT}/") if path.startswith(str(_ROOT)) else path[-40:]
    return f"{where}:{code.co_qualname}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=["unary", "stream"], default="unary")
    parser.add_argument("--events", type=int, default=8)
    parser.add_argument("--gate", action="store_true")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=300)
    parser.add_argument("--top", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        counts = uvloop.run(counted(arguments, Path(folder)))
    opcodes = median(count.opcodes.total() for count in counts)
    calls = median(count.calls.total() for count in counts)
    print(f"{arguments.mode}: {opcodes:.0f} opcodes, {calls:.0f} calls a request")
    together = Count()
    for count in counts:
        together.opcodes += count.opcodes
        together.calls += count.calls
    for code, number in together.opcodes.most_common(arguments.top):
        each = len(counts)
        print(f"{number / each:7.1f} {together.calls[code] / each:6.1f}  {name_of(code)}")


if __name__ == "__main__":
    main()
