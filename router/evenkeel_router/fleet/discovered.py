"""A replica as discovery found it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from evenkeel_contract.routerconfig import ReplicaConfig

TERMINATING: Final = "terminating"
"""`Member.unschedulable` of one whose pod is being deleted."""


@dataclass(frozen=True, slots=True)
class DiscoveredReplica:
    """A replica that exists."""

    replica: ReplicaConfig
    unschedulable: str = ""
    """Why the replica may get no new requests, whatever its probes show; empty: it may."""
