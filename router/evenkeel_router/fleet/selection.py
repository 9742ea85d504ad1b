"""Which replica gets a request: filter, match, pick, over one view of the fleet (DESIGN section 5; R2).

Unready, draining and suspect replicas are filtered first; the fleet policy chooses among the others. So no cached prefix attracts a
request to a suspect (R20, `suspicion`). A suspect that has rested gets the next request that can go elsewhere if it fails.

A replica is *known* while it is configured. It has *joined* while its process, and so its cache, exists: a refused connection
ends that. A slot belongs to one process, and its successor gets another slot. So requests that end on the old process do not
change the figures of the new one, and the prefix index can sweep a departed slot in small steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from evenkeel_fairshare.fleet.contract import EMPTY, Dispatch, FleetPolicy, ReplicaSet, Usage
from evenkeel_fairshare.prefix.adapters import AdapterPlaces
from evenkeel_fairshare.prefix.exact import ExactIndex
from evenkeel_fairshare.prefix.index import PrefixIndex, namespace_seed, text_blocks

from evenkeel_router.fleet.discovered import TERMINATING
from evenkeel_router.fleet.long_prompts import (
    LONG_BLOCKS,
    NOT_LOOKED_UP,
    Later,
    LookedUp,
    at_once,
    keep,
)
from evenkeel_router.fleet.member import Member
from evenkeel_router.fleet.prediction import Basis, HeldPrompt, Pages, Prediction

ALL: Final = ""
"""Key of `Fleet.avoided` for every client."""
SPARE_SLOTS: Final = 8
"""A slot is used again only while more than this many are free: mostly the index has swept it by then, and needs no other column for it."""


_TEXT: Final = Basis.TEXT  # Python 3.11 takes 0.3 µs to find a member in its class


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


class Ticket(msgspec.Struct, frozen=True):
    """One request at one replica, from selection to its end."""

    member: Member
    slot: int
    life: int
    match: MatchedRequest
    prediction: Prediction
    probe: bool = False
    """Whether the request shows if a suspect works again."""


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
        self.block_bytes = block_bytes
        self._members: dict[str, Member] = {}
        self.slots: list[Member | None] = []  # the replica whose process holds each slot
        self._last_slot = -1
        self.outstanding: list[int] = []  # sequences that have not finished, by slot (s_w)
        self.vacant = 0
        """Slots where this router has no unfinished request, as a `ReplicaSet`; also slots of processes that are gone."""
        self.routable: ReplicaSet = EMPTY
        self.rested: ReplicaSet = EMPTY  # suspects of which each may get one request as a probe
        self._returning: ReplicaSet = EMPTY  # replicas that may hold few sequences at a time
        self.returned: ReplicaSet = EMPTY
        """Replicas that got few requests and are trusted now, until `Relocation` has seen them."""
        self.avoided: dict[str, ReplicaSet] = {}
        """Client → replicas that failed a request of it a while ago; `ALL` → new ones whose first failure may be the request's. No empty sets."""
        self.later: Later = at_once  # does the steps of what would take long
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
        if not (members := self._members.values()):
            return "the service has no replicas"
        found = Counter(map(Member.why_not, members))
        kinds = ("unreachable", "loading", "unschedulable", "suspect", "not ready")
        words = ", ".join(f"{found[what]} {what}" for what in kinds if found[what])
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
            self.slots[member.slot] = member
            self.outstanding[member.slot] = 0
            self.vacant |= 1 << member.slot
            self.policy.joined(member.slot)
        member.routable = True
        self.routable = ReplicaSet(self.routable | 1 << member.slot)
        if member.standing.allowed is not None:
            self._returning = ReplicaSet(self._returning | 1 << member.slot)
            self._limit(member, member.slot)

    def offer(self, member: Member) -> None:
        """The next request that fits goes to this suspect, as a probe."""
        if member.slot is not None:
            self.rested = ReplicaSet(self.rested | 1 << member.slot)

    def settled(self, member: Member) -> None:
        """A process that was new, or returned, has been there for a while: it may get any number of requests, though none came."""
        if member.slot is not None:
            member.standing.trust()
            self._returning = ReplicaSet(self._returning & ~(1 << member.slot))
            if member.routable:
                self.ready(member)

    def begins(self, ticket: Ticket) -> bool:
        """A replica that is not trusted begins to answer. Returns whether it may get more requests than a probe from now on."""
        member, was_suspect = ticket.member, ticket.member.suspect
        if not self.alive(ticket) or (was_suspect and not ticket.probe):
            return False  # an answer to a request from before
        if member.standing.begun():
            self._returning = ReplicaSet(self._returning & ~(1 << ticket.slot))
            self.returned = ReplicaSet(self.returned | 1 << ticket.slot)
        if was_suspect:
            self._avoided_no_more(ticket.slot)
        if member.routable:
            self.ready(member)
        return was_suspect

    def avoid(self, client: str, ticket: Ticket) -> bool:
        """The replica failed a request of the client, which is not to go there when it comes again. Returns whether that is new."""
        before = self.avoided.get(client, EMPTY)
        if not self.alive(ticket) or before >> ticket.slot & 1:
            return False
        self.avoided[client] = ReplicaSet(before | 1 << ticket.slot)
        return True

    def avoid_no_more(self, client: str, ticket: Ticket) -> None:
        """The time of `avoid` is over."""
        left = ReplicaSet(self.avoided.get(client, EMPTY) & ~(1 << ticket.slot))
        if left:
            self.avoided[client] = left
        else:
            self.avoided.pop(client, None)

    def avoided_by(self, client: str) -> ReplicaSet:
        """The replicas that requests of the client avoid, while there are others."""
        if not self.avoided:
            return EMPTY
        return ReplicaSet(self.avoided.get(client, EMPTY) | self.avoided.get(ALL, EMPTY))

    def _avoided_no_more(self, slot: int) -> None:
        """No client avoids the replica any more: its process is gone, or answers again."""
        left = ((client, slots & ~(1 << slot)) for client, slots in self.avoided.items())
        self.avoided = {client: ReplicaSet(slots) for client, slots in left if slots}

    def unready(self, member: Member) -> None:
        """A replica is draining or broken: it gets no more requests, but its cache is still valid."""
        member.routable = False
        if member.slot is not None:
            others = ~(1 << member.slot)
            self.routable = ReplicaSet(self.routable & others)
            self.rested = ReplicaSet(self.rested & others)
            self._returning = ReplicaSet(self._returning & others)
        if not self.routable:
            self.routable = self.takers()
        self.withdrawn(member)

    def takers(self) -> ReplicaSet:
        """Replicas that can take requests: `routable`, and those on their way back that hold as many as they may."""
        members = self._members.values()
        slots = (one.slot for one in members if one.routable and one.slot is not None)
        return ReplicaSet(sum(1 << slot for slot in slots))

    def lost(self, member: Member) -> None:
        """A replica's process is gone, and its cache with it (R6)."""
        self.unready(member)
        if member.slot is not None:
            self.policy.left(member.slot)
            self.adapters.left(member.slot)
            self.index.drop(member.slot)
            self._avoided_no_more(member.slot)
            self.slots[member.slot] = None
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
        self.block_bytes = block_bytes

    def match(  # noqa: PLR0913 - what a request is matched by
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
        looked_up: LookedUp = NOT_LOOKED_UP,
    ) -> MatchedRequest:
        """Match a prompt with the prefixes cached at routable replicas: by its `pages`, or else by its text.

        Prompts with different salts share no prefix; `pages` has its own.
        """
        if not self.policy.matches_prefix:
            dispatch = Dispatch(client, input_tokens, weight, sequences=sequences)
            return MatchedRequest(dispatch, 0)
        blocks: Sequence[int]
        length, block_bytes = len(text), self.block_bytes
        hashed, depths = looked_up
        if pages is not None:
            blocks = pages.hashes
        elif hashed is not None:
            blocks = hashed.hashes
            length, block_bytes = hashed.text_bytes, hashed.block_bytes
        else:
            seed = namespace_seed(cache_salt)
            blocks = text_blocks(text, block_bytes=block_bytes, seed=seed)
        prompt = HeldPrompt(self.index, blocks, pages, depths, input_tokens, block_bytes, length)
        depth, holders = depths.longest if depths else self.index.match(blocks, self.routable)
        matched_tokens, adapter_tokens = prompt.tokens(depth), 0
        if adapter is not None:
            holders, adapter_tokens = self.adapters.nearest(adapter, holders, self.routable)
        dispatch = Dispatch(
            client=client,
            input_tokens=input_tokens,
            weight=weight,
            longest=holders,
            matched_tokens=matched_tokens,
            adapter_tokens=adapter_tokens,
            blocks=blocks,
            matched_at=prompt.matched_at,
            sequences=sequences,
        )
        return MatchedRequest(dispatch, depth, pages, adapter)

    def select(self, match: MatchedRequest, tried: ReplicaSet) -> Ticket | None:
        """A replica for the request, none of `tried`; None where no other is routable.

        From now on its input is charged there and its prompt counts as cached there, even before there is a connection.
        Otherwise requests that arrive meanwhile would see no work there. Give the ticket back with `finished`.
        """
        routable, probe = self.routable, False
        if tried or self.avoided or self.rested or not routable:
            routable, probe = self._beware(match, ReplicaSet(routable & ~tried), tried)
            if not routable:
                return None
        dispatch = match.dispatch
        slot = self.policy.select(dispatch, routable, self.outstanding)
        if slot is None or (member := self.slots[slot]) is None:
            raise RuntimeError(f"{self.policy.name} chose slot {slot}, which holds no replica")
        # Predicted before the prompt is inserted, which would match itself.
        if match.pages is None and dispatch.longest >> slot & 1:
            prediction = Prediction(_TEXT, dispatch.matched_tokens)
        else:
            prediction = self._predict(match, slot)
        ticket = Ticket(member, slot, member.lives, match, prediction, probe)
        self.outstanding[slot] += dispatch.sequences
        self.vacant &= ~(1 << slot)
        if self._returning and self._returning >> slot & 1:
            self._limit(member, slot)
        self.policy.dispatched(dispatch, slot)
        if len(dispatch.blocks) <= LONG_BLOCKS:
            self.index.insert(dispatch.blocks, slot)
        else:
            self.later(self.index.inserting(dispatch.blocks, slot))
        if match.adapter is not None:
            self.adapters.sent(match.adapter, slot)
        return ticket

    def _beware(
        self, match: MatchedRequest, routable: ReplicaSet, tried: ReplicaSet
    ) -> tuple[ReplicaSet, bool]:
        """The replicas to choose from: without those that failed the client, or the suspect whose probe the request becomes."""
        routable = routable or ReplicaSet(self.takers() & ~tried)
        routable = ReplicaSet(routable & ~self.avoided_by(match.dispatch.client)) or routable
        if not self.rested or tried or not routable:
            return routable, False
        slot = (self.rested & -self.rested).bit_length() - 1
        self.rested = ReplicaSet(self.rested & ~(1 << slot))
        member = self.slots[slot]
        if member is not None:
            member.standing.probing = True
        return ReplicaSet(1 << slot), True

    def _limit(self, member: Member, slot: int) -> None:
        """Take a replica that returns out of the choice while it holds as many sequences as it may (R19)."""
        if not member.routable:
            return
        others, allowed = self.routable & ~(1 << slot), member.standing.allowed
        is_full = allowed is not None and self.outstanding[slot] >= allowed
        self.routable = ReplicaSet(others if is_full else others | 1 << slot)
        if not self.routable:
            self.routable = self.takers()

    def predicted(self, match: MatchedRequest, slot: int) -> int:
        """Tokens of a request that the replica in `slot` has cached, as far as this router knows."""
        return self._predict(match, slot).cached_tokens

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
        slot, member, dispatch = ticket.slot, ticket.member, ticket.match.dispatch
        if member.slot != slot or member.lives != ticket.life:  # as `alive`
            return  # the next process in the slot did not get this request
        left = self.outstanding[slot] = self.outstanding[slot] - dispatch.sequences
        if not left:
            self.vacant |= 1 << slot
        if ticket.probe:
            member.standing.probing = False
        if self._returning and self._returning >> slot & 1:
            self._limit(member, slot)
        self.policy.finished(dispatch, slot, usage)
        if usage is None or not usage.input_tokens:
            keep(self.index, dispatch.blocks, ticket.match.matched_blocks, slot, self.later)

    def alive(self, ticket: Ticket) -> bool:
        """Whether the process that the request went to is still there."""
        member = ticket.member
        return member.slot == ticket.slot and member.lives == ticket.life

    def _free_slot(self) -> int:
        """A new slot while few are free, else the one that was handed out longest ago, cyclically."""
        free = [slot for slot, member in enumerate(self.slots) if member is None]
        if len(free) > SPARE_SLOTS:
            slot = min(free, key=lambda slot: (slot <= self._last_slot, slot))
        else:
            slot = len(self.slots)
            self.slots.append(None)
            self.outstanding.append(0)
        self._last_slot = slot
        return slot
