"""What some fleet policies of the papers read and a router does not give: the time, every replica's tree, times of requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from evenkeel_fairshare.fleet.contract import FleetPolicy
from evenkeel_fairshare.prefix.index import PrefixIndex


@dataclass(slots=True)
class FleetFacts:
    """Kept current by the fleet in virtual time."""

    now_s: float = 0.0
    index: PrefixIndex = field(default_factory=PrefixIndex)
    """What each replica holds."""


class InformedPolicy(FleetPolicy):
    """A policy with `facts`. `Dispatch.block_tokens` is set for its requests."""

    def __init__(self) -> None:
        self.facts = FleetFacts()

    def timed(self, slot: int, *, ttft_s: float, itl_s: float | None) -> None:
        """A request ended at `slot`, before `finished`: its TTFT, and the mean time between its tokens if it has two."""
