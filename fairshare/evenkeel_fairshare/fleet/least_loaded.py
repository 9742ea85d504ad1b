"""Chooses the replica with the fewest unfinished requests, whatever the client and the prefix.

This is SGLang's dispatch rule "shortest queue". D2LPM behaves like it as Q^w goes to 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from evenkeel_fairshare.fleet.contract import Dispatch, FleetPolicy, ReplicaSet, least_outstanding


class LeastLoaded(FleetPolicy):
    """argmin of s_w over the routable replicas."""

    name = "LeastLoaded"
    matches_prefix = False

    def select(
        self, request: Dispatch, routable: ReplicaSet, outstanding: Sequence[int]
    ) -> int | None:
        return least_outstanding(routable, outstanding)
