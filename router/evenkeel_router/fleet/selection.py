"""Which replica gets a request: filter, match, pick, over one view of the fleet (DESIGN section 5; R2).

Unready and draining replicas are filtered first; the fleet policy chooses among the others.

A replica is *known* while it is configured. It has *joined* while its process, and so its cache, exists: a refused connection
ends that. A slot belongs to one process, and its successor gets another slot. So requests that end on the old process do not
change the figures of the new one, and the prefix index can sweep a departed slot in small steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec
from evenkeel_contract.routerconfig import ReplicaConfig
from evenkeel_fairshare.fleet.contract import EMPTY, Dispatch, FleetPolicy, ReplicaSet, Usage
from evenkeel_fairshare.prefix.exact import ExactIndex
from evenkeel_fairshare.prefix.index import AdapterPlaces, PrefixIndex, namespace_seed, text_blocks

FAILURES: Final = 3  # a single failure may be chance, and two may come from a process that ends
LONGEST_S: Final = 30.0  # bounds how late the router notices that the replica works again


@dataclass(slots=True, eq=False)
class Backoff:
    """A replica that reports ready, but fails requests that other replicas answer, gets no requests for a while.

    Such a replica attracts requests, because it fails them at once and so always looks idle. After `FAILURES` in a row
    each backoff is twice as long, up to `LONGEST_S`; one answer resets this.

    A failure counts only once another replica has answered the same request. A request that fails on every replica is itself
    the cause. So no client can remove replicas from the fleet. Silence never counts: a silent replica keeps its
    requests, and looks busy.
    """

    _first_s: float
    """The first backoff, seconds."""
    _failures: int = 0
    _until_s: float = 0.0

    def answered(self) -> None:
        """The replica answered a request."""
        self._failures = 0

    def failed(self, now_s: float) -> float:
        """The replica failed a request that another one answered. Returns the backoff, seconds; 0: none.

        A failure during a backoff is of a request sent before, and counts no more.
        """
        if now_s < self._until_s:
            return 0.0
        self._failures += 1
        doublings = self._failures - FAILURES
        if doublings < 0:
            return 0.0
        # The exponent has a bound, because 2.0 ** 1024 overflows.
        backoff_s = min(LONGEST_S, self._first_s * 2.0 ** min(doublings, 32))
        self._until_s = now_s + backoff_s
        return backoff_s

    def is_active(self, now_s: float) -> bool:
        """Whether the replica gets no requests now."""
        return now_s < self._until_s

    def end(self) -> None:
        """The replica is the last one, or its process is new: it gets requests again."""
        self._until_s = 0.0


SPARE_SLOTS: Final = 8
"""A slot is used again only while more than this many are free: the index has swept it by then."""
TERMINATING: Final = "terminating"
"""`Member.unschedulable` of one whose pod is being deleted."""


class Basis(StrEnum):
    """The basis of a match; the label `mode` of metrics."""

    TEXT = "text"
    """Blocks of text that were sent to the replica."""
    ESTIMATED = "estimated"
    """Pages of tokens that were sent to the replica."""
    EXACT = "exact"
    """Pages of tokens, by complete KV events of the replica."""


_TEXT: Final = Basis.TEXT  # Python 3.11 takes 0.3 µs to find a member in its class


class Pages(NamedTuple):
    """The first prompt of a request in tokens mode."""

    hashes: Sequence[int]
    """Hashes of the prompt's whole pages."""
    page_tokens: int
    tokens: int
    """Tokens of the prompt."""

    def cached(self, pages: int) -> int:
        """Tokens that an engine finds cached if it holds `pages`. Never the last token: the engine computes it for its output."""
        return min(pages, max(0, self.tokens - 1) // self.page_tokens) * self.page_tokens


@dataclass(frozen=True, slots=True)
class DiscoveredReplica:
    """A replica that exists."""

    replica: ReplicaConfig
    unschedulable: str = ""
    """Why the replica may get no new requests, whatever its probes show; empty: it may."""


@dataclass(slots=True, eq=False)
class Member:
    """One known replica."""

    name: str
    slot: int | None = None
    """Slot of the replica's process; None: the process is not there."""
    routable: bool = False
    unschedulable: str = ""
    """Why the replica may get no new requests, whatever its probes show; empty: it may."""
    lives: int = 0
    """Times that the replica joined."""
    context_tokens: int = 0
    """Tokens of the longest prompt that the engine takes, as it reports; 0 where it reports none."""
    backoff: Backoff = field(default_factory=lambda: Backoff(1.0))
    """Backoff of the replica's process; `health` replaces it."""

    @property
    def joined(self) -> bool:
        """Whether the replica's process is there."""
        return self.slot is not None


class MatchedRequest(msgspec.Struct, frozen=True):
    """A request, matched: what `select` and every retry need."""

    dispatch: Dispatch
    matched_blocks: int
    pages: Pages | None = None
    """Pages of the prompt; None: it was matched by its text."""
    adapter: str | None = None

    def estimate(self, output_tokens: int) -> Usage:
        """The usage of a request that a replica computed and did not report."""
        dispatch = self.dispatch
        cached = min(dispatch.matched_tokens, dispatch.input_tokens)
        return Usage(dispatch.input_tokens, cached, output_tokens)


class Prediction(msgspec.Struct, frozen=True, gc=False):
    """How many tokens of its prompt a request should find cached at the replica chosen for it."""

    basis: Basis
    cached_tokens: int


class Ticket(msgspec.Struct, frozen=True):
    """One request at one replica, from selection to its end."""

    member: Member
    slot: int
    life: int
    match: MatchedRequest
    prediction: Prediction


class Fleet:
    """The replicas, the requests in flight at each, and the prefixes that each has cached."""

    def __init__(
        self,
        policy: FleetPolicy,
        index: PrefixIndex | ExactIndex,
        *,
        block_bytes: int,
        adapters_per_batch: int = 8,
    ) -> None:
        self.policy = policy
        self.index = index
        self.adapters = AdapterPlaces(adapters_per_batch)
        self._block_bytes = block_bytes
        self._members: dict[str, Member] = {}
        self._slots: list[Member | None] = []
        self._last_slot = -1
        self.outstanding: list[int] = []
        """Sequences of requests that have not finished, by slot (s_w)."""
        self.routable: ReplicaSet = EMPTY
        self.withdrawn: Callable[[Member], None] = lambda member: None
        """Callback with a replica that takes no new requests from now on."""

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def member(self, name: str) -> Member | None:
        """The replica of that name, if known."""
        return self._members.get(name)

    def load(self, member: Member) -> int:
        """Sequences that have not finished at a replica."""
        return 0 if member.slot is None else self.outstanding[member.slot]

    def blocks(self, member: Member) -> int:
        """Blocks of prompts that this router assumes to be cached at a replica."""
        return 0 if member.slot is None else self.index.held(member.slot)

    @property
    def deserted(self) -> bool:
        """Whether there is no replica, apart from those that will not come back."""
        return all(member.unschedulable == TERMINATING for member in self._members.values())

    def why_unroutable(self) -> str:
        """Why no replica can take a request, for people."""
        members = list(self._members.values())
        if not members:
            return "the service has no replicas"
        absent = sum(not member.joined for member in members)
        unschedulable = sum(member.joined and bool(member.unschedulable) for member in members)
        counts = {
            "unreachable": absent,
            "unschedulable": unschedulable,
            "not ready": len(members) - absent - unschedulable,
        }
        words = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        return f"0 of {len(members)} replicas can take requests: {words}"

    def add(self, name: str) -> Member:
        """A replica is configured. It joins when it first answers."""
        member = self._members[name] = Member(name)
        return member

    def remove(self, member: Member) -> None:
        """A replica is no longer configured. What runs there may finish."""
        self.lost(member)
        del self._members[member.name]

    def ready(self, member: Member) -> None:
        """A replica takes requests; joins if its process is new (R5: no bonus, the policy sees to it)."""
        if member.slot is None:
            member.slot = self._free_slot()
            member.lives += 1
            self._slots[member.slot] = member
            self.outstanding[member.slot] = 0
            self.policy.joined(member.slot)
        member.routable = True
        self.routable = ReplicaSet(self.routable | 1 << member.slot)

    def unready(self, member: Member) -> None:
        """A replica is draining or broken: it gets no more requests, but its cache is still valid."""
        member.routable = False
        if member.slot is not None:
            self.routable = ReplicaSet(self.routable & ~(1 << member.slot))
        self.withdrawn(member)

    def lost(self, member: Member) -> None:
        """A replica's process is gone, and its cache with it (R6)."""
        self.unready(member)
        if member.slot is not None:
            self.policy.left(member.slot)
            self.adapters.left(member.slot)
            self.index.drop(member.slot)
            self._slots[member.slot] = None
            member.slot = None

    def measured(self, speeds: Mapping[str, float]) -> None:
        """Weighted tokens per second of replicas while requests waited there, by name."""
        self.policy.measured(
            {
                member.slot: speeds[member.name]
                for member in self._members.values()
                if member.slot is not None and member.name in speeds
            }
        )

    def replace_policy(self, policy: FleetPolicy) -> None:
        """A changed policy starts from zero (R8 allows it)."""
        self.policy = policy
        for member in self._members.values():
            if member.slot is not None:
                policy.joined(member.slot)

    def replace_index(self, index: PrefixIndex | ExactIndex, *, block_bytes: int) -> None:
        """A changed block size or bound: the index starts empty."""
        self.index = index
        self._block_bytes = block_bytes

    def match(
        self,
        client: str,
        *,
        weight: float,
        text: bytes,
        input_tokens: int,
        pages: Pages | None = None,
        adapter: str | None = None,
        cache_salt: str = "",
        sequences: int = 1,
    ) -> MatchedRequest:
        """Match a prompt with the prefixes cached at routable replicas: by its `pages`, or else by its text.

        Prompts with different salts share no prefix; `pages` has its own.
        """
        if not self.policy.matches_prefix:
            dispatch = Dispatch(client, input_tokens, weight, sequences=sequences)
            return MatchedRequest(dispatch, 0)
        blocks: Sequence[int]
        if pages is not None:
            blocks = pages.hashes
        else:
            seed = namespace_seed(cache_salt)
            blocks = text_blocks(text, block_bytes=self._block_bytes, seed=seed)

        length, block_bytes = len(text), self._block_bytes

        def tokens(depth: int) -> int:
            if pages is not None:
                return pages.cached(depth)
            return input_tokens * depth * block_bytes // length if depth else 0

        def matched_at(slot: int) -> int:
            return tokens(self.index.match(blocks, ReplicaSet(1 << slot)).blocks)

        depth, holders = self.index.match(blocks, self.routable)
        matched_tokens = tokens(depth)
        holders, adapter_tokens = self.adapters.nearest(adapter, holders, self.routable)
        dispatch = Dispatch(
            client=client,
            input_tokens=input_tokens,
            weight=weight,
            longest=holders,
            matched_tokens=matched_tokens,
            adapter_tokens=adapter_tokens,
            blocks=blocks,
            matched_at=matched_at,
            sequences=sequences,
        )
        return MatchedRequest(dispatch, depth, pages, adapter)

    def select(self, match: MatchedRequest, tried: ReplicaSet) -> Ticket | None:
        """A replica for the request, none of `tried`; None where no other is routable.

        From now on its input is charged there and its prompt counts as cached there, even before there is a connection.
        Otherwise requests that arrive meanwhile would see no work there. Give the ticket back with `finished`.
        """
        routable = ReplicaSet(self.routable & ~tried)
        if not routable:
            return None
        slot = self.policy.select(match.dispatch, routable, self.outstanding)
        member = self._slots[slot] if slot is not None else None
        if member is None or slot is None:
            raise RuntimeError(f"{self.policy.name} chose slot {slot}, which holds no replica")
        # Predicted before the prompt is inserted, which would match itself.
        ticket = Ticket(member, slot, member.lives, match, self._predict(match, slot))
        self.outstanding[slot] += match.dispatch.sequences
        self.policy.dispatched(match.dispatch, slot)
        self.index.insert(match.dispatch.blocks, slot)
        self.adapters.sent(match.adapter, slot)
        return ticket

    def _predict(self, match: MatchedRequest, slot: int) -> Prediction:
        """What the replica in `slot` holds of the prompt, which may be less than the longest match."""
        dispatch, tokens = match.dispatch, match.dispatch.matched_tokens
        if match.matched_blocks and not dispatch.longest >> slot & 1:
            tokens = dispatch.matched_at(slot)
        if match.pages is None:
            return Prediction(_TEXT, tokens)
        exact = isinstance(self.index, ExactIndex) and self.index.exact(slot)
        return Prediction(Basis.EXACT if exact else Basis.ESTIMATED, tokens)

    def finished(self, ticket: Ticket, usage: Usage | None) -> None:
        """The request ended there: replace its estimated charge.

        A prompt that was not computed no longer counts as cached there. `NOTHING`: it did not arrive or did not run. None: its
        usage is unknown, and the estimated charge stays.
        """
        if not self.alive(ticket):  # the next process in the slot did not get this request
            return
        slot, match = ticket.slot, ticket.match
        self.outstanding[slot] -= match.dispatch.sequences
        self.policy.finished(match.dispatch, slot, usage)
        if usage is None or not usage.input_tokens:
            self.index.truncate(match.dispatch.blocks, match.matched_blocks, slot)

    def alive(self, ticket: Ticket) -> bool:
        """Whether the process that the request went to is still there."""
        member = ticket.member
        return member.slot == ticket.slot and member.lives == ticket.life

    def _free_slot(self) -> int:
        """A new slot while few are free, else the one that was handed out longest ago, cyclically."""
        free = [slot for slot, member in enumerate(self._slots) if member is None]
        if len(free) > SPARE_SLOTS:
            slot = min(free, key=lambda slot: (slot <= self._last_slot, slot))
        else:
            slot = len(self._slots)
            self._slots.append(None)
            self.outstanding.append(0)
        self._last_slot = slot
        return slot
