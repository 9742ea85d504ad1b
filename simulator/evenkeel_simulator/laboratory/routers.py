"""The rules of two more routers that a user could choose today, from their public documentation; without fairness between clients.

Both decide by overlap and load, as `cache_aware` does: the router of SGLang by thresholds, the scheduler of llm-d and KServe by a
weighted sum. The contract of fleet policies has only the longest match, so replicas with shorter matches count as having none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from evenkeel_fairshare.fleet.contract import (
    Dispatch,
    FleetPolicy,
    ReplicaSet,
    least_outstanding,
    slots_of,
)

CACHE_THRESHOLD: Final = 0.3
BALANCE_ABS_THRESHOLD: Final = 64
BALANCE_REL_THRESHOLD: Final = 1.5
"""Defaults of the router of SGLang (its page "Load balancing")."""
PREFIX_WEIGHT: Final = 3.0
QUEUE_WEIGHT: Final = 2.0
"""Default profile of llm-d's scheduler (Red Hat OpenShift AI 3.4, "Configuring scheduler settings")."""


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
        self._tree_tokens[slot] += request.input_tokens - _matched(request, slot)

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
