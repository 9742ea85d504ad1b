"""Which replicas hold which prefixes, by the replicas' own events.

Two indexes lie on top of each other: *facts*, blocks that KV events reported, and *expectations*, blocks that were
dispatched and that no event has reported yet. A block counts as held if either index has it; `stored` turns an expectation
into a fact.

Expectations are needed even where events never fail: in a burst of requests that share a prefix, the first has not been
computed when the second is selected. Only expectations can be wrong, so only they are taken back (`truncate`). A fact ends
with `removed`, `cleared` or `drop`, and nothing else.

`synced` changes no match. It only decides what a match there is called, `exact` or estimated. A replica without events is
matched by expectations alone, exactly as in text mode. Hashes of text and of tokens may share an index.
"""

from __future__ import annotations

from collections.abc import Sequence

from evenkeel_fairshare.fleet.contract import EMPTY, ReplicaSet
from evenkeel_fairshare.prefix.index import (
    DEFAULT_MAX_BLOCKS,
    Match,
    PrefixIndex,
    match_either,
)


class ExactIndex:
    """Prefix hash → replicas, by facts and expectations. Deterministic; independent of time.

    Takes the place of a `PrefixIndex` wherever one is used. Hashes are unsigned, as `sglang_blocks` and
    `unsigned` give them, each standing for its block and all before it.
    """

    def __init__(self, *, max_blocks: int = DEFAULT_MAX_BLOCKS) -> None:
        """`max_blocks` bounds facts and expectations together; each may have half of it."""
        if max_blocks < 2:
            raise ValueError(f"max_blocks is {max_blocks}; it must be at least 2")
        self._facts = PrefixIndex(max_blocks=max_blocks // 2)
        self._expected = PrefixIndex(max_blocks=max_blocks // 2)
        self.synced: ReplicaSet = EMPTY
        """The replicas whose events are complete. `set_synced` changes it."""

    def __len__(self) -> int:
        """Entries in memory, at most `max_blocks`."""
        return len(self._facts) + len(self._expected)

    def held(self, slot: int) -> int:
        """Blocks that `slot` holds, or is expected to."""
        return self._facts.held(slot) + self._expected.held(slot)

    def match(self, hashes: Sequence[int], among: ReplicaSet) -> Match:
        """The longest prefix that any replica of `among` holds, and the replicas that hold it. O(depth)."""
        return match_either(self._facts, self._expected, hashes, among)

    # What the router does

    def insert(self, hashes: Sequence[int], slot: int) -> None:
        """`slot` is about to compute the whole prompt: what it is not known to hold is expected there."""
        self._expected.insert(self._facts.lacking(hashes, slot), slot)

    def truncate(self, hashes: Sequence[int], blocks: int, slot: int) -> None:
        """The prompt was not computed: of what lies beyond its first `blocks`, facts stand alone."""
        self._expected.truncate(hashes, blocks, slot)

    def drop(self, slot: int) -> None:
        """The replica in `slot` is gone with its cache. O(1), as `PrefixIndex.drop`."""
        self.set_synced(slot, complete=False)
        self._facts.drop(slot)
        self._expected.drop(slot)

    # What a replica's events report, in their order

    def stored(self, hashes: Sequence[int], slot: int) -> None:
        """`slot` holds these blocks, parents before children. A repeated event changes nothing. O(blocks)."""
        self._facts.insert(hashes, slot)
        self._expected.evict(hashes, slot)

    def removed(self, hashes: Sequence[int], slot: int) -> None:
        """`slot` dropped these blocks, inner ones too; unknown ones are ignored. O(blocks).

        Expectations end as well. Where one of them was still to be computed, a `stored` event reports it.
        """
        self._facts.evict(hashes, slot)
        self._expected.evict(hashes, slot)

    def cleared(self, slot: int) -> None:
        """`slot` holds nothing: it was flushed, or nothing that is known of it can be trusted any more.

        `synced` stays as it is. The next block said of `slot` pays for a sweep of the whole index (0.1 µs
        per entry).
        """
        self._facts.drop(slot)
        self._expected.drop(slot)

    def set_synced(self, slot: int, *, complete: bool) -> None:
        """Whether every event of `slot`, from its first, has been applied here. What is held stays.

        Not complete means estimated: facts stay until an event or `cleared` takes them. The follower of
        the events decides whether they are still useful.
        """
        bit = 1 << slot
        self.synced = ReplicaSet(self.synced | bit if complete else self.synced & ~bit)

    def exact(self, slot: int) -> bool:
        """Whether a match at `slot` rests on complete events, and on all that they said."""
        return bool(self.synced >> slot & 1) and not self.crowded(slot)

    def crowded(self, slot: int) -> bool:
        """Whether facts about `slot` had to make room for others' since it was cleared."""
        return bool(self._facts.displaced >> slot & 1)
