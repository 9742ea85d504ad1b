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
IPV6: Final = os.environ.get("E2E_FAMILY") == "IPv6"
"""Whether nodes, pods and Services have IPv6 addresses and no others. Such a cluster may run beside the usual one."""
NAME: Final = "evenkeel-e2e-6" if IPV6 else "evenkeel-e2e"
STATE: Final = Path(os.environ.get("E2E_STATE", f"/var/tmp/{NAME}"))
"""Everything that one cluster leaves on disk; `down` removes it."""

# One bridge carries all nodes; the host has an end of it, so tests reach API server and ingress.
HOST_IP: Final = "fd00:10:88::1" if IPV6 else "10.88.0.1"
HOST_LINK: Final = NAME
PREFIX: Final = 64 if IPV6 else 24
"""Bits of the bridge's network."""
NODAD: Final = ("nodad",) if IPV6 else ()
"""For `ip addr add`: the address can be used at once."""
SERVICE_CIDR: Final = "fd00:10:96::/112" if IPV6 else "10.96.0.0/16"
API_SERVICE_IP: Final = "fd00:10:96::1" if IPV6 else "10.96.0.1"
DNS_IP: Final = "fd00:10:96::a" if IPV6 else "10.96.0.10"
POD_CIDR: Final = "fd00:10:244::/48" if IPV6 else "10.244.0.0/16"
ANYWHERE: Final = "::/0" if IPV6 else "0.0.0.0/0"
API_PORT: Final = 6443


def in_url(address: str) -> str:
    """An address as URLs have it: IPv6 in brackets."""
    return f"[{address}]" if ":" in address else address


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
        return f"/{NAME}/{self.name}"


NODES: Final = tuple(
    Node(f"node-{n}", f"fd00:10:88::1{n}", f"fd00:10:244:{n}::/64")
    if IPV6
    else Node(f"node-{n}", f"10.88.0.1{n}", f"10.244.{n}.0/24")
    for n in (1, 2)
)
CONTROL_PLANE: Final = NODES[0]
API_SERVER: Final = f"https://{in_url(CONTROL_PLANE.ip)}:{API_PORT}"
KUBECONFIG: Final = STATE / "admin.kubeconfig"
AUDIT_LOG: Final = STATE / "logs" / "audit.jsonl"
