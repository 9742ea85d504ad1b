"""A real Prometheus that scrapes what a test runs, as the Prometheus operator would have it by our PodMonitors.

What the Prometheus operator makes of a PodMonitor is done by hand here: job, labels of the pod, port and path.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml
from evenkeel_operator.core.objects import Manifest
from evenkeel_operator.desired import build_all
from evenkeel_operator.manifests.context import BuildContext

from monitoring.generate import HERE
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


def plainly_scraped(context: BuildContext, addresses: Mapping[str, str]) -> list[dict[str, Any]]:
    """The shipped scrape configuration over pods of a service. The discovery of pods is done by hand here: each port of each
    container is a target, with the labels of `role: pod`."""
    pods = {
        item["spec"]["template"]["metadata"]["labels"]["evenkeel.dev/component"]: item
        for item in build_all(context, replicas=1)
        if item["kind"] == "Deployment"
    }
    targets = []
    for component, deployment in pods.items():
        template = deployment["spec"]["template"]
        for port in template["spec"]["containers"][0]["ports"]:
            labels = {
                "__meta_kubernetes_namespace": context.namespace,
                "__meta_kubernetes_pod_name": deployment["metadata"]["name"],
                "__meta_kubernetes_pod_phase": "Running",
                "__meta_kubernetes_pod_container_port_name": port["name"],
                **{
                    f"__meta_kubernetes_pod_label_{_spelled(label)}": value
                    for label, value in template["metadata"]["labels"].items()
                },
            }
            targets.append({"targets": [addresses[component]], "labels": labels})
    shipped = yaml.safe_load((HERE / "scrape.yaml").read_text())["scrape_configs"]
    for scrape in shipped:
        assert scrape.pop("kubernetes_sd_configs") == [{"role": "pod"}]
        scrape["static_configs"] = targets
    return list(shipped)


def _spelled(label: str) -> str:
    return re.sub(r"\W", "_", label)


@asynccontextmanager
async def prometheus(
    folder: Path,
    scrapes: list[dict[str, Any]],
    rules: list[Manifest] | None = None,
    *,
    every: str = "200ms",
) -> AsyncIterator[httpx.AsyncClient]:
    """Its API, while it scrapes these and evaluates these groups of rules."""
    (port,) = free_ports(1)
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": rules or []}))
    config = {
        "global": {"scrape_interval": every, "evaluation_interval": every, "scrape_timeout": every},
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
