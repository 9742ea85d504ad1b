"""A router of this checkout in front of engines that run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evenkeel_cli.up import ports

from bench.gpu.engine import HOST, await_ready, launch, stop
from bench.gpu.sending import key_of


def route_document(
    replicas: Mapping[str, tuple[str, int]], clients: Sequence[str]
) -> Mapping[str, Any]:
    """The file of `evenkeel route`. `replicas`: name → (address, port of reports)."""
    return {
        "replicas": [
            {"name": name, "url": url, "reports": f"tcp://{HOST}:{reports}"}
            for name, (url, reports) in replicas.items()
        ],
        "tenants": [{"name": client, "keys": [key_of(client)]} for client in clients],
    }


@contextmanager
def running_router(
    replicas: Mapping[str, tuple[str, int]], clients: Sequence[str], *, log: Path
) -> Iterator[str]:
    """The router's address, from when it is ready; raises `EngineError`."""
    traffic, probe, admin = (ports.free_port(HOST) for _ in range(3))
    file = log.with_suffix(".json")
    file.write_text(json.dumps(route_document(replicas, clients)))
    command = (
        *(sys.executable, "-c", "from evenkeel_cli.entry import main; main()", "route", str(file)),
        *(f"--port={traffic}", f"--probe-port={probe}", f"--admin-port={admin}"),
    )
    process = launch(command, os.environ, log=log)
    try:
        await_ready(process, f"http://{HOST}:{probe}/readyz", log=log, limit_s=60)
        yield f"http://{HOST}:{traffic}"
    finally:
        stop(process)
