"""One known replica: what the choice of a replica (`selection`) and the probes (`health`) know of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from evenkeel_router.fleet.suspicion import Standing


@dataclass(slots=True, eq=False)
class Member:
    """One known replica."""

    name: str
    slot: int | None = None  # of the replica's process; None: the process is not there
    routable: bool = False
    unschedulable: str = ""
    """Why the replica may get no new requests, whatever its probes show; empty: it may."""
    unschedulable_since_s: float = 0.0
    """Since when, by the clock of the event loop."""
    lives: int = 0  # times that the replica joined
    loads: bool = False  # its process answers, and has not been ready yet
    unready: str = ""
    """What its last probe was answered (`Prober.refusal`)."""
    context_tokens: int = 0
    """Tokens of the longest prompt that the engine takes, as it reports; 0 where it reports none."""
    standing: Standing = field(default_factory=Standing)
    """What the outcomes of requests show of the replica's process; `health` replaces it."""

    @property
    def joined(self) -> bool:
        """Whether the replica's process is there."""
        return self.slot is not None

    @property
    def suspect(self) -> bool:
        """Whether the replica gets probes only."""
        return self.standing.allowed == 0

    def why_not(self) -> str:
        """Why the replica takes no request, in a word."""
        if not self.joined:
            return "loading" if self.loads else "unreachable"
        held = "suspect" if self.suspect else "not ready"
        return "unschedulable" if self.unschedulable else held
