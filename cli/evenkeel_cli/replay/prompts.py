"""Prompts for a trace that only says how long they were and which blocks they shared. Pure.

Equal keys give equal text at equal places, so an engine's cache finds the prefixes that the trace had. Text
is made of short common words, each a blank and at most three letters: one token in the simulator and in
nearly every byte-pair vocabulary, so that a prompt has about as many tokens as the trace says.
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
    """The text of a call; what the trace does not share is told apart by `unique`. Another seed, another text."""
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
