"""What is known of those whom this router asks: replicas by their last report, peers by their last answer.

Place in the flow: answer → **seen** → `/v1/state`, metrics, the next question. What they say about clients is in the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport:
    """The last report of one replica."""

    incarnation: str
    policy: str
    sequence: int
    received_s: float
    counted: bool
    """Whether the ledger takes it; not if the incarnation was given up before."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another router of the service."""

    name: str
    url: str
    """Of its admin port."""


@dataclass(slots=True)
class PeerContact:
    """What one peer is known by."""

    since_s: float
    """When it was first to be asked."""
    router: str = ""
    """The incarnation that answered last; empty: nobody did."""
    asked: bool = False
    answered_s: float | None = None
    trouble: str = ""
    """Why the last question had no answer."""
