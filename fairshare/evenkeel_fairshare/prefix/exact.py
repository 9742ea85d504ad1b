"""Map from prefixes to replicas, by the replicas' KV events.

There are two indexes: *facts*, blocks that KV events reported, and *expectations*, blocks that were dispatched and that no
event has reported yet. A replica holds a block if either index has it; `stored` turns an expectation into a fact.

Expectations are needed even if events never fail: in a burst of requests with a common prefix, the first is not computed yet
when the second is selected. Only expectations can be wrong, so `truncate` removes only them. A fact ends with `removed`,
`cleared` or `drop`.

`synced` changes no match. It only decides whether a match counts as `exact` or as estimated. A replica without events has
expectations alone, as in text mode. Hashes of text and of tokens may share an index.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from operator import or_

from evenkeel_fairshare.fleet.contract import EMPTY, ReplicaSet
from evenkeel_fairshare.prefix.columns import Columns
from evenkeel_fairshare.prefix.copies import Copies
from evenkeel_fairshare.prefix.index import DEFAULT_MAX_BLOCKS, PrefixIndex
from evenkeel_fairshare.prefix.matching import NO_MATCH, STEP_BLOCKS, Depths, Match, depths


class ExactIndex:
    """Prefix hash → replicas, by facts and expectations. Deterministic; independent of time.

    It can replace a `PrefixIndex` everywhere. Hashes are unsigned, as from `sglang_blocks` and `unsigned`. Each
    stands for its block and all blocks before it.
    """

    def __init__(self, *, max_blocks: int = DEFAULT_MAX_BLOCKS) -> None:
        """`max_blocks` bounds facts and expectations together; each may have half of it."""
        if max_blocks < 2:
            raise ValueError(f"max_blocks is {max_blocks}; it must be at least 2")
        self._columns = Columns()
        self._facts = PrefixIndex(max_blocks=max_blocks // 2, columns=self._columns)
        self._expected = PrefixIndex(max_blocks=max_blocks // 2, columns=self._columns)
        self.synced: ReplicaSet = EMPTY
        """The replicas whose events are complete. `set_synced` changes it."""
        self._copies: defaultdict[int, Copies] = defaultdict(Copies)
        """Slot → further copies of its blocks."""

    def __len__(self) -> int:
        """Entries in memory, at most `max_blocks`."""
        return len(self._facts) + len(self._expected)

    def held(self, slot: int) -> int:
        """Blocks that `slot` holds, or is expected to."""
        return self._facts.held(slot) + self._expected.held(slot)

    def match(self, hashes: Sequence[int], among: ReplicaSet) -> Match:
        """The longest prefix that any replica of `among` holds, and the replicas that hold it. O(depth).

        Blocks may alternate: the beginning known by facts, the rest by expectations.
        """
        held = self._columns.bits(among)
        if not held:
            return NO_MATCH
        of_first, of_second = self._facts.entry_of, self._expected.entry_of
        depth = 0
        for key in hashes:
            still = held & of_first(key, 0)
            if still != held:  # else the other cannot add a replica
                still |= held & of_second(key, 0)
                if not still:
                    break
                held = still
                # The next block is mostly in the same index: look there first.
                of_first, of_second = of_second, of_first
            depth += 1
        return Match(depth, self._columns.slots(held)) if depth else NO_MATCH

    def matching(self, hashes: Sequence[int], among: ReplicaSet) -> Generator[None, None, Depths]:
        """`match` in steps, for each replica of `among`."""
        return depths(self._entries, self._columns, hashes, among)

    def _entries(self, hashes: Sequence[int]) -> Iterable[int]:
        return map(or_, self._facts.entries(hashes), self._expected.entries(hashes))

    # Calls for the router's own requests

    def insert(self, hashes: Sequence[int], slot: int) -> None:
        """`slot` is about to compute the whole prompt: blocks without a fact become expectations."""
        self._expected.insert(self._facts.lacking(hashes, slot), slot)

    def inserting(self, hashes: Sequence[int], slot: int) -> Generator[None]:
        """`insert` in steps. It ends where the replica leaves."""
        column = self._columns.assign(slot)
        return self._inserting(hashes, column, self._columns.replica(column))

    def _inserting(self, hashes: Sequence[int], column: int, replica: int) -> Generator[None]:
        lacking: list[int] = []
        for start in range(0, len(hashes), STEP_BLOCKS):
            lacking += self._facts.lacking_in(hashes[start : start + STEP_BLOCKS], column)
            yield
        yield from self._expected.inserting_in(lacking, column, replica)

    def truncate(self, hashes: Sequence[int], blocks: int, slot: int) -> None:
        """The prompt was not computed: beyond its first `blocks` only facts remain."""
        self._expected.truncate(hashes, blocks, slot)

    def truncating(self, hashes: Sequence[int], blocks: int, slot: int) -> Generator[None]:
        """`truncate` in steps."""
        return self._expected.truncating(hashes, blocks, slot)

    def drop(self, slot: int) -> None:
        """The replica in `slot` is gone with its cache. O(1), as `PrefixIndex.drop`."""
        self.set_synced(slot, complete=False)
        self.cleared(slot)

    # Calls for a replica's events, in their order

    def stored(self, hashes: Sequence[int], slot: int, *, copies: bool = False) -> None:
        """`slot` holds these blocks, parents before children. O(blocks).

        A repeated event changes nothing, or with `copies` it adds copies, each of which ends with a `removed`.
        """
        if copies:
            fresh = set(self._facts.lacking(hashes, slot))
            again = [key for key in hashes if key not in fresh]
            if again:
                self._copies[slot].update(again)
        self._facts.insert(hashes, slot)
        self._expected.evict(hashes, slot)

    def removed(self, hashes: Sequence[int], slot: int) -> None:
        """`slot` dropped these blocks, inner ones too, or a copy of each; unknown ones are ignored. O(blocks).

        Expectations end as well. If one of them is still to be computed, a `stored` event will report it.
        """
        if copies := self._copies.get(slot):
            hashes = [key for key in hashes if not copies.took(key)]
        self._facts.evict(hashes, slot)
        self._expected.evict(hashes, slot)

    def cleared(self, slot: int) -> None:
        """`slot` holds no blocks: its cache was flushed, or the facts about it may be wrong.

        `synced` does not change. O(1).
        """
        self._copies.pop(slot, None)
        column = self._columns.retire(slot, indexes=2)
        if column is not None:
            self._facts.depart(column)
            self._expected.depart(column)

    def set_synced(self, slot: int, *, complete: bool) -> None:
        """Whether every event of `slot`, from its first, has been applied here. Blocks do not change.

        If not, matches there are estimated: facts stay until an event or `cleared` removes them. The caller that
        reads the events decides whether they are still useful.
        """
        bit = 1 << slot
        self.synced = ReplicaSet(self.synced | bit if complete else self.synced & ~bit)

    def exact(self, slot: int) -> bool:
        """Whether the facts about `slot` are complete: all events were applied and no fact was displaced."""
        return bool(self.synced >> slot & 1) and not self.crowded(slot)

    def crowded(self, slot: int) -> bool:
        """Whether facts about `slot` were displaced by others since it was cleared."""
        return bool(self._facts.displaced >> slot & 1)
