"""The two choices of a slot out of a set that fleet policies need. Ties go to the lowest slot."""

from __future__ import annotations

from collections.abc import Sequence

from evenkeel_fairshare.fleet.contract import ReplicaSet


def next_after(candidates: ReplicaSet, last: int) -> int:
    """The lowest slot above `last`, or the lowest of all: one step of a cyclic pointer.

    `candidates` must not be empty; `last` is -1 before the first choice.
    """
    above = candidates >> (last + 1) << (last + 1)
    mask = above or int(candidates)
    if not mask:
        raise ValueError("no replica to choose from; ask only with a routable one")
    return (mask & -mask).bit_length() - 1


def least_outstanding(candidates: ReplicaSet, outstanding: Sequence[int]) -> int:
    """argmin of s_w over `candidates`, which must not be empty; ties go to the lowest slot."""
    mask = int(candidates)
    if not mask:
        raise ValueError("no replica to choose from; ask only with a routable one")
    low = mask & -mask
    best = low.bit_length() - 1
    fewest = outstanding[best]
    mask ^= low
    while mask:  # without `slots_of`: this is the router's inner loop over up to 64 replicas
        low = mask & -mask
        mask ^= low
        slot = low.bit_length() - 1
        if outstanding[slot] < fewest:
            best, fewest = slot, outstanding[slot]
    return best
