"""The rule of a cache-aware router: overlap against load, without fairness between clients.

NVIDIA Dynamo's KV router takes the worker with the least cost (docs.nvidia.com/dynamo, "Router design" and "Routing concepts"):

    cost = overlap weight · prefill blocks + decode blocks

Prefill blocks are the prompt tokens that a worker still has to compute, the new request's uncached ones included. Decode blocks are
those that its open requests occupy. The weight is 1 by default, with temperature 0.

The contract of fleet policies has less to go by: only the longest match, and no first token. So an open request counts with its
uncached input until it ends, and a prefix that it shares takes no further room. D2LPM decides from the same facts.
"""

from __future__ import annotations

from collections.abc import Sequence

from evenkeel_fairshare.fleet.contract import Dispatch, FleetPolicy, ReplicaSet, Usage, slots_of

OVERLAP_WEIGHT = 1.0


class CacheAware(FleetPolicy):
    """argmin of the cost over the routable replicas."""

    name = "CacheAware"
    matches_prefix = True

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        """Uncached input tokens of open requests by slot."""

    def select(
        self, request: Dispatch, routable: ReplicaSet, outstanding: Sequence[int]
    ) -> int | None:
        def cost(slot: int) -> tuple[float, int]:
            blocks = self._open[slot] + _uncached(request, slot)
            return OVERLAP_WEIGHT * blocks + blocks, outstanding[slot]

        return min(slots_of(routable), key=cost)

    def dispatched(self, request: Dispatch, slot: int) -> None:
        self._open[slot] += _uncached(request, slot)

    def finished(self, request: Dispatch, slot: int, usage: Usage | None) -> None:
        if slot in self._open:
            self._open[slot] -= _uncached(request, slot)

    def joined(self, slot: int) -> None:
        self._open[slot] = 0

    def left(self, slot: int) -> None:
        del self._open[slot]


def _uncached(request: Dispatch, slot: int) -> int:
    return request.input_tokens - (request.matched_tokens if request.longest >> slot & 1 else 0)
