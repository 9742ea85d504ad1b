"""Request-level round-robin over the fleet: SGLang's default, whatever the client and the prefix.

With local LPM this is the baseline RR + LPM of the D2LPM paper (ALGORITHMS §2.1). It guarantees nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from evenkeel_fairshare.fleet.contract import Dispatch, FleetPolicy, ReplicaSet, next_after


class RoundRobin(FleetPolicy):
    """One cyclic pointer for all requests."""

    name = "RoundRobin"
    matches_prefix = False

    def __init__(self) -> None:
        self._last = -1

    def select(
        self, request: Dispatch, routable: ReplicaSet, outstanding: Sequence[int]
    ) -> int | None:
        # The pointer moves here and not in `dispatched`: requests that are selected while another one connects
        # must not all go to the same replica.
        self._last = next_after(routable, self._last)
        return self._last
