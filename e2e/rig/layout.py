"""Where the rig keeps what, and the addresses of its cluster."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from images import cache

KUBERNETES_VERSION: Final = "v1.35.4"

SOURCE: Final = Path(__file__).parent
REPOSITORY: Final = SOURCE.parents[1]
CACHE: Final = cache.CACHE
STATE: Final = Path(os.environ.get("E2E_STATE", "/var/tmp/evenkeel-e2e"))
"""Everything that one cluster leaves on disk; `down` removes it."""

# One bridge carries all nodes; the host has an end of it, so tests reach API server and ingress.
HOST_IP: Final = "10.88.0.1"
HOST_LINK: Final = "evenkeel-e2e"
UNDERLAY: Final = "10.88.0.0/24"
SERVICE_CIDR: Final = "10.96.0.0/16"
API_SERVICE_IP: Final = "10.96.0.1"
DNS_IP: Final = "10.96.0.10"
POD_CIDR: Final = "10.244.0.0/16"
API_PORT: Final = 6443


@dataclass(frozen=True, slots=True)
class Node:
    """One node: where its network and its files are."""

    name: str
    ip: str
    pod_cidr: str

    @property
    def folder(self) -> Path:
        return STATE / self.name

    @property
    def cgroup(self) -> str:
        """Parent of the node's pods in every control-group hierarchy."""
        return f"/evenkeel-e2e/{self.name}"


NODES: Final = (
    Node("node-1", "10.88.0.11", "10.244.1.0/24"),
    Node("node-2", "10.88.0.12", "10.244.2.0/24"),
)
CONTROL_PLANE: Final = NODES[0]
API_SERVER: Final = f"https://{CONTROL_PLANE.ip}:{API_PORT}"
KUBECONFIG: Final = STATE / "admin.kubeconfig"
AUDIT_LOG: Final = STATE / "logs" / "audit.jsonl"
