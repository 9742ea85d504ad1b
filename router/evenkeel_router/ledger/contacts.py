"""The other routers of a service, and the last contact with each."""

from __future__ import annotations

from dataclasses import dataclass, field

from evenkeel_fairshare.ledger import Progress


@dataclass(frozen=True, slots=True)
class Peer:
    """Another router of the service."""

    name: str
    url: str
    """URL of the router's admin port."""


@dataclass(slots=True)
class PeerContact:
    """What one peer is known by."""

    since_s: float
    """Time from which on the peer was to be asked."""
    router: str = ""
    """The incarnation that answered last; empty: no answer yet."""
    progress: Progress = field(default_factory=Progress)
    """How far this router has read the peer's ledger."""
    asked: bool = False
    answered_s: float | None = None
    error: str = ""
    """Why the last question had no answer; empty if it had one."""
