"""Map from prefixes to the replicas that hold them, as far as the router knows.

One dictionary maps the hash of a prefix to the set of replicas that hold it. A match starts at the shortest prefix and
stops where no replica is left. So a gap after an eviction ends the match.

Memory is bounded by `max_blocks` over all replicas. The clock algorithm makes room, an approximation of "least recently
used" without links between entries: a hand goes round the entries and removes the first that was not inserted again
since its last visit. The blocks of one prompt are stored longest prefix first, so that the hand removes leaves before
their roots.

Only `insert`, at dispatch, counts as use, because it shows where a prefix is computed. A match does not.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from evenkeel_fairshare.fleet.contract import EMPTY, ReplicaSet, slots_of

DEFAULT_MAX_BLOCKS: Final = 2_000_000  # about 200 MB

_USED = 1  # bit 0 of an entry: inserted again since the hand came by; slot s is bit s + 1
_CHANCES = 32  # entries spared per block inserted: bounds the pause when everything was used
_SWEEP = 4  # entries cleaned of departed replicas per block inserted, until a whole turn is done


class Match(NamedTuple):
    """The longest match of a prompt."""

    blocks: int
    """Number of matched blocks from the first; 0 without any match."""
    replicas: ReplicaSet
    """The replicas that hold all of them; empty if `blocks` is 0."""


NO_MATCH = Match(0, EMPTY)


class PrefixIndex:
    """Prefix hash → replicas. Deterministic; independent of time."""

    def __init__(self, *, max_blocks: int = DEFAULT_MAX_BLOCKS) -> None:
        if max_blocks < 1:
            raise ValueError(f"max_blocks is {max_blocks}; it must be at least 1")
        self._max_blocks = max_blocks
        self._entries: dict[int, int] = {}  # hash → replicas << 1 | used
        self._ring = array("Q")  # the same hashes, in the order in which the hand visits them
        self._hand = 0
        self._departed = 0  # entry bits of replicas that left and may still be found in entries
        self.unswept = 0
        """Number of entries that may still contain departed replicas. Later inserts clean them."""
        self._broom = 0
        self._held: defaultdict[int, int] = defaultdict(int)
        self.displaced: ReplicaSet = EMPTY
        """Replicas that lost blocks to those of others since they were last dropped."""

    def __len__(self) -> int:
        """Entries in memory, at most `max_blocks`. Emptied ones count until the hand comes by."""
        return len(self._entries)

    def held(self, slot: int) -> int:
        """Number of blocks that `slot` is known to hold; 0 for a departed replica."""
        return self._held.get(slot, 0)

    def match(self, hashes: Sequence[int], among: ReplicaSet) -> Match:
        """The longest prefix that any replica of `among` holds, and the replicas that hold it. O(depth)."""
        held = among << 1 & ~self._departed
        entry_of = self._entries.get
        depth = 0
        for key in hashes:
            still = held & entry_of(key, 0)
            if not still:
                break
            held = still
            depth += 1
        return Match(depth, ReplicaSet(held >> 1)) if depth else NO_MATCH

    def lacking(self, hashes: Sequence[int], slot: int) -> list[int]:
        """The `hashes` that `slot` lacks, in their order. O(blocks)."""
        replica = 2 << slot & ~self._departed
        entry_of = self._entries.get
        return [key for key in hashes if not entry_of(key, 0) & replica]

    def insert(self, hashes: Sequence[int], slot: int) -> None:
        """`slot` holds (or is about to compute) the whole prompt. O(blocks)."""
        replica = 2 << slot
        if self._departed:
            self._sweep(len(self._ring) if self._departed & replica else _SWEEP * len(hashes))
        if len(hashes) > self._max_blocks:
            hashes = hashes[: self._max_blocks]
        entries = self._entries
        mark = replica | _USED
        before = after = -1  # neighbours mostly have the same replicas: share one int
        gain = gained = 0
        fresh = []
        for key in hashes:
            entry = entries.get(key)
            if entry is None:
                fresh.append(key)
            elif entry != before:
                before, after = entry, entry | mark
                gain = not entry & replica
                gained += gain
                entries[key] = after
            elif after != entry:
                gained += gain
                entries[key] = after
        for key in reversed(fresh):
            if key not in entries:  # twice in one prompt: a collision, which any client can forge
                self._place(key)
                entries[key] = replica
                gained += 1
        self._held[slot] += gained

    def evict(self, hashes: Sequence[int], slot: int) -> None:
        """`slot` dropped these blocks; unknown hashes are ignored."""
        entries = self._entries
        replica = 2 << slot & ~self._departed
        lost = 0
        for key in hashes:
            entry = entries.get(key, 0)
            if entry & replica:
                entries[key] = entry ^ replica
                lost += 1
        self._held[slot] -= lost

    def truncate(self, hashes: Sequence[int], blocks: int, slot: int) -> None:
        """`slot` holds no more than the first `blocks` of this prompt.

        For a request that ended before its prompt was computed: its blocks were inserted at dispatch. After a
        completed request this call is wrong, however few tokens were cached: the replica now holds the prompt.
        """
        self.evict(hashes[blocks:], slot)

    def drop(self, slot: int) -> None:
        """The replica in `slot` is gone with its cache. O(1): later inserts clean its entries.

        Until then no match returns them. If a slot is reused before, its first insert cleans all remaining entries
        (about 0.1 µs per entry), so callers should reuse slots late.
        """
        self._departed |= 2 << slot
        self.displaced = ReplicaSet(self.displaced & ~(1 << slot))
        self._held.pop(slot, None)
        self.unswept = len(self._ring)

    def _reader(self) -> Callable[[int, int], int]:
        """Look-up of entries without departed replicas; a plain look-up while none has departed."""
        return self._living if self._departed else self._entries.get

    def _living(self, key: int, default: int) -> int:
        return self._entries.get(key, default) & ~self._departed

    def _place(self, key: int) -> None:
        """Find a place in the ring for a new key; evicts where the index is full.

        A used entry is spared once. After `_CHANCES` spared entries the next one is evicted, used or not.
        """
        ring, entries = self._ring, self._entries
        if len(ring) < self._max_blocks:
            ring.append(key)
            return
        for _ in range(_CHANCES):
            candidate = ring[self._hand]
            entry = entries[candidate]
            if not entry & _USED:
                break
            entries[candidate] = entry ^ _USED
            self._hand = self._next(self._hand)
        losing = ReplicaSet((entries.pop(ring[self._hand]) & ~self._departed) >> 1)
        self.displaced = ReplicaSet(self.displaced | losing)
        for slot in slots_of(losing):
            self._held[slot] -= 1
        ring[self._hand] = key
        self._hand = self._next(self._hand)

    def _sweep(self, places: int) -> None:
        """Clean some places of the ring of departed replicas; all clean after a whole turn."""
        ring, entries, keep = self._ring, self._entries, ~self._departed
        places = min(places, self.unswept)
        for _ in range(places):
            self._broom = self._next(self._broom)
            key = ring[self._broom]
            entry = entries[key]
            if entry & self._departed:
                entries[key] = entry & keep
        self.unswept -= places
        if not self.unswept:
            self._departed = 0

    def _next(self, place: int) -> int:
        return place + 1 if place + 1 < len(self._ring) else 0


def match_either(
    one: PrefixIndex, other: PrefixIndex, hashes: Sequence[int], among: ReplicaSet
) -> Match:
    """The longest prefix of which a replica of `among` holds each block by one index or the other.

    Blocks may alternate: the beginning known by one, the rest by the other. O(depth).
    """
    held = among << 1
    if not held:
        return NO_MATCH
    of_first, of_second = one._reader(), other._reader()
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
    return Match(depth, ReplicaSet(held >> 1)) if depth else NO_MATCH
