"""Log probabilities of output tokens: invented, but they add up, and the same answer always has the same ones.

A token has a probability from 0.5 to 1, drawn from the answer's seed; its alternatives share the rest, each half of what
is left. So the token that was produced is always the most probable.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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


def completion_form(found: Sequence[TokenProbability], *, echoed: Sequence[str]) -> dict[str, Any]:
    """Log probabilities in the form of completions, after those of an echoed prompt (`echoed`: texts of its tokens).

    The prompt's first token has no probability; SGLang has no text offsets and reports -1.
    """
    prompt = [(text, None if index == 0 else -1.0) for index, text in enumerate(echoed)]
    pairs = [*prompt, *((one.text, one.logprob) for one in found)]
    tops = [None] * len(echoed) + [dict(one.top) for one in found]
    return {
        "text_offset": [-1] * len(pairs),
        "token_logprobs": [logprob for _, logprob in pairs],
        "tokens": [text for text, _ in pairs],
        "top_logprobs": tops if any(tops) else [],
    }
