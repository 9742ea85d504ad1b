"""A real Prometheus that scrapes what a test runs, as the Prometheus operator would have it by our PodMonitors.

What the Prometheus operator makes of a PodMonitor is done by hand here: job, labels of the pod, port and path.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml
from evenkeel_operator.core.objects import Manifest

from tests.support.ports import free_ports
from tests.support.promtool import program


def scraped(monitor: Manifest, address: str) -> dict[str, Any]:
    """A scrape of one pod, as the Prometheus operator would have it."""
    metadata, spec = monitor["metadata"], monitor["spec"]
    (endpoint,) = spec["podMetricsEndpoints"]
    meta = "__meta_kubernetes_pod_label_"
    pod = {meta + _spelled(key): value for key, value in spec["selector"]["matchLabels"].items()}
    return {
        "job_name": f"{metadata['namespace']}/{metadata['name']}",
        "metrics_path": endpoint["path"],
        "static_configs": [
            {
                "targets": [address],
                "labels": {"namespace": metadata["namespace"], "pod": metadata["name"], **pod},
            }
        ],
        "relabel_configs": [
            {"source_labels": [meta + _spelled(label)], "target_label": _spelled(label)}
            for label in spec["podTargetLabels"]
        ],
    }


def _spelled(label: str) -> str:
    return re.sub(r"\W", "_", label)


@asynccontextmanager
async def prometheus(
    folder: Path, scrapes: list[dict[str, Any]], rules: list[Manifest] | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """Its API, while it scrapes these and evaluates these groups of rules."""
    (port,) = free_ports(1)
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": rules or []}))
    config = {
        "global": {"scrape_interval": "200ms", "evaluation_interval": "200ms", "scrape_timeout": "200ms"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": scrapes,
    }  # fmt: skip
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    process = await asyncio.create_subprocess_exec(
        program("prometheus"), f"--config.file={folder}/prometheus.yaml",
        f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v1") as client:
            yield client
    finally:
        process.kill()
        await process.wait()
