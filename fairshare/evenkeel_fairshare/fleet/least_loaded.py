"""The replica with the fewest unfinished requests, blind to clients and to prefixes.

SGLang's other dispatch rule ("shortest queue"). It is also what D2LPM becomes as Q^w goes to 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from evenkeel_fairshare.fleet.contract import Dispatch, FleetPolicy, ReplicaSet
from evenkeel_fairshare.fleet.picking import least_outstanding


class LeastLoaded(FleetPolicy):
    """argmin of s_w over the routable replicas."""

    name = "LeastLoaded"
    matches_prefix = False

    def select(
        self, request: Dispatch, routable: ReplicaSet, outstanding: Sequence[int]
    ) -> int | None:
        return least_outstanding(routable, outstanding)
