"""A real Prometheus beside the cluster: it reads routers' metrics through the API server, and the operator reads it.

On a cluster of one's own (`E2E_KUBECONFIG`): `E2E_HOST` is this machine's address as the cluster's pods see it.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from e2e.installed import Namespace
from e2e.operators import wait_until
from e2e.rig.layout import HOST_IP, HOST_LINK, NODES, SERVICE_CIDR, in_url
from images.commands import run


def host() -> str:
    """The address of this machine for pods; skips the test if it is unknown."""
    if "E2E_KUBECONFIG" in os.environ and "E2E_HOST" not in os.environ:
        pytest.skip("E2E_HOST says how pods reach this machine")
    return os.environ.get("E2E_HOST", HOST_IP)


def free_port() -> int:
    """A port of this machine's address that nothing listens on."""
    family = socket.AF_INET6 if ":" in host() else socket.AF_INET
    with socket.create_server((host(), 0), family=family) as held:
        return int(held.getsockname()[1])


@contextmanager
def routes() -> Iterator[None]:
    """This machine reaches pods and Services of the rig at their addresses, as clients and a Prometheus in the cluster do."""
    ways = {node.pod_cidr: node.ip for node in NODES} | {SERVICE_CIDR: NODES[0].ip}
    for cidr, address in ways.items():
        run("ip", "route", "replace", cidr, "via", address, "dev", HOST_LINK)
    try:
        yield
    finally:
        for cidr in ways:
            subprocess.run(["ip", "route", "del", cidr], capture_output=True, check=False)


def targets(team: Namespace, service: str, proxy: str) -> list[dict[str, Any]]:
    """Every router of a service with the labels that its PodMonitor gives, over `kubectl proxy` at `proxy`."""
    return [
        {
            "targets": [proxy.removeprefix("http://")],
            "labels": {
                "__metrics_path__": f"/api/v1/namespaces/{team.name}/pods/{pod}:8081/proxy/metrics",
                "namespace": team.name,
                "pod": pod,
                "evenkeel_dev_service": service,
            },
        }
        for pod in team.pods(service, "router")
    ]


def configuration() -> dict[str, Any]:
    """Debian's Prometheus has no Kubernetes discovery: its targets are in a file."""
    scrape = {"job_name": "routers", "file_sd_configs": [{"files": ["routers.json"]}]}
    return {"global": {"scrape_interval": "2s", "scrape_timeout": "2s"}, "scrape_configs": [scrape]}


@dataclass(slots=True)
class PrometheusServer:
    """A Prometheus that can be stopped and restarted with its data."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = field(default=None)
    client: httpx.Client = field(default_factory=httpx.Client)

    @property
    def url(self) -> str:
        return f"http://{in_url(host())}:{self.port}"

    def start(self) -> None:
        """Until it answers."""
        program = shutil.which("prometheus")
        if program is None:
            pytest.skip("no prometheus: `make tools` installs it on Debian")
        command = [program, f"--config.file={self.folder}/prometheus.yaml",
                   f"--storage.tsdb.path={self.folder}/data",
                   f"--web.listen-address={in_url(host())}:{self.port}"]  # fmt: skip
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(self.answers, "Prometheus")

    def follow(self, team: Namespace, *services: str, proxy: str) -> None:
        """Scrape the routers that the services have now, and no others."""
        path = self.folder / "routers.json"
        found = [one for service in services for one in targets(team, service, proxy)]
        path.with_suffix(".new").write_text(json.dumps(found))
        path.with_suffix(".new").replace(path)

    def ask(self, query: str) -> float | None:
        """The only sample of an answer; None without one."""
        answer = self.client.get(f"{self.url}/api/v1/query", params={"query": query})
        found = answer.raise_for_status().json()["data"]["result"]
        return float(found[0]["value"][1]) if found else None

    def answers(self) -> bool:
        """Whether it is up."""
        with suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/-/ready").is_success
        return False

    def stop(self) -> None:
        """At once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextmanager
def scraping(folder: Path) -> Iterator[PrometheusServer]:
    """A Prometheus without targets."""
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration()))
    server = PrometheusServer(folder, free_port())
    server.start()
    try:
        with server.client:
            yield server
    finally:
        server.stop()
