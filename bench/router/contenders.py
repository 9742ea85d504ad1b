"""The routers under test: start, readiness and version of each."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from evenkeel_contract import routerconfig as rc
from evenkeel_contract.decode import to_plain
from evenkeel_contract.queueorder import QueueOwner

from bench.router.worker import MODEL

KEYS = tuple(f"sk-bench-{i}" for i in range(4))


@dataclass(frozen=True, slots=True)
class Place:
    """The ports of a router and the workers behind it."""

    port: int
    probe_port: int
    admin_port: int
    workers: tuple[str, ...]
    folder: Path
    """Folder of its configuration."""


class Contender(ABC):
    """One router."""

    name: str

    @abstractmethod
    def command(self, place: Place) -> list[str]:
        """The command that starts it in the foreground."""

    @abstractmethod
    def ready(self, place: Place) -> bool:
        """Whether it routes to every worker."""

    @abstractmethod
    def version(self) -> str:
        """Name and version, for the report."""


class Evenkeel(Contender):
    """This router with everything on: keys, index, D2LPM, accounting, metrics, access log."""

    name = "evenkeel"
    queue = QueueOwner.ENGINE

    def __init__(self, python: str) -> None:
        self._python = python

    def command(self, place: Place) -> list[str]:
        """See `Contender`."""
        tenants = tuple(
            rc.TenantConfig(
                namespace="bench",
                name=f"tenant-{i}",
                clients=(rc.ClientConfig(name="app"),),
                api_keys=(
                    rc.ApiKeyConfig(
                        name="key", client="app", sha256=hashlib.sha256(key.encode()).hexdigest()
                    ),
                ),
            )
            for i, key in enumerate(KEYS)
        )
        config = rc.RouterConfig(
            namespace="bench",
            service="bench",
            model=MODEL,
            listen=rc.ListenConfig(
                traffic_port=place.port, probe_port=place.probe_port, admin_port=place.admin_port
            ),
            tenancy=rc.TenancyConfig(tenants=tenants),
            scheduling=rc.SchedulingConfig(queue=self.queue),
            replicas=tuple(
                rc.ReplicaConfig(name=f"worker-{i}", url=url) for i, url in enumerate(place.workers)
            ),
        )
        path = place.folder / "router.json"
        path.write_text(json.dumps(to_plain(config)))
        return [self._python, "-m", "evenkeel_router", "--config", str(path)]

    def ready(self, place: Place) -> bool:
        """See `Contender`."""
        return _get(place.probe_port, "/readyz") is not None

    def version(self) -> str:
        """See `Contender`."""
        try:
            return f"evenkeel ({_run('git', 'describe', '--always', '--dirty')})"
        except (OSError, subprocess.CalledProcessError):  # no git, or a copy without its history
            return "evenkeel"


class GatedEvenkeel(Evenkeel):
    """The same, and it orders the queues of the replicas (R12)."""

    name = "evenkeel-gate"
    queue = QueueOwner.ROUTER


class SglangRouter(Contender):
    """The Rust router with its defaults: one log line when a request starts and one when it ends."""

    name = "sglang-router"
    flags: tuple[str, ...] = ()

    def __init__(self, venv: Path) -> None:
        self._bin = venv / "bin"

    def command(self, place: Place) -> list[str]:
        """See `Contender`."""
        return [
            str(self._bin / "sglang-router"),
            "launch",
            "--host=127.0.0.1",
            f"--port={place.port}",
            f"--prometheus-port={place.probe_port}",
            "--prometheus-host=127.0.0.1",
            "--policy=cache_aware",
            *self.flags,
            "--worker-urls",
            *place.workers,
        ]

    def ready(self, place: Place) -> bool:
        """See `Contender`."""
        answer = _get(place.port, "/workers")
        if answer is None:
            return False
        healthy = [worker for worker in json.loads(answer)["workers"] if worker["is_healthy"]]
        return len(healthy) == len(place.workers)

    def version(self) -> str:
        """See `Contender`."""
        code = "import sglang_router.version as v; print(v.__version__)"
        return f"{self.name} {_run(str(self._bin / 'python'), '-c', code)}"


class QuietSglangRouter(SglangRouter):
    """The Rust router without its log."""

    name = "sglang-router-quiet"
    flags = ("--log-level=error",)


class BareProxy(Contender):
    """aiohttp and uvloop, which only forward."""

    name = "bare-proxy"
    module = "bench.router.bare_proxy"

    def __init__(self, python: str) -> None:
        self._python = python

    def command(self, place: Place) -> list[str]:
        """See `Contender`."""
        workers = [f"--worker={url}" for url in place.workers]
        return [self._python, "-m", self.module, f"--port={place.port}", *workers]

    def ready(self, place: Place) -> bool:
        """See `Contender`."""
        return _get(place.port, "/ready") is not None

    def version(self) -> str:
        """See `Contender`."""
        code = "import aiohttp, uvloop; print('aiohttp', aiohttp.__version__, 'uvloop', uvloop.__version__)"
        return f"{self.name} ({_run(self._python, '-c', code)})"


class ByteRelay(BareProxy):
    """uvloop that copies bytes: the least cost."""

    name = "byte-relay"
    module = "bench.router.byte_relay"


def contenders(venv: Path, python: str = sys.executable) -> dict[str, Contender]:
    """All of them by name; those written in Python run on `python`."""
    all_of_them = (
        Evenkeel(python),
        GatedEvenkeel(python),
        SglangRouter(venv),
        QuietSglangRouter(venv),
        BareProxy(python),
        ByteRelay(python),
    )
    return {contender.name: contender for contender in all_of_them}


def _get(port: int, path: str) -> bytes | None:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as answer:
            body: bytes = answer.read()
            return body
    except (URLError, ConnectionError, TimeoutError):
        return None


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
