"""How much of each waiting request is cached, without a match of all of them before every pass.

Upstream matches every waiting request before each pass, and therefore gives up its order beyond 128 of them. Here a pass
costs only what changed:

- A match **grows** when another request computes the next block that a request lacks. Requests are indexed by the hash of
  that block, which stands for the whole prefix up to it. A computed block names the requests to match again.
- A match **shrinks** by eviction, of which there is no notice. So every pass also matches again the few requests that were
  matched longest ago. Up to `REMATCHED` waiting requests the matches are therefore exact, as upstream's are.

A stale match costs locality only: admission matches again, and that match is charged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from evenkeel_fairshare.prefix.blocks import token_blocks
from xxhash import xxh3_64_intdigest

from evenkeel_sglang.engine import EngineRequest, cache_namespace

REMATCHED: Final = 128
"""Requests matched again in a pass though nothing is known to have changed: upstream's own limit."""
BLOCK_TOKENS: Final = 16
SHARED_BLOCKS: Final = 2
"""A request waits for another that computes at least this many blocks it lacks (upstream: 32 tokens)."""


class Matching:
    """The waiting requests' matches, and which blocks are being computed right now."""

    def __init__(self, match: Callable[[EngineRequest], int]) -> None:
        """`match` asks the cache and returns the tokens found."""
        self._match = match
        self._blocks: dict[EngineRequest, list[int]] = {}
        self._matched: dict[EngineRequest, int] = {}  # least recently matched first
        # Ordered, not sets: the order of matching steers eviction, and all ranks must evict the same.
        self._lacking: dict[int, dict[EngineRequest, None]] = {}
        self._stale: dict[EngineRequest, None] = {}
        self._computing: Counter[int] = Counter()
        self._computed_by: dict[EngineRequest, list[int]] = {}

    def add(self, request: EngineRequest) -> None:
        """A request waits."""
        self._blocks[request] = _blocks(request)
        self._stale[request] = None

    def discard(self, request: EngineRequest) -> None:
        """A request no longer waits."""
        if request in self._blocks:
            self._forget(request)
            del self._blocks[request]
            self._stale.pop(request, None)

    def refresh(self) -> dict[EngineRequest, int]:
        """Match what is due; returns the tokens cached of each request that was matched."""
        stale, self._stale = self._stale, {}
        oldest = [r for r in islice(self._matched, REMATCHED) if r not in stale]
        # A match is a use: what was computed last is evicted last.
        due = [*oldest, *stale]
        return {request: self._rematch(request) for request in due}

    def is_being_computed(self, request: EngineRequest, matched_tokens: int) -> bool:
        """Whether another request computes the next `SHARED_BLOCKS` blocks that this one lacks."""
        blocks = self._blocks[request]
        last = -(-matched_tokens // BLOCK_TOKENS) + SHARED_BLOCKS - 1
        return last < len(blocks) and self._computing[blocks[last]] > 0

    def begin(self, request: EngineRequest) -> None:
        """A request was admitted: its blocks are being computed."""
        blocks = self._computed_by[request] = self._blocks[request]
        self._computing.update(blocks)
        self.discard(request)

    def computed(self, request: EngineRequest, *, prefilled: bool) -> None:
        """A forward pass computed some of the input of a request; `prefilled`: it was the last of it."""
        blocks = self._computed_by.get(request)
        if blocks is None:
            return
        self._named(blocks)
        if prefilled:
            self.end(request)

    def end(self, request: EngineRequest) -> None:
        """Nothing more of the input of a request will be computed."""
        for block in self._computed_by.pop(request, ()):
            if self._computing[block] == 1:
                del self._computing[block]
            else:
                self._computing[block] -= 1

    def cached(self, request: EngineRequest) -> None:
        """A request finished, and its output is cached below its input."""
        self.end(request)
        if self._lacking:
            self._named(_blocks(request))

    def _named(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if block in self._lacking:
                self._stale.update(self._lacking[block])

    def _rematch(self, request: EngineRequest) -> int:
        self._forget(request)
        matched_tokens = self._match(request)
        self._matched[request] = matched_tokens
        lacks = self._lacks(request)
        if lacks is not None:
            self._lacking.setdefault(lacks, {})[request] = None
        return matched_tokens

    def _forget(self, request: EngineRequest) -> None:
        if request not in self._matched:
            return
        lacks = self._lacks(request)
        if lacks is not None:
            waiting = self._lacking[lacks]
            del waiting[request]
            if not waiting:
                del self._lacking[lacks]
        del self._matched[request]

    def _lacks(self, request: EngineRequest) -> int | None:
        """The first block that is not wholly cached; None beyond the last whole one."""
        blocks = self._blocks[request]
        index = self._matched[request] // BLOCK_TOKENS
        return blocks[index] if index < len(blocks) else None


def _blocks(request: EngineRequest) -> list[int]:
    tokens = [*request.origin_input_ids, *request.output_ids]
    namespace = xxh3_64_intdigest(cache_namespace(request).encode())
    return token_blocks(tokens, block_tokens=BLOCK_TOKENS, seed=namespace)
