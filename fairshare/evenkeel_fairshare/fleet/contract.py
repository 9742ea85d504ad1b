"""The contract between a router (or the simulator's fleet) and a fleet policy.

The order of calls is select → dispatched → finished. What a request costs is estimated at `dispatched` and settled at
`finished` (design §5.6). The caller numbers replicas by small slots and may reuse a slot after `left`. Sets of replicas are bit
masks, so that an intersection of 64 replicas takes nanoseconds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Final, NamedTuple, NewType

ReplicaSet = NewType("ReplicaSet", int)
"""Bit mask over slots: bit `s` set means that the replica in slot `s` belongs to the set."""

EMPTY = ReplicaSet(0)


def replica_set(slots: Sequence[int]) -> ReplicaSet:
    """The set of the given slots."""
    mask = 0
    for slot in slots:
        mask |= 1 << slot
    return ReplicaSet(mask)


def slots_of(replicas: ReplicaSet) -> Iterator[int]:
    """The slots of a set, ascending."""
    mask = int(replicas)
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def nothing_held(slot: int) -> int:
    """No replica outside `Dispatch.longest` holds any of the prefix."""
    return 0


@dataclass(slots=True, eq=False)
class Dispatch:
    """One request as a fleet policy sees it. Nothing changes it: a frozen one would take four times as long to create."""

    client: str
    """The whole identity, `namespace/tenant/client`."""
    input_tokens: int
    """Tokens of the whole prompt, as estimated before the replica reports its count."""
    weight: float = 1.0
    """The client's weight over the whole fleet: its tenant's times its own (`tenancy.ClientWeight.fleet`)."""
    longest: ReplicaSet = EMPTY
    """Replicas with the longest match of its prefix; without any match those with its adapter loaded."""
    matched_tokens: int = 0
    adapter_tokens: int = 0
    """Tokens that the loaded adapter of the replicas in `longest` is worth; 0 if they have none loaded for the request."""
    blocks: Sequence[int] = ()
    """Chained block hashes of the prompt, for policies with their own tree (Preble)."""
    block_tokens: Sequence[int] = ()
    """Tokens of each of `blocks`. Only the fleet in virtual time sets them."""
    matched_at: Callable[[int], int] = nothing_held
    """Tokens of its prefix at the replica in a slot outside `longest`. Asked for an idle replica while the request waits."""
    sequences: int = 1
    """Sequences that it makes: prompts times answers to each (R19)."""


class Usage(NamedTuple):
    """Tokens of one request at its replica, as the replica counted them. To unpack it is faster than to read several fields."""

    input_tokens: int
    """The whole prompt; 0 if the request never ran."""
    cached_tokens: int = 0
    """Input tokens found in the cache, at most `input_tokens`."""
    output_tokens: int = 0


NOTHING: Final = Usage(0)
"""Usage of a request that never ran: the replica refused it or failed, and another replica computes it (R11)."""


class FleetPolicy(ABC):
    """Chooses a replica for each request. Deterministic; ties go to the lowest slot."""

    name: ClassVar[str]
    matches_prefix: ClassVar[bool]
    """Whether the policy uses `Dispatch.longest`; otherwise a caller may skip matching."""

    @abstractmethod
    def select(
        self, request: Dispatch, routable: ReplicaSet, outstanding: Sequence[int]
    ) -> int | None:
        """The slot out of `routable` for `request`; None if the policy holds the request.

        `outstanding[slot]` is the number of unfinished sequences at that replica (s_w). `routable` is not empty and
        has only slots that have `joined`. The caller may ask again for the same request (a retry). It calls
        `dispatched` before it asks for another request. `pull` returns a held request later.
        """

    def pull(self, slot: int, free_tokens: int, now_s: float) -> Sequence[Dispatch]:
        """Held requests for a replica at its batching point (central DLPM). Most policies hold none."""
        return ()

    def dispatched(self, request: Dispatch, slot: int) -> None:
        """`request` is being sent to `slot`. The policy charges an estimate; `finished` with `NOTHING` takes it back."""

    def finished(self, request: Dispatch, slot: int, usage: Usage | None) -> None:
        """`request` completed or was aborted at `slot`; called once for every `dispatched`.

        `usage` replaces the estimate; `NOTHING` cancels it. None means unknown usage (the client left before the
        replica answered): the estimate stays. The call may follow `left(slot)`, for requests that were open at a
        departed replica.
        """

    def measured(self, speeds: Mapping[int, float]) -> None:
        """Weighted tokens per second of replicas while requests waited there (`Saturation.speeds`), about once a second.

        By slot; a replica without a measurement is missing. Most policies use none.
        """

    def longest_wait_s(self, request: Dispatch, at: int, idle: int) -> float:
        """Seconds after which a request in the queue of `at` should rather be computed at `idle`, which has no work (R2).

        Infinite: never. Most policies relocate nothing.
        """
        return inf

    def joined(self, slot: int) -> None:
        """A replica joined the fleet (R5)."""

    def left(self, slot: int) -> None:
        """The replica in `slot` is gone; the caller may reuse the slot afterwards (R6).

        Reuse it after all requests sent there have `finished`: otherwise their ends are charged to the new
        replica, which skews credit a little.
        """

    def credit(self, client: str) -> Mapping[int, float]:
        """q_{i,w} of a client by slot, weighted tokens, for `evenkeel top`. Empty for policies without credit."""
        return {}


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
