"""Preble's E2, the fleet half: exploit a cached prefix or explore by load, and rebalance (read from its public code).

A request whose known prefix is longer than its new part goes to a replica that holds the longest part of that prefix (exploit). Any
other goes to the replica with the least load (explore). The load of a replica is in milliseconds: the prefills of the last three
minutes that its prefixes cost, the decodes of its open requests, and what it would have to evict. Prefixes move or are copied from
the most to the least loaded replica.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import ClassVar, Final

from evenkeel_fairshare.fleet.contract import EMPTY, Dispatch, ReplicaSet, Usage, slots_of
from evenkeel_simulator.engine.profiles import CostProfile

from evenkeel_laboratory.policies.fleet_facts import InformedPolicy

WINDOW_S: Final = 180.0
FIRST_ITL_MS: Final = 150.0
"""Time per output token before the first request has ended; then the median of the last `LAST_REQUESTS`."""
LAST_REQUESTS: Final = 200
FIRST_OUTPUT_TOKENS: Final = 45
REBALANCE_REQUESTS: Final = 50
"""Requests per replica between two looks at the balance."""
IMBALANCE: Final = 1.5
"""The most loaded replica has this many times the load of the least loaded one."""
SLOWDOWN: Final = 2.0
"""A replica's TTFT has grown by this factor within the window: its only large prefix is copied."""


class _Node:
    """One block of prompts seen within the window."""

    __slots__ = ("count", "is_large", "key", "missed_ms", "parent", "slots", "tokens")

    def __init__(self, key: int, tokens: int, parent: _Node | None, *, context: int) -> None:
        self.key = key
        self.tokens = tokens
        self.parent = parent
        self.is_large = tokens > context
        """Whether the block is longer than all of the prompt before it."""
        self.slots: ReplicaSet = EMPTY
        """Where it is allocated."""
        self.count = 0
        """Requests in the window."""
        self.missed_ms = 0.0
        """Time of the prefills of this block by requests in the window."""


class PrebleE2(InformedPolicy):
    """Exploit, explore, rebalance; O(blocks + replicas) per request. Fair to no client."""

    name: ClassVar[str] = "PrebleE2"
    matches_prefix: ClassVar[bool] = True

    def __init__(self, *, profile: CostProfile, kv_tokens: int | None = None) -> None:
        super().__init__()
        self._profile = profile
        self._kv_tokens = kv_tokens or profile.kv_tokens
        self._nodes: dict[int, _Node] = {}
        self._uses: deque[tuple[float, list[_Node], list[tuple[_Node, float]]]] = deque()
        """(time, blocks of a request, the prefill in ms of those that its replica lacked)."""
        self._prefills_ms: dict[int, float] = {}
        self._open: Counter[int] = Counter()
        self._caches: dict[int, OrderedDict[int, int]] = {}
        """Slot → tokens of the blocks that were sent there, the least recently used first."""
        self._held: Counter[int] = Counter()
        self._itls_ms: deque[float] = deque(maxlen=LAST_REQUESTS)
        self._itl_ms = FIRST_ITL_MS
        self._outputs: deque[int] = deque(maxlen=LAST_REQUESTS)
        self._ttfts: deque[tuple[float, int, float]] = deque()
        self._until_rebalance = REBALANCE_REQUESTS

    # The contract

    def select(
        self, request: Dispatch, routable: ReplicaSet, outstanding: Sequence[int]
    ) -> int | None:
        self._expire()
        known = self._known(request)
        matched = sum([node.tokens for node in known])
        # Exploit only if more of the prompt is known than not; else explore all replicas.
        if known and matched > request.input_tokens - matched:
            holders = next((n.slots & routable for n in reversed(known) if n.slots & routable), 0)
            routable = ReplicaSet(holders) or routable
        return min(slots_of(routable), key=lambda slot: self._load_ms(slot, request))

    def dispatched(self, request: Dispatch, slot: int) -> None:
        self._open[slot] += 1
        path, missed = self._insert(request, slot)
        self._uses.append((self.facts.now_s, path, missed))
        self._cache(path, slot)
        self._until_rebalance -= 1
        if self._until_rebalance <= 0:
            self._until_rebalance = REBALANCE_REQUESTS * max(1, len(self._prefills_ms))
            self._rebalance()

    def finished(self, request: Dispatch, slot: int, usage: Usage | None) -> None:
        if self._open[slot]:
            self._open[slot] -= 1
        if usage is not None and usage.output_tokens:
            self._outputs.append(usage.output_tokens)

    def timed(self, slot: int, *, ttft_s: float, itl_s: float | None) -> None:
        self._ttfts.append((self.facts.now_s, slot, ttft_s))
        if itl_s is not None:
            self._itls_ms.append(itl_s * 1e3)
            self._itl_ms = median(self._itls_ms)

    def joined(self, slot: int) -> None:
        self._prefills_ms[slot] = 0.0
        self._caches[slot] = OrderedDict()
        self._held[slot] = self._open[slot] = 0
        self._until_rebalance = REBALANCE_REQUESTS * len(self._prefills_ms)

    def left(self, slot: int) -> None:
        for node in self._nodes.values():
            self._allocate(node, ReplicaSet(node.slots & ~(1 << slot)))
        del self._prefills_ms[slot], self._caches[slot]

    # The load of a replica

    def _load_ms(self, slot: int, request: Dispatch) -> float:
        return self._total_ms(slot) + self._eviction_ms(slot, request)

    def _total_ms(self, slot: int) -> float:
        """Expected time of the work of a slot, without evictions, which rebalancing leaves out."""
        output = fmean(self._outputs) if self._outputs else FIRST_OUTPUT_TOKENS
        return self._prefills_ms[slot] + self._open[slot] * output * self._itl_ms

    def _eviction_ms(self, slot: int, request: Dispatch) -> float:
        """The prefills of the large blocks that would have to make room, the least recently used first."""
        cache = self._caches[slot]
        sizes = zip(request.blocks, request.block_tokens, strict=True)
        excess = self._held[slot] + sum([n for key, n in sizes if key not in cache])
        cost = 0.0
        for key, tokens in cache.items():
            if excess <= self._kv_tokens:
                break
            excess -= tokens
            node = self._nodes.get(key)
            if node is not None and node.is_large:
                cost += node.missed_ms
        return cost

    def _prefill_ms(self, tokens: int, context: int) -> float:
        profile = self._profile
        return tokens * (
            profile.prefill_token_ms + profile.prefill_attention_ms * (context + tokens)
        )

    # The tree of the window

    def _known(self, request: Dispatch) -> list[_Node]:
        known = []
        for key in request.blocks:
            node = self._nodes.get(key)
            if node is None:
                break
            known.append(node)
        return known

    def _insert(
        self, request: Dispatch, slot: int
    ) -> tuple[list[_Node], list[tuple[_Node, float]]]:
        path: list[_Node] = []
        missed: list[tuple[_Node, float]] = []
        context = 0
        for key, tokens in zip(request.blocks, request.block_tokens, strict=True):
            node = self._nodes.get(key)
            if node is None:
                parent = path[-1] if path else None
                node = self._nodes[key] = _Node(key, tokens, parent, context=context)
            node.count += 1
            if not node.slots >> slot & 1:
                cost_ms = self._prefill_ms(tokens, context)
                missed.append((node, cost_ms))
                self._allocate(node, ReplicaSet(node.slots | 1 << slot), more_ms=cost_ms)
            path.append(node)
            context += tokens
        return path, missed

    def _allocate(self, node: _Node, slots: ReplicaSet, *, more_ms: float = 0.0) -> None:
        """Divide the prefills of a block evenly among the replicas to which it is allocated."""
        for slot in slots_of(node.slots):
            self._prefills_ms[slot] -= node.missed_ms / node.slots.bit_count()
        node.slots = slots
        node.missed_ms += more_ms
        for slot in slots_of(node.slots):
            self._prefills_ms[slot] += node.missed_ms / node.slots.bit_count()

    def _cache(self, path: Iterable[_Node], slot: int) -> None:
        cache = self._caches[slot]
        for node in path:
            if node.key not in cache:
                cache[node.key] = node.tokens
                self._held[slot] += node.tokens
            cache.move_to_end(node.key)
        while self._held[slot] > self._kv_tokens and len(cache) > 1:
            key, tokens = cache.popitem(last=False)
            self._held[slot] -= tokens
            evicted = self._nodes.get(key)
            if evicted is not None:
                self._allocate(evicted, ReplicaSet(evicted.slots & ~(1 << slot)))

    def _expire(self) -> None:
        """Forget what the window has left behind, and the allocation of blocks without a use in it."""
        start_s = self.facts.now_s - WINDOW_S
        while self._uses and self._uses[0][0] < start_s:
            _, path, missed = self._uses.popleft()
            for node, cost_ms in missed:
                self._allocate(node, node.slots, more_ms=-cost_ms)
            for node in path:
                node.count -= 1
                if not node.count:
                    self._allocate(node, EMPTY)
                    del self._nodes[node.key]
        while self._ttfts and self._ttfts[0][0] < start_s:
            self._ttfts.popleft()

    # Rebalancing

    def _rebalance(self) -> None:
        """Pair the most with the least loaded replica, the second with the last but one, and so on."""
        by_load = sorted(self._prefills_ms, key=lambda slot: (self._total_ms(slot), slot))
        for heavy, light in zip(reversed(by_load), by_load, strict=True):
            # Each further pair is closer together than this one.
            if self._total_ms(heavy) < IMBALANCE * self._total_ms(light):
                return
            self._level(heavy, light)

    def _level(self, heavy: int, light: int) -> None:
        movable = [n for n in self._nodes.values() if n.slots >> heavy & 1 and n.is_large]
        movable = [node for node in movable if node.count > 1]
        movable.sort(key=lambda node: (node.missed_ms / node.slots.bit_count(), node.key))
        if len(movable) == 1 and self._has_slowed(heavy):
            self._move(movable[0], heavy, light, keep=True)
            return
        for node in movable:
            part_ms = node.missed_ms / node.slots.bit_count()
            if self._total_ms(heavy) - part_ms < self._total_ms(light) + part_ms:
                return
            self._move(node, heavy, light, keep=False)

    def _move(self, top: _Node, heavy: int, light: int, *, keep: bool) -> None:
        """A block with all that is allocated below it."""
        for node in list(self._nodes.values()):
            above: _Node | None = node
            while above is not None and above is not top:
                above = above.parent
            if above is top and node.slots >> heavy & 1:
                slots = node.slots if keep else node.slots & ~(1 << heavy)
                self._allocate(node, ReplicaSet(slots | 1 << light))

    def _has_slowed(self, slot: int) -> bool:
        """Whether the mean TTFT of a slot in the second half of the window is `SLOWDOWN` times that in the first half."""
        middle_s = self.facts.now_s - WINDOW_S / 2
        own = [(time_s, ttft_s) for time_s, where, ttft_s in self._ttfts if where == slot]
        early = [ttft_s for time_s, ttft_s in own if time_s < middle_s]
        late = [ttft_s for time_s, ttft_s in own if time_s >= middle_s]
        return bool(early and late) and fmean(late) >= SLOWDOWN * fmean(early)
