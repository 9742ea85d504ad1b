"""The contract between a router (or the simulator's fleet) and a fleet policy.

The order of calls is select → dispatched → finished. What a request costs is estimated at `dispatched` and settled at
`finished` (design §5.6). Replicas are numbered by small slots, which the caller hands out and may reuse after `left`. Sets
of them are bit masks, because a set of 64 replicas must be intersected in nanoseconds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
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


class Dispatch(NamedTuple):
    """One request as a fleet policy sees it. A tuple, as `Usage`: every request makes some, and tuples are made in C."""

    client: str
    """The whole identity, `namespace/tenant/client`."""
    input_tokens: int
    """Of the whole prompt, as estimated before the replica reports its count."""
    weight: float = 1.0
    """The client's weight over the whole fleet: its tenant's times its own (`tenancy.Weights.fleet`)."""
    longest: ReplicaSet = EMPTY
    """Replicas that hold the longest match of its prefix; empty when no replica holds any."""
    matched_tokens: int = 0
    blocks: Sequence[int] = ()
    """Chained block hashes of the prompt, for policies that keep a tree of their own (Preble)."""


class Usage(NamedTuple):
    """What one request used at its replica, as the replica counted it."""

    input_tokens: int
    """The whole prompt; 0 where the request never ran."""
    cached_tokens: int = 0
    """Those of the prompt that were found in the cache, at most `input_tokens`."""
    output_tokens: int = 0


NOTHING: Final = Usage(0)
"""Of a request that never ran: the replica refused it, or failed, and another one computes it (R11)."""


class FleetPolicy(ABC):
    """Chooses a replica for each request. Deterministic; ties go to the lowest slot."""

    name: ClassVar[str]
    matches_prefix: ClassVar[bool]
    """Whether `Dispatch.longest` is used; a caller may skip matching otherwise."""

    @abstractmethod
    def select(
        self, request: Dispatch, routable: ReplicaSet, outstanding: Sequence[int]
    ) -> int | None:
        """The slot to send `request` to, out of `routable`; None where the policy holds the request.

        `outstanding[slot]` is the number of requests at that replica that have not finished (s_w).
        `routable` is not empty and holds only slots that have `joined`. May be asked again for the same
        request (a retry), and for others before `dispatched` is called. A held request is handed out later by `pull`.
        """

    def pull(self, slot: int, free_tokens: int, now_s: float) -> Sequence[Dispatch]:
        """Held requests for a replica at its batching point (central DLPM). Most policies hold none."""
        return ()

    def dispatched(self, request: Dispatch, slot: int) -> None:
        """`request` was sent to `slot`. Charged here, by estimate, so that a failed connection is not."""

    def finished(self, request: Dispatch, slot: int, usage: Usage | None) -> None:
        """`request` ended at `slot`, completed or aborted; comes once for every `dispatched`.

        `usage` takes the place of the estimate: `NOTHING` takes it back. None means that it is unknown (its
        client left before the replica answered): the estimate stays. May come after `left(slot)`, for requests that were
        still open at a departed replica.
        """

    def joined(self, slot: int) -> None:
        """A replica joined the fleet (R5)."""

    def left(self, slot: int) -> None:
        """The replica in `slot` is gone; the slot may be used again afterwards (R6).

        Better not before the requests sent there have all `finished`: their ends would be charged to the
        newcomer. That skews credit a little and harms nothing else.
        """

    def credit(self, client: str) -> Mapping[int, float]:
        """q_{i,w} of a client by slot, weighted tokens, for `evenkeel top`. Empty where none is kept."""
        return {}
