"""What a request should find cached at the replica chosen for it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec


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
