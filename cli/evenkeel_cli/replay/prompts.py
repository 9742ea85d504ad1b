"""Builds the prompts of a trace from their lengths and the blocks that they share. Pure.

Equal block keys give equal text, so the engine's cache finds the same prefixes as in the trace. The text consists of
common words with one space and at most three letters. Each is one token in the simulator and in nearly every
byte-pair vocabulary, so a prompt has about as many tokens as the trace states.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from random import Random
from typing import Final

from evenkeel_simulator.experiments.workload import Call

_TEXT: Final = (
    "all and any are ask bad bag bed big bit box boy bus but buy can car cat cut day did dog dry eat "
    "egg end eye far few fit fly for fox fun get god got guy had has hat her him his hit hot how ice "
    "its job key kid law lay leg let lie lot low man map may men met mix new nor not now off oil old "
    "one our out own pay per put ran red row run sat saw say sea see set she sit six sky son sun "
    "tax tea ten the tie too top try two use war was way who why win yes yet you"
)
WORDS: Final = tuple(f" {word}" for word in _TEXT.split())


def prompt_of(call: Call, unique: str, *, seed: int = 0) -> str:
    """The text of a call. `unique` decides the part that the trace does not share, and `seed` the whole text."""
    parts = [_block((seed, segment.key), segment.tokens) for segment in call.prompt]
    rest = call.input_tokens - sum(segment.tokens for segment in call.prompt)
    if rest > 0:
        parts.append(_words((seed, "rest of", unique), rest))
    return "".join(parts)


@lru_cache(maxsize=8192)  # 512 words are 2 KiB: at most 16 MiB
def _block(key: Hashable, tokens: int) -> str:
    return _words(key, tokens)


def _words(key: Hashable, count: int) -> str:
    return "".join(Random(repr(key)).choices(WORDS, k=count))
