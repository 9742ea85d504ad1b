"""`evenkeel up` with tenants of its own, for programs of others."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from evenkeel_cli.up.ports import free_port

ROOT: Final = Path(__file__).parents[2]
MODEL: Final = "fair"
_START_LIMIT_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet that answers."""

    url: str
    metrics: str
    output: str
    """What `evenkeel up` has printed so far."""


def documents(
    runtime: Mapping[str, Any], router: Mapping[str, Any], tenants: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """A service with one router, its tenants, and their keys: `sk-` and the tenant's name."""
    service = {
        "apiVersion": "evenkeel.dev/v1alpha1",
        "kind": "FairInferenceService",
        "metadata": {"name": "clients"},
        "spec": {
            "model": {"source": "hf://org/model", "servedName": MODEL},
            "engine": dict(runtime),
            "router": {"replicas": 1, **router},
        },
    }
    given = list(tenants)
    keys = {one["metadata"]["name"]: f"sk-{one['metadata']['name']}" for one in given}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "keys"},
        "stringData": keys,
    }
    return [service, *given, secret]


def tenant(name: str, **spec: Any) -> dict[str, Any]:
    """A tenant with one client and one key."""
    key = {"name": "key", "client": "app", "secretRef": {"name": "keys", "key": name}}
    return {
        "apiVersion": "evenkeel.dev/v1alpha1",
        "kind": "InferenceTenant",
        "metadata": {"name": name},
        "spec": {"clients": [{"name": "app"}], "apiKeys": [key], **spec},
    }


@contextmanager
def fleet(
    folder: Path,
    given: list[dict[str, Any]],
    arguments: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Fleet]:
    """A fleet of these documents, ready; `environment` is added to that of its processes."""
    folder.mkdir(exist_ok=True)
    file = folder / "fleet.yaml"
    file.write_text(yaml.safe_dump_all(given, sort_keys=False))
    traffic, probe, admin = (free_port("127.0.0.1") for _ in range(3))
    ports = (f"--port={traffic}", f"--probe-port={probe}", f"--admin-port={admin}")
    evenkeel = str(Path(sys.executable).with_name("evenkeel"))
    log = folder / "up.log"
    with log.open("wb") as output:
        up = subprocess.Popen(
            [evenkeel, "up", str(file), *ports, *arguments, f"--state-dir={folder / 'state'}"],
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        url = f"http://127.0.0.1:{traffic}"
        _wait(url, up, log)
        yield Fleet(url, f"http://127.0.0.1:{probe}/metrics", log.read_text())
    finally:
        up.terminate()
        up.wait(60)


def _wait(url: str, up: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while "Try it:" not in log.read_text():
        if up.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the fleet did not start:\n{log.read_text()}")
        time.sleep(0.2)
    with urllib.request.urlopen(f"{url}/health"):
        pass
