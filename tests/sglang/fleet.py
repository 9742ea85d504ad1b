"""`evenkeel up` with the real engine, for the suite: one supervisor, its replicas and router, and load on them.

It runs `evenkeel up FILE --sglang … --model …`: two SGLangs and a router. A fleet starts in half a minute on an idle machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import aiohttp
import httpx
import msgspec
import psutil
from evenkeel_cli.up.record import FleetRecord
from evenkeel_contract.adminstate import STATE_PATH, ReplicaState, RouterState, decode_state

from tests.sglang.engine import ROOT

START_S = 600.0
"""Two engines that start at once on two busy cores."""
STOP_S = 120.0
_LOOK_S = 0.2
OUTPUT_TOKENS = 128
"""Of the flood's answers. Long, so that the engines have more to do than the one process that asks them."""
_SOURCES = ("fairshare", "contract", "kube", "simulator", "router", "cli")


def _samples(url: str) -> dict[str, float]:
    text = httpx.get(url, trust_env=False).raise_for_status().text
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    samples = (line.rsplit(" ", 1) for line in lines)
    return {sample: float(value) for sample, value in samples}


def source_environment() -> dict[str, str]:
    """What a child process needs to import this source tree, installed or not."""
    path = os.pathsep.join(str(ROOT / source) for source in _SOURCES)
    return {**os.environ, "PYTHONPATH": path}


class Service(NamedTuple):
    """Of one tenant, weighted tokens since ever."""

    given: float
    owed: float


class Fleet:
    """One `evenkeel up`, seen through its output, its ports and its processes."""

    def __init__(
        self, folder: Path, *, file: str, environment: Path, option: str = "--sglang"
    ) -> None:
        """`environment`: that of `make sglang` or of `option`'s engine, with its tiny model."""
        self._folder = folder
        self._log = folder / "up.log"
        (folder / "fleet.yaml").write_text(file)
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-c", "from evenkeel_cli.main import main; main()"),
                    *("up", str(folder / "fleet.yaml"), "--port=0"),
                    *(f"{option}={environment}", f"--model={environment / 'model'}"),
                ],
                cwd=folder,
                env=source_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def __enter__(self) -> Self:
        try:
            self.until(lambda: "Try it:" in self.output)
        except BaseException:
            self.stop()
            raise
        self.url = self._found(r"router  (http://\S+)/v1")
        self.admin_url = self._found(r"evenkeel top --url (http://\S+)")
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def output(self) -> str:
        return self._log.read_text()

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition of other processes."""
        deadline_s = time.monotonic() + START_S
        while not condition():
            assert self.process.poll() is None, f"it ended:\n{self.output}"
            assert time.monotonic() < deadline_s, f"it took too long:\n{self.output}"
            time.sleep(_LOOK_S)

    def stop(self) -> int:
        """End it in order; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_S)
        finally:
            self.process.kill()

    def pids(self) -> dict[str, int]:
        """Every process of the fleet that is written down."""
        (file,) = (self._folder / ".evenkeel").glob("*/state.json")
        record = msgspec.json.decode(file.read_bytes(), type=FleetRecord)
        return {process.name: process.pid for process in record.processes}

    def family(self) -> list[psutil.Process]:
        """The supervisor's processes and all that they started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def state(self) -> RouterState:
        return decode_state(httpx.get(self.admin_url + STATE_PATH, trust_env=False).content)

    def replica(self, name: str) -> ReplicaState:
        """What the router knows of a replica."""
        (found,) = (replica for replica in self.state().replicas if replica.name == name)
        return found

    def metrics(self, name: str) -> dict[str, float]:
        """Every sample of a replica's `/metrics` by its name with labels."""
        return _samples(f"{self.replica(name).url}/metrics")

    def prediction(self) -> dict[str, tuple[float, float]]:
        """Mode → cached tokens that the router expected, and that engines reported."""
        samples = _samples(f"http://127.0.0.1:{self._told()['listen']['probePort']}/metrics")
        found = {}
        for sample, predicted in samples.items():
            if sample.startswith("evenkeel_router_prefix_predicted_tokens_total"):
                mode = re.search(r'mode="(\w+)"', sample)
                assert mode is not None
                found[mode[1]] = (predicted, samples[sample.replace("predicted", "reported")])
        return found

    def reports_port(self, name: str) -> int:
        """Where a replica reports."""
        for replica in self._told()["replicas"]:
            if replica["name"] == name:
                return int(replica["reports"].rpartition(":")[2])
        raise AssertionError(f"{name} is not in the router's configuration")

    def _told(self) -> dict[str, Any]:
        """What the router is told."""
        (file,) = (self._folder / ".evenkeel").glob("*/router.json")
        return dict(json.loads(file.read_text()))

    def service(self) -> dict[str, Service]:
        """What each tenant was given by the whole fleet, and what it was owed."""
        return {
            tenant.name: Service(tenant.service, tenant.owed) for tenant in self.state().tenants
        }

    def _found(self, pattern: str) -> str:
        found = re.search(pattern, self.output)
        assert found is not None, self.output
        return found[1]


@dataclass(frozen=True, slots=True)
class Streamed:
    """What came of one streamed chat completion."""

    pieces: int
    """Events with content."""
    usage: Mapping[str, Any]
    failure: str = ""
    """Empty, or how it ended without an end."""


async def stream(
    http: aiohttp.ClientSession, key: str, text: str, *, output_tokens: int
) -> Streamed:
    """One streamed chat completion of a forced length."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"Authorization": f"Bearer {key}"}
    async with http.post("/v1/chat/completions", json=body, headers=headers) as response:
        data = await response.read()
        if response.status != 200:
            return Streamed(0, {}, f"{response.status} {data!r}")
    lines = data.decode().split("\n\n")
    done = "data: [DONE]" in lines
    texts = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
    events = [json.loads(text) for text in texts]
    failures = [str(event["error"]) for event in events if "error" in event]
    usage = next((event["usage"] for event in reversed(events) if event.get("usage")), {})
    pieces = sum(
        bool(choice["delta"].get("content"))
        for event in events
        for choice in event.get("choices", ())
    )
    return Streamed(pieces, usage, "; ".join(failures) or ("" if done else "it broke off"))


def session(url: str) -> aiohttp.ClientSession:
    """As many connections as there are requests."""
    return aiohttp.ClientSession(
        url, connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=START_S)
    )


@dataclass(slots=True)
class Load:
    """Clients that always have as many requests open as they may."""

    answered: Counter[str] = field(default_factory=Counter)
    """By API key."""
    failures: list[str] = field(default_factory=list)
    cached: Counter[str] = field(default_factory=Counter)
    """Input tokens that the engine found in its cache, by API key."""
    inputs: Counter[str] = field(default_factory=Counter)


@asynccontextmanager
async def flooded(url: str, keys: Sequence[str], *, each: int) -> AsyncIterator[Load]:
    """`each` streams of every key, each followed by the next; all of a key begin alike."""
    load = Load()
    async with session(url) as http:

        async def one_after_another(key: str, number: int) -> None:
            rng = random.Random(f"{key} {number}")
            while True:
                text = f"{key} " * 40 + " ".join(str(rng.randrange(10**6)) for _ in range(8))
                answer = await stream(http, key, text, output_tokens=OUTPUT_TOKENS)
                if answer.failure:
                    load.failures.append(answer.failure)
                    continue
                load.answered[key] += 1
                load.inputs[key] += answer.usage["prompt_tokens"]
                details = answer.usage.get("prompt_tokens_details") or {}
                load.cached[key] += details.get("cached_tokens") or 0

        tasks = [
            asyncio.create_task(one_after_another(key, number))
            for key in keys
            for number in range(each)
        ]
        try:
            yield load
            for task in tasks:
                assert not task.done(), task.exception()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
