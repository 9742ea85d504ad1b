"""Log probabilities of output tokens: invented, but they add up, and the same answer always has the same ones.

A token has a probability from 0.5 to 1, drawn from the answer's seed; its alternatives share the rest, each half of what
is left. So the token that was produced is always the most probable.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from evenkeel_simulator.server import tokens
from evenkeel_simulator.server.speech import Speech, alternatives


@dataclass(frozen=True, slots=True)
class TokenProbability:
    """One output token and its log probability."""

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...]
    """The most probable tokens here, itself first."""


def probabilities(speech: Speech, start: int, end: int, top: int) -> Iterator[TokenProbability]:
    """Probabilities of the tokens from `start` to before `end`, with the `top` most probable ones."""
    for index, token in enumerate(speech.ids(start, end), start):
        text = tokens.decode([token])
        probability = 0.5 + _uniform(speech.seed, index) / 2
        found = [(text, math.log(probability))]
        rest = 1 - probability
        for other in alternatives(speech.seed, index, max(0, top - 1), besides=text):
            rest /= 2
            found.append((other, math.log(rest)))
        yield TokenProbability(text, found[0][1], tuple(found[:top]))


def _uniform(seed: int, index: int) -> float:
    return (xxhash.xxh3_64_intdigest(index.to_bytes(4, "little"), seed) >> 11) / 2**53


def chat_form(found: Sequence[TokenProbability]) -> dict[str, Any]:
    """Log probabilities in the form of chats and responses."""
    return {
        "content": [
            {
                **_with_bytes(one.text, one.logprob),
                "top_logprobs": [_with_bytes(text, logprob) for text, logprob in one.top],
            }
            for one in found
        ]
    }


def _with_bytes(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "bytes": list(text.encode()), "logprob": logprob}


def prompt_probabilities(ids: Iterable[int], top: int) -> Iterator[TokenProbability]:
    """Probabilities of a prompt's tokens, each decided by the tokens up to it, with itself as the only one of the `top`."""
    seed = 0
    for index, token in enumerate(ids):
        logprob = math.log(0.5 + _uniform(seed, token) / 2)
        text = tokens.decode([token])
        yield TokenProbability(text, logprob, ((text, logprob),) if top and index else ())
        seed = xxhash.xxh3_64_intdigest(token.to_bytes(4, "little"), seed)


def completion_form(
    found: Sequence[TokenProbability], *, echoed: Sequence[TokenProbability]
) -> dict[str, Any]:
    """Log probabilities in the form of completions, after those of an echoed prompt.

    The prompt's first token has no probability; SGLang has no text offsets and reports -1.
    """
    every = [*echoed, *found]
    tops = [dict(one.top) or None for one in every]
    logprobs: list[float | None] = [one.logprob for one in every]
    if echoed:
        logprobs[0] = None
    return {
        "text_offset": [-1] * len(every),
        "token_logprobs": logprobs,
        "tokens": [one.text for one in every],
        "top_logprobs": tops if any(tops) else [],
    }
