"""Runs the real SGLang of `make sglang` as a child process, and speaks to it.

It runs `python -m sglang.launch_server` on the CPU, with the plug-in of this checkout. An engine starts in about 20 seconds.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec
import psutil
import pytest
import zmq
from evenkeel_contract.render import (
    COMMON_FLAGS,
    CPU_ENVIRONMENT,
    CPU_FLAGS,
    OFFLINE_ENVIRONMENT,
    SGLANG_MODULE,
)
from evenkeel_contract.reports import (
    REPORT_VERSION,
    ClientReport,
    ReportRequest,
    decode_report,
    encode,
)

ROOT = Path(__file__).parents[2]
READY_S = 900.0
PACE_S = 0.01
"""Between two requests of a queue, so that they arrive in order. A test that depends on more than roughly this order must check it."""
LOOK_S = 0.1
LOOKS_AT_REST = 3
TICK_S = 0.02
"""CPU time that is less than two of Linux's ticks: what a process that rests may use in a look."""

PROBE = ROOT / "tests/sglang/probe"

ENVIRONMENT = {**CPU_ENVIRONMENT, **OFFLINE_ENVIRONMENT}
FLAGS = (
    *CPU_FLAGS, *COMMON_FLAGS, "--host=127.0.0.1", "--random-seed=0", "--max-total-tokens=16384",
)  # fmt: skip
"""Without the last one an engine takes and clears two thirds of the free memory, 12 GB of 18. Where a flag is given twice, the second counts."""


def probed(trace: Path, *, with_plug_in: bool) -> dict[str, str]:
    """Environment of an engine that writes what its scheduler does to `trace` (`probe/evenkeel_probe.py`)."""
    plug_ins = {} if with_plug_in else {"SGLANG_PLUGINS": "probe"}
    return {"PYTHONPATH": str(PROBE), "EVENKEEL_PROBE": str(trace), **plug_ins}


def engine_environment() -> Path | None:
    """The folder of `make sglang`, or that in EVENKEEL_SGLANG; None where neither is."""
    folder = Path(os.environ.get("EVENKEEL_SGLANG", ROOT / ".venv-sglang"))
    return folder if (folder / "bin/python").exists() and (folder / "model").exists() else None


def installed() -> Path:
    """`engine_environment`, where there is one; else the test is skipped."""
    folder = engine_environment()
    if folder is None:
        pytest.skip("the real engine is not installed: make sglang")
    return folder


def environment_of(settings: Mapping[str, str], *, sglang: str | None = None) -> dict[str, str]:
    """Variables of a process of SGLang's Python. `sglang`: another version laid beside the installed one."""
    beside = os.environ.get("EVENKEEL_SGLANG_VERSION", "")  # a folder (`versions`)
    path = [str(installed() / f"sglang-{sglang}")] if sglang else [beside] if beside else []
    path += [settings["PYTHONPATH"]] if "PYTHONPATH" in settings else []
    # This checkout, also where another one is installed.
    parts = ("plugins/sglang", "plugins/common", "contract", "fairshare")
    path += [str(ROOT / part) for part in parts]
    return {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        **ENVIRONMENT,
        **settings,
        "PYTHONPATH": os.pathsep.join(path),
    }


class EngineError(RuntimeError):
    """The engine ended or was not ready in time; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one `/generate`."""

    client: str
    output_ids: tuple[int, ...]
    cached_tokens: int
    finished_s: float
    """Since the engine was let go (`run_queue`)."""


class Engine:
    """One engine process."""

    def __init__(
        self,
        *flags: str,
        log: Path,
        environment: Mapping[str, str] = {},
        sglang: str | None = None,
        wait: bool = True,
    ) -> None:
        """`flags` follow those of the CPU; `sglang`: another version laid beside the installed one."""
        folder = installed()
        self.port = unused_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        self._output = log.open("ab")
        self.process = subprocess.Popen(
            [
                *(str(folder / "bin/python"), "-m", SGLANG_MODULE),
                *("--model-path", str(folder / "model"), "--port", str(self.port)),
                *FLAGS,
                *flags,
            ],
            env=environment_of(environment, sglang=sglang),
            stdout=self._output,
            stderr=subprocess.STDOUT,
            # So that its own children can be ended with it. In a session of its own it would not have the priority of the tests.
            process_group=0,
        )
        if wait:
            try:
                self._await_ready()
            except EngineError:
                self.stop()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def log(self) -> str:
        """All that the engine has printed."""
        return self._log.read_text(errors="replace")

    def stop(self) -> None:
        """Kill the engine and its children: it has nothing to finish, and takes from five seconds to a minute to end by itself."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(READY_S)  # a killed process may still wait for a processor
        self._output.close()

    def wait_ended(self, timeout_s: float = READY_S) -> int:
        """The exit status of an engine that is expected to end by itself."""
        return self.process.wait(timeout_s)

    def metrics(self) -> dict[str, float]:
        """Every sample of `/metrics` by its name with labels."""
        lines = httpx.get(f"{self.url}/metrics").raise_for_status().text.splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    async def run_queue(self, asks: Sequence[Mapping[str, Any]]) -> list[Answer]:
        """Fill the queue in this order while the scheduler is stopped, let it go; answers in the same order.

        Stopped by signal: SGLang's own pause keeps requests back before they reach the scheduler. A stopped scheduler tells nothing
        of its queue. All of it is there once the process that feeds the scheduler is at rest.
        """
        scheduler = self._scheduler()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=self.url, timeout=600, limits=limits) as http:
            scheduler.suspend()
            try:
                tasks = []
                for ask in asks:
                    tasks.append(asyncio.create_task(_ask(http, ask)))
                    await asyncio.sleep(PACE_S)
                await at_rest(psutil.Process(self.process.pid))
            finally:
                scheduler.resume()
            started_s = time.monotonic()
            done = await asyncio.gather(*tasks)
        return [
            Answer(client, tuple(output), cached, finished_s - started_s)
            for client, output, cached, finished_s in done
        ]

    def _scheduler(self) -> psutil.Process:
        for child in psutil.Process(self.process.pid).children(recursive=True):
            if "scheduler" in " ".join(child.cmdline()):
                return child
        raise EngineError("the engine has no scheduler process")

    async def idle(self, http: httpx.AsyncClient) -> None:
        """Wait until nothing runs and nothing waits."""
        while not is_idle(await http.get("/v1/loads")):  # noqa: ASYNC110 (nothing could set an event)
            await asyncio.sleep(LOOK_S)

    def _await_ready(self) -> None:
        deadline_s = time.monotonic() + READY_S
        while time.monotonic() < deadline_s:
            if self.process.poll() is not None:
                raise EngineError(f"the engine ended: {self.log[-3000:]}")
            try:
                if httpx.get(f"{self.url}/ready", timeout=2).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.5)
        raise EngineError(f"the engine is not ready: {self.log[-3000:]}")


async def _ask(
    http: httpx.AsyncClient, ask: Mapping[str, Any]
) -> tuple[str, list[int], int, float]:
    response = await http.post("/generate", json=dict(ask))
    finished_s = time.monotonic()
    body = response.raise_for_status().json()
    cached = body["meta_info"].get("cached_tokens") or 0
    return str(ask.get("routing_key")), body["output_ids"], int(cached), finished_s


def is_idle(answer: httpx.Response) -> bool:
    """Whether an answer of `/v1/loads` says that nothing runs and nothing waits."""
    loads = answer.raise_for_status().json()["loads"]
    return not any(load["num_running_reqs"] or load["num_waiting_reqs"] for load in loads)


async def at_rest(process: psutil.Process) -> None:
    """Wait until a process has nothing more to do: it sleeps, and used no CPU time over some looks."""
    used_s, looks = float("-inf"), 0
    while looks < LOOKS_AT_REST:
        await asyncio.sleep(LOOK_S)
        before_s, used_s = used_s, sum(process.cpu_times()[:2])
        rests = used_s - before_s < TICK_S and process.status() == psutil.STATUS_SLEEPING
        looks = looks + 1 if rests else 0


def ask(
    client: str,
    input_ids: Sequence[int],
    *,
    output_tokens: int = 16,
    weights: tuple[int, int] = (1, 1),
    tenant: str | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """A `/generate` body of a client, its output of a forced length."""
    suffix = f";s={seed}" if seed else ""
    return {
        "input_ids": list(input_ids),
        "sampling_params": {
            "max_new_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0,
        },
        "routing_key": f"ek1;ns/{tenant or client}/{client};w={weights[0]},{weights[1]}{suffix}",
    }


class Since:
    """What an engine reports of its clients since this was made. Engines are shared by tests."""

    SUMS = ("requests", "aborted", "extend_tokens", "cached_tokens", "output_tokens", "service")

    def __init__(self, reports_port: int) -> None:
        self._port = reports_port
        self._before = clients_of(reports_port)

    def rows(self) -> dict[str, ClientReport]:
        """Of clients with a request since; sums are those since."""
        found = {}
        for name, row in clients_of(self._port).items():
            before = self._before.get(name)
            if before is not None:
                grown = {sum_: getattr(row, sum_) - getattr(before, sum_) for sum_ in self.SUMS}
                row = msgspec.structs.replace(row, **grown)
            if row.requests or row.waiting:
                found[name] = row
        return found


def clients_of(reports_port: int) -> dict[str, ClientReport]:
    """What the engine reports of every client, from the start."""
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(f"tcp://127.0.0.1:{reports_port}")
        socket.send(encode(ReportRequest(version=REPORT_VERSION, incarnation="", since=0)))
        assert socket.poll(30_000), "no report"
        return {row.client: row for row in decode_report(socket.recv()).clients}


def tokens(rng: random.Random, count: int) -> list[int]:
    """Random words of the tiny model."""
    return [rng.randrange(2, 1000) for _ in range(count)]


def unused_port() -> int:
    """A port that nobody listens on now, below those that Linux gives away: an engine opens many before it binds it."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port
    raise EngineError("no port is free")
