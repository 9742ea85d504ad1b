"""What the engine has of each waiting request: how much is cached, without a match of all of them before every pass; and its LoRA adapter.

Upstream matches every waiting request before each pass, and therefore gives up its order beyond 128 of them. Here a pass
costs only what changed:

- A match **grows** when another request computes the next block that a request lacks. Requests are indexed by the hash of
  that block, which stands for the whole prefix up to it. A computed block names the requests to match again.
- A match **shrinks** by eviction, of which there is no notice. Requests that match the same tokens form a group, and a prefix
  that one of them matches is cached for all. So every pass matches one request of each of a few groups again, in turns: of more
  groups where more was computed, since only that evicts. If its match changed, the rest of its group is matched too. A match also
  counts as a use, so these prefixes are evicted last.

A stale match costs locality only: admission matches again, and that match is charged.

The papers charge a request for the tokens that are computed for it. A load of an adapter is such work: it takes time of the engine, the request
that needs it causes it, and later requests with the adapter get it free, like a cached prefix (design R10). So it is charged as
input, by a fixed number of tokens: times differ between tensor-parallel ranks, and their batches would too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable
from itertools import islice
from typing import Any, Final, TypeVar

from evenkeel_fairshare.prefix.index import token_blocks
from xxhash import xxh3_64_intdigest

from evenkeel_plugin.request import EngineRequest, cache_namespace

GROUPS: Final = 8
"""Groups of which a pass matches a request again at most though nothing is known to have changed."""
TOKENS_OF_A_GROUP: Final = 64
"""Computed tokens for which one group, besides the first one, is matched again."""
MATCHES: Final = 128
"""Other matches in a pass at most, about three milliseconds. The rest follows in the next passes."""
MATCHES_SAVED: Final = 16
"""Matches that a pass adds to those that later passes may make; an admission adds one too, and a match that may have changed.
Thus a burst is matched at once, and a long queue that came at once within some passes, faster than requests are admitted."""
BLOCK_TOKENS: Final = 16
SHARED_BLOCKS: Final = 2
"""A request waits for another that computes at least this many blocks it lacks (upstream: 32 tokens)."""

Key = TypeVar("Key")
Prefix = tuple[int, int, tuple[int, ...]]
"""(number of tokens, hash of their whole blocks, the tokens beyond these): equal for equal prefixes."""


class Matching:
    """The waiting requests' matches, and which blocks are being computed right now."""

    def __init__(self, match: Callable[[EngineRequest], int]) -> None:
        """`match` asks the cache and returns the tokens found."""
        self._match = match
        self._blocks: dict[EngineRequest, tuple[int, ...]] = {}
        self._prefixes: dict[EngineRequest, Prefix] = {}
        # Ordered, not sets: the order of matching steers eviction, and all ranks must evict the same.
        self._groups: dict[Prefix, dict[EngineRequest, None]] = {}
        """Requests by what they match; the least recently matched groups and members first."""
        self._lacking: dict[int, dict[EngineRequest, None]] = {}
        self._stale: dict[EngineRequest, None] = {}
        self._computing: Counter[int] = Counter()
        self._computed_by: dict[EngineRequest, tuple[int, ...]] = {}
        self._evicting = 0
        """Tokens that were computed and may have evicted others that no pass matched since."""
        self._saved = MATCHES
        """Matches that the next pass may make."""

    def add(self, request: EngineRequest) -> None:
        """A request waits."""
        self._stale[request] = None

    def discard(self, request: EngineRequest) -> None:
        """A request no longer waits."""
        self._forget(request)
        self._blocks.pop(request, None)
        self._stale.pop(request, None)

    def refresh(self, *, decoded: int) -> dict[EngineRequest, int]:
        """Match what is due; returns the cached tokens of each request whose match changed. `decoded`: output tokens computed
        since the last pass."""
        changed: dict[EngineRequest, int] = {}
        self._evicting += decoded
        # A match is a use: what was computed last is evicted last. So known prefixes come first.
        groups = min(GROUPS, 1 + self._evicting // TOKENS_OF_A_GROUP)
        self._evicting = max(0, self._evicting - groups * TOKENS_OF_A_GROUP)
        for prefix in [*islice(self._groups, groups)]:
            group = self._groups.pop(prefix)
            self._groups[prefix] = group
            if self._rematch(next(iter(group)), changed):
                others = self._groups.get(prefix, {})
                # In front: these matches are known to be too long.
                self._stale = {**others, **self._stale}
                self._saved += len(others)
        self._saved = min(MATCHES, self._saved + MATCHES_SAVED)
        due = [*islice(self._stale, self._saved)]
        self._saved -= len(due)
        for request in due:
            del self._stale[request]
            self._rematch(request, changed)
        return changed

    def is_being_computed(self, request: EngineRequest, matched_tokens: int) -> bool:
        """Whether another request computes the next `SHARED_BLOCKS` blocks that this one lacks."""
        blocks = self._blocks_of(request)
        # Rounded up: a block that is matched in part is not counted as lacking.
        last = -(-matched_tokens // BLOCK_TOKENS) + SHARED_BLOCKS - 1
        return last < len(blocks) and self._computing[blocks[last]] > 0

    def begin(self, request: EngineRequest, extend_tokens: int) -> None:
        """A request was admitted: its blocks are being computed."""
        self._evicting += extend_tokens
        self._saved += 1
        blocks = self._computed_by[request] = self._blocks_of(request)
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
            if (grown := self._lacking.get(block)) is not None:
                self._stale.update(grown)
                self._saved += len(grown)

    def _rematch(self, request: EngineRequest, changed: dict[EngineRequest, int]) -> bool:
        """Match a request; whether its match changed."""
        tokens = self._match(request)
        prefix = self._prefixes.get(request)
        if prefix is not None and prefix[0] == tokens:
            group = self._groups[prefix]
            del group[request]
            group[request] = None
            return False
        self._forget(request)
        changed[request] = tokens
        blocks, whole = self._blocks_of(request), tokens // BLOCK_TOKENS
        if whole < len(blocks):
            self._lacking.setdefault(blocks[whole], {})[request] = None
        rest = _context(request, whole * BLOCK_TOKENS, tokens)
        prefix = (tokens, blocks[whole - 1] if whole else _namespace(request), rest)
        self._prefixes[request] = prefix
        self._groups.setdefault(prefix, {})[request] = None
        return True

    def _forget(self, request: EngineRequest) -> None:
        prefix = self._prefixes.pop(request, None)
        if prefix is not None:
            _remove(self._groups, prefix, request)
            blocks, whole = self._blocks[request], prefix[0] // BLOCK_TOKENS
            if whole < len(blocks):
                _remove(self._lacking, blocks[whole], request)

    def _blocks_of(self, request: EngineRequest) -> tuple[int, ...]:
        """The request's blocks when it began to wait."""
        blocks = self._blocks.get(request)
        if blocks is None:
            blocks = self._blocks[request] = _blocks(request)
        return blocks


def _remove(index: dict[Key, dict[EngineRequest, None]], key: Key, request: EngineRequest) -> None:
    group = index[key]
    del group[request]
    if not group:
        del index[key]


def _context(request: EngineRequest, start: int, end: int) -> tuple[int, ...]:
    """The tokens from `start` to `end` of input and output so far."""
    inputs = len(request.origin_input_ids)
    output = request.output_ids[max(0, start - inputs) : max(0, end - inputs)]
    return (*request.origin_input_ids[start:end], *output)


def _namespace(request: EngineRequest) -> int:
    return xxh3_64_intdigest(cache_namespace(request).encode())


def _blocks(request: EngineRequest) -> tuple[int, ...]:
    tokens = [*request.origin_input_ids, *request.output_ids]
    return tuple(token_blocks(tokens, block_tokens=BLOCK_TOKENS, seed=_namespace(request)))


LOAD_TOKENS: Final = 256
"""Extend tokens that a load counts as: a GPU of 80 GB computes as many, for a model of 8 billion parameters, in the 16 ms of a load."""


class AdapterLoads:
    """The loads of one scheduler."""

    def __init__(self, loaded: Callable[[], Container[str]] = lambda: ()) -> None:
        """`loaded` returns the ids of the adapters in the engine's slots."""
        self._loaded = loaded
        self._coming: set[str] = set()

    def begin_pass(self) -> None:
        """The engine has loaded the adapters of the last batch."""
        self._coming.clear()

    def tokens(self, request: Any) -> int:
        """Tokens to charge for the load that an admitted request causes."""
        adapter = getattr(request, "lora_id", None)
        if adapter is None or adapter in self._coming or adapter in self._loaded():
            return 0
        self._coming.add(adapter)
        return LOAD_TOKENS
