"""The LoRA adapters that replicas have loaded, as far as the router knows.

An engine loads an adapter for the first request that needs it, and drops the least recently used one. So the last adapters
sent to a replica, as many as its slots, are those that are loaded. A wrong guess costs a load, never fairness.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Final

from evenkeel_fairshare.fleet.contract import EMPTY, ReplicaSet

LOAD_TOKENS: Final = 1024
"""What a replica that has the adapter loaded is worth, in input tokens that another one would compute: about 100 ms of prefill. The
load itself takes less; but a replica's slots are few, and a request for one more adapter waits until all requests of another end."""


class AdapterPlaces:
    """The last adapters of each replica, by slot of the fleet."""

    def __init__(self, adapters_per_batch: int) -> None:
        self.limit = adapters_per_batch
        """Slots of each replica."""
        self._of: defaultdict[int, OrderedDict[str, None]] = defaultdict(OrderedDict)
        self._replicas: defaultdict[str, int] = defaultdict(int)

    def sent(self, adapter: str | None, slot: int) -> None:
        """A request with this adapter was sent to a replica."""
        if adapter is None:
            return
        adapters = self._of[slot]
        adapters[adapter] = None
        adapters.move_to_end(adapter)
        self._replicas[adapter] |= 1 << slot
        while len(adapters) > self.limit:
            self._replicas[adapters.popitem(last=False)[0]] &= ~(1 << slot)

    def left(self, slot: int) -> None:
        """The replica is gone."""
        for adapter in self._of.pop(slot, ()):
            self._replicas[adapter] &= ~(1 << slot)

    def nearest(
        self, adapter: str | None, longest: ReplicaSet, routable: ReplicaSet
    ) -> tuple[ReplicaSet, int]:
        """The nearest replicas, and the tokens that their loaded adapter is worth.

        `longest`: those with the longest match of the prefix. Of these the ones with the adapter are nearer. Without any match,
        all with the adapter are nearest.
        """
        loaded = self._replicas.get(adapter, 0) & routable if adapter is not None else 0
        if not loaded:
            return longest, 0
        near = loaded & longest if longest != EMPTY else loaded
        return (ReplicaSet(near), LOAD_TOKENS) if near else (longest, 0)
