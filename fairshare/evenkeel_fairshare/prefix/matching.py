"""How much of a prompt replicas hold: the longest match, and in steps also that of each replica. Pure."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import accumulate, takewhile
from operator import and_
from typing import Final, NamedTuple, TypeAlias

from evenkeel_fairshare.fleet.contract import EMPTY, ReplicaSet
from evenkeel_fairshare.prefix.columns import Columns

STEP_BLOCKS: Final = 1024
"""Blocks of one step: 0.1 ms, or up to 3 ms in a full index."""


class Match(NamedTuple):
    """The longest match of a prompt."""

    blocks: int
    """Number of matched blocks from the first; 0 without any match."""
    replicas: ReplicaSet
    """The replicas that hold all of them; empty if `blocks` is 0."""


NO_MATCH = Match(0, EMPTY)


class Depths(NamedTuple):
    """How much of a prompt each replica holds."""

    ends: Sequence[Match]
    """Blocks, ascending, and the replicas that hold so many at least."""

    @property
    def longest(self) -> Match:
        """The longest match."""
        return self.ends[-1] if self.ends else NO_MATCH

    def at(self, slot: int) -> int:
        """Blocks that one of the replicas holds."""
        held = (end.blocks for end in reversed(self.ends) if end.replicas >> slot & 1)
        return next(held, 0)


Entries: TypeAlias = Callable[[Sequence[int]], Iterable[int]]
"""Looks up the entries of blocks; 0 for one that is not known."""


def depths(
    entries: Entries, columns: Columns, hashes: Sequence[int], among: ReplicaSet
) -> Generator[None, None, Depths]:
    """How much of a prompt each replica of `among` holds, in steps."""
    held, retired = columns.bits(among), columns.retired
    ends: list[tuple[int, int]] = []
    depth = 0
    for start in range(0, len(hashes), STEP_BLOCKS):
        some = hashes[start : start + STEP_BLOCKS]
        run = list(takewhile(bool, accumulate(entries(some), and_, initial=held)))
        for more, after in enumerate(run):
            if after != held:
                ends.append((depth + more - 1, held))
                held = after
        if len(run) <= len(some):
            depth += max(0, len(run) - 1)
            break
        depth += len(some)
        yield
        if columns.retired != retired:
            held, retired = held & columns.bits(among), columns.retired
    ends.append((depth, held))
    known = [Match(blocks, columns.slots(bits)) for blocks, bits in ends if blocks]
    return Depths([end for end in known if end.replicas])
