"""What a request should find cached at the replica chosen for it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec
from evenkeel_fairshare.fleet.contract import ReplicaSet
from evenkeel_fairshare.prefix.exact import ExactIndex
from evenkeel_fairshare.prefix.index import PrefixIndex
from evenkeel_fairshare.prefix.matching import Depths


class Basis(StrEnum):
    """The basis of a match; the label `mode` of metrics."""

    TEXT = "text"
    """Blocks of text that were sent to the replica."""
    ESTIMATED = "estimated"
    """Pages of tokens that were sent to the replica."""
    EXACT = "exact"
    """Pages of tokens, by complete KV events of the replica."""


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


class Prediction(msgspec.Struct, frozen=True, gc=False):
    """How many tokens of its prompt a request should find cached at the replica chosen for it."""

    basis: Basis
    cached_tokens: int


class HeldPrompt(msgspec.Struct, frozen=True):
    """A prompt, and how much of it replicas hold."""

    index: PrefixIndex | ExactIndex
    blocks: Sequence[int]
    pages: Pages | None
    depths: Depths | None
    """How much of it each replica holds, for a long prompt; None: the index is asked."""
    input_tokens: int
    block_bytes: int
    text_bytes: int

    def tokens(self, depth: int) -> int:
        """Tokens in so many of its blocks."""
        if self.pages is not None:
            return self.pages.cached(depth)
        return self.input_tokens * depth * self.block_bytes // self.text_bytes if depth else 0

    def matched_at(self, slot: int) -> int:
        """Tokens that a replica holds."""
        if self.depths is not None:
            return self.tokens(self.depths.at(slot))
        return self.tokens(self.index.match(self.blocks, ReplicaSet(1 << slot)).blocks)
