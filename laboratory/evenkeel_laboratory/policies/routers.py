"""The rules of routers that a user could choose today, from their public documentation; without fairness between clients.

All decide by overlap and load: the KV router of NVIDIA Dynamo and the scheduler of llm-d and KServe by a weighted sum, the router of
SGLang by thresholds. The contract of fleet policies has only the longest match, so replicas with shorter matches count as having none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from evenkeel_fairshare.fleet.contract import (
    Dispatch,
    FleetPolicy,
    ReplicaSet,
    Usage,
    least_outstanding,
    slots_of,
)

OVERLAP_WEIGHT: Final = 1.0
"""Dynamo's default, with temperature 0."""
CACHE_THRESHOLD: Final = 0.3
BALANCE_ABS_THRESHOLD: Final = 64
BALANCE_REL_THRESHOLD: Final = 1.5
"""Defaults of the router of SGLang (its page "Load balancing")."""
PREFIX_WEIGHT: Final = 3.0
QUEUE_WEIGHT: Final = 2.0
"""Default profile of llm-d's scheduler (Red Hat OpenShift AI 3.4, "Configuring scheduler settings")."""


class CacheAware(FleetPolicy):
    """The worker with the least cost (docs.nvidia.com/dynamo, "Router design" and "Routing concepts"):

        cost = overlap weight · prefill blocks + decode blocks

    Prefill blocks are the prompt tokens that a worker still has to compute, the new request's uncached ones included. Decode blocks
    are those that its open requests occupy. A fleet policy hears of no first token. So an open request counts with its uncached
    input until it ends, and a prefix that it shares takes no further room. D2LPM decides from the same facts.
    """

    name: ClassVar[str] = "CacheAware"
    matches_prefix: ClassVar[bool] = True

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


class SglangRouter(FleetPolicy):
    """`cache_aware` of SGLang's router.

    If the loads differ by more than both thresholds, the shortest queue. Otherwise the longest match, if it covers more than
    `CACHE_THRESHOLD` of the prompt, and else the replica whose prefix tree is smallest. The size of a tree is the number of
    uncached tokens sent there; nothing is evicted from it.
    """

    name: ClassVar[str] = "SGLangRouter"
    matches_prefix: ClassVar[bool] = True

    def __init__(self) -> None:
        self._tree_tokens: dict[int, int] = {}

    def select(
        self, request: Dispatch, routable: ReplicaSet, outstanding: Sequence[int]
    ) -> int | None:
        slots = list(slots_of(routable))
        loads = [outstanding[slot] for slot in slots]
        high, low = max(loads), min(loads)
        if high - low > BALANCE_ABS_THRESHOLD and high > BALANCE_REL_THRESHOLD * low:
            return least_outstanding(routable, outstanding)
        holders = ReplicaSet(request.longest & routable)
        if holders and request.matched_tokens > CACHE_THRESHOLD * request.input_tokens:
            return least_outstanding(holders, outstanding)
        return min(slots, key=self._tree_tokens.__getitem__)

    def dispatched(self, request: Dispatch, slot: int) -> None:
        self._tree_tokens[slot] += _uncached(request, slot)

    def joined(self, slot: int) -> None:
        self._tree_tokens[slot] = 0

    def left(self, slot: int) -> None:
        del self._tree_tokens[slot]


class PrefixQueueScorer(FleetPolicy):
    """Filter, score, pick: 3 · part of the prompt that is cached + 2 · queue score; the highest sum.

    The queue score is 1 for the shortest queue, 0 for the longest, and 1 for all if they are equal. The scheduler reads queues from
    the engines' metrics; here they are the open requests.
    """

    name: ClassVar[str] = "PrefixQueueScorer"
    matches_prefix: ClassVar[bool] = True

    def select(
        self, request: Dispatch, routable: ReplicaSet, outstanding: Sequence[int]
    ) -> int | None:
        slots = list(slots_of(routable))
        loads = [outstanding[slot] for slot in slots]
        high, low = max(loads), min(loads)

        def score(slot: int) -> float:
            queue = (high - outstanding[slot]) / (high - low) if high > low else 1.0
            prefix = _matched(request, slot) / max(1, request.input_tokens)
            return PREFIX_WEIGHT * prefix + QUEUE_WEIGHT * queue

        return max(slots, key=score)


def _matched(request: Dispatch, slot: int) -> int:
    return request.matched_tokens if request.longest >> slot & 1 else 0


def _uncached(request: Dispatch, slot: int) -> int:
    return request.input_tokens - _matched(request, slot)
