"""The lowest ranked waiting client: the next client of VTC (least counter) and of DRR (next turn).

Ranks change at every token, but the heap does not. Ranks nearly always rise, so an older heap entry is a lower bound, and
`find` only updates the top: O(log n) amortised per call, no work per token.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Generic, TypeVar


@dataclass(slots=True, eq=False)
class Ranked:
    """A client that may wait. `rank` may rise at any time; after a fall `Lowest.add` must be called again."""

    rank: float = 0.0
    tie: Any = 0
    """Order among equal ranks, the smaller first; it never changes."""
    waiting: int = 0
    """Requests in the queue."""
    entry: float | None = None
    """Rank of the member in the heap of a `Lowest`; None while it is not there."""


_Item = TypeVar("_Item", bound=Ranked)


class Lowest(Generic[_Item]):
    """The lowest ranked item with `waiting` > 0. Items that stop waiting are removed automatically."""

    __slots__ = ("_compact_above", "_heap", "_pushes")

    def __init__(self) -> None:
        self._heap: list[tuple[float, Any, int, _Item]] = []
        self._pushes = 0  # makes every entry unique, so that items are never compared
        self._compact_above = 64

    def add(self, item: _Item) -> None:
        """`item` waits now, or its rank fell."""
        # The entry in the heap is a lower bound already.
        if item.entry is not None and item.entry <= item.rank:
            return
        if len(self._heap) >= self._compact_above:
            self._compact()
        self._pushes += 1
        item.entry = item.rank
        heappush(self._heap, (item.rank, item.tie, self._pushes, item))

    def find(self) -> _Item | None:
        """The lowest item, which stays; None if no item waits."""
        heap = self._heap
        while heap:
            rank, tie, number, item = heap[0]
            if rank == item.rank and item.waiting:
                return item
            if rank != item.entry:
                heappop(heap)  # a newer entry replaces it
            elif not item.waiting:
                heappop(heap)
                item.entry = None
            else:
                item.entry = item.rank
                heapreplace(heap, (item.rank, tie, number, item))
        return None

    def _compact(self) -> None:
        """Remove stale entries, so that memory stays proportional to the waiting items."""
        kept = []
        for entry in self._heap:
            rank, _, _, item = entry
            if rank == item.entry:
                if item.waiting:
                    kept.append(entry)
                else:
                    item.entry = None
        heapify(kept)
        self._heap = kept
        # Twice the live entries: as many pushes as a compaction costs come before the next one.
        self._compact_above = max(64, 2 * len(kept))
