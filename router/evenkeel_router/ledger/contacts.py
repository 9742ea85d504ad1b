"""The other routers of a service, its other cells, and the last contact with each."""

from __future__ import annotations

from dataclasses import dataclass, field

from evenkeel_contract.cellswire import CellFigures
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


@dataclass(slots=True)
class CellContact:
    """What another cell is known by."""

    since_s: float
    """Time from which on the cell was to be asked."""
    figures: CellFigures | None = None
    """The last answer."""
    answered_s: float | None = None
    counts: bool = False
    """Whether its figures are young enough for the weights in force."""
    error: str = ""
    """Why the last question had no answer; empty if it had one."""
