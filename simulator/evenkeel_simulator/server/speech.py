"""The simulated model's answers: readable words, JSON by a schema, or tool calls. The prompt and the seed decide them.

The whole answer is known when the request arrives, so a stop string needs no check later. Every word is exactly one token
of `tokens`. So an answer that is repeated in the next turn's prompt is found in the cache.

The natural length of an answer is log-normal with median 128 and sigma 0.8 (mean about 176, between 4 and
2048 tokens, the end token included), drawn from the hash of the prompt and the number of the choice.
`ignore_eos` and `min_tokens` override it, `max_tokens` and `stop` cut it. JSON and tool calls end where they are complete.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

import xxhash
from evenkeel_contract.simulatedprompt import encode

from evenkeel_simulator.server.tokens import END_TOKEN, decode

_MEDIAN_TOKENS: Final = 128
_SIGMA: Final = 0.8
_SHORTEST_TOKENS: Final = 4
_LONGEST_TOKENS: Final = 2048

_TEXT: Final = (
    "the sea ran out and the sky was red so he set the oar by the old dam to let her cut the net "
    "for a big cod or two we saw the fog lie low on an icy bay as the sun hid far off but no one "
    "had yet lit the oil nor fed the cat who sat in the hay all day at the end of it you may ask "
    "why we did not row"
)
_WORDS: Final = tuple(_TEXT.split())
_FULL_STOP_EVERY: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLimits:
    """What ends an answer."""

    max_tokens: int
    """Most tokens of the answer, at least 1."""
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    keep_stop: bool = False
    """Leave the stop string in the text (SGLang's `no_stop_trim`)."""


@dataclass(frozen=True, slots=True)
class WrittenAnswer:
    """An answer that is not words: a text, or tool calls."""

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """(name, arguments as JSON) of each."""


WriteAnswer = Callable[[int], WrittenAnswer]
"""Writes the answer of a seed; raises `ValueError` where the request allows none."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Where a tool call lies in its answer."""

    name: str
    start: int
    """First token of the call; the name is complete with it."""
    end: int


@dataclass(frozen=True, slots=True)
class Delta:
    """What some output tokens add to the text or to one tool call."""

    text: str
    call: int | None = None
    """Number of the tool call that `text` adds arguments to; None: it is text of the answer."""
    name: str | None = None
    """Name of a tool call that begins here; None: none begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """One answer, complete."""

    seed: int
    tokens: int
    """Output tokens, the end token included."""
    matched: int | str | None
    """The end token, stop token or stop string that ended it; None for the length limit."""
    pieces: tuple[str, ...] | None = None
    """The text by token, where the answer is not words or was cut."""
    script: tuple[int, ...] | None = None
    """The ids by token, where the answer is not words."""
    calls: tuple[ToolCall, ...] = ()

    def piece(self, index: int) -> str:
        """Text of output token `index`, 0 <= index < tokens."""
        if self.pieces is not None:
            return self.pieces[index]
        if self.matched is not None and index == self.tokens - 1:
            return ""
        return _PIECES[_spoken(self.seed, index)]

    def text(self, start: int = 0, end: int | None = None) -> str:
        """Text of the tokens from `start` to before `end`."""
        return "".join(self.piece(i) for i in range(start, self.tokens if end is None else end))

    def deltas(self, start: int = 0, end: int | None = None) -> Iterator[Delta]:
        """What the tokens from `start` to before `end` add."""
        end = self.tokens if end is None else end
        if not self.calls and (text := self.text(start, end)):
            yield Delta(text)
        for number, call in enumerate(self.calls):
            first, last = max(start, call.start), min(end, call.end)
            if first < last:
                name = call.name if first == call.start else None
                yield Delta(self.text(first, last), number, name)

    def ids(self, start: int = 0, end: int | None = None) -> list[int]:
        """Ids of the tokens from `start` to before `end`."""
        end = self.tokens if end is None else end
        if self.script is not None:
            return list(self.script[start:end])
        ids = [_IDS[_spoken(self.seed, i)] for i in range(start, end)]
        if self.matched == END_TOKEN and start < end == self.tokens:
            ids[-1] = END_TOKEN
        return ids


def seed_of(prompt: array[int], choice: int, requested: int | None = None) -> int:
    """Seed of choice number `choice` of a prompt; `requested` is the request's own `seed`."""
    seed = xxhash.xxh3_64_intdigest(prompt.tobytes(), choice)
    return seed if requested is None else xxhash.xxh3_64_intdigest(f"{seed} {requested}".encode())


def speak(seed: int, limits: AnswerLimits) -> Speech:
    """Compute an answer."""
    natural = max(natural_tokens(seed), limits.min_tokens + 1)
    ends = not limits.ignore_eos and natural <= limits.max_tokens
    tokens = natural if ends else limits.max_tokens
    speech = Speech(seed=seed, tokens=tokens, matched=END_TOKEN if ends else None)
    if limits.stop or limits.stop_token_ids:
        return _stopped(speech, limits) or speech
    return speech


def speak_written(seed: int, limits: AnswerLimits, answer: WrittenAnswer) -> Speech:
    """Compute an answer from its text or tool calls. Only `max_tokens` cuts tool calls."""
    ids: list[int] = []
    pieces: list[str] = []
    calls = []
    for name, arguments in answer.calls:
        start = len(ids)
        ids += encode(f"<tool_call>{name}\n")
        pieces += [""] * (len(ids) - start)
        _append(ids, pieces, arguments)
        calls.append(ToolCall(name, start, len(ids)))
    _append(ids, pieces, answer.text)
    ends = len(ids) < limits.max_tokens
    tokens = len(ids) + 1 if ends else limits.max_tokens
    speech = Speech(
        seed=seed,
        tokens=tokens,
        matched=END_TOKEN if ends else None,
        pieces=(*pieces, "")[:tokens],
        script=(*ids, END_TOKEN)[:tokens],
        calls=tuple(calls),
    )
    if limits.stop and not calls:
        return _stopped(speech, limits) or speech
    return speech


def _append(ids: list[int], pieces: list[str], text: str) -> None:
    added = encode(text)
    ids += added
    pieces += [decode([token]) for token in added]


def alternatives(seed: int, index: int, number: int, *, besides: str) -> list[str]:
    """Distinct texts of `number` further tokens that might have been in place of token `index`."""
    others = [piece for piece in _DISTINCT_PIECES if piece != besides]
    first = _spoken(seed ^ 1, index)
    return [others[(first + step) % len(others)] for step in range(number)]


def natural_tokens(seed: int) -> int:
    """Natural length of the answer, including the end token."""
    uniform = ((seed >> 12) + 0.5) / 2**52  # 53 bits: never 0 and never 1
    deviate = NormalDist().inv_cdf(uniform)
    tokens = _MEDIAN_TOKENS * math.exp(_SIGMA * deviate)
    return min(max(round(tokens), _SHORTEST_TOKENS), _LONGEST_TOKENS)


def _stopped(speech: Speech, limits: AnswerLimits) -> Speech | None:
    """The answer cut at the first stop string or stop token, None where there is none."""
    pieces: list[str] = []
    text = ""
    longest = max((len(stop) for stop in limits.stop), default=0)
    for index, token in enumerate(speech.ids()):
        pieces.append(speech.piece(index))
        text += pieces[-1]
        if len(pieces) < limits.min_tokens:
            continue
        if token in limits.stop_token_ids:
            # SGLang drops a stop token from the text, as it does the end token.
            kept = pieces if limits.keep_stop else [*pieces[:-1], ""]
            return _cut(speech, kept, matched=token)
        window_start = max(0, len(text) - longest - len(pieces[-1]))
        found = _first_stop(text, limits.stop, window_start)
        if found is not None:
            at, stop = found
            keep_chars = at + len(stop) if limits.keep_stop else at
            return _cut(speech, _trimmed(pieces, keep_chars), matched=stop)
    return None


def _cut(speech: Speech, pieces: Sequence[str], *, matched: int | str) -> Speech:
    script = None if speech.script is None else speech.script[: len(pieces)]
    return replace(speech, tokens=len(pieces), matched=matched, pieces=tuple(pieces), script=script)


def _first_stop(text: str, stops: Sequence[str], start: int) -> tuple[int, str] | None:
    """Position and value of the first of `stops` in `text` from `start` on."""
    found = ((text.find(stop, start), stop) for stop in stops)
    return min((hit for hit in found if hit[0] >= 0), default=None)


def _trimmed(pieces: Sequence[str], keep_chars: int) -> list[str]:
    trimmed = []
    for piece in pieces:
        trimmed.append(piece[: max(0, keep_chars)])
        keep_chars -= len(piece)
    return trimmed


def _spoken(seed: int, index: int) -> int:
    """Which entry of `_PIECES` output token `index` is: a sentence has eleven words and a full stop."""
    place = index % _FULL_STOP_EVERY
    if place == _FULL_STOP_EVERY - 1:
        return len(_PIECES) - 1
    # Two multiplications spread seed and index over the upper bits (the constants are SplitMix64's).
    mixed = (seed ^ index * 0x9E3779B97F4A7C15) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    return (mixed >> 40) % len(_WORDS) + (len(_WORDS) if place == 0 else 0)


_PIECES: Final = (
    *(f" {word}" for word in _WORDS),
    *(f" {word.capitalize()}" for word in _WORDS),
    ".",
)
_DISTINCT_PIECES: Final = tuple(dict.fromkeys(_PIECES))
_IDS: Final = tuple(encode(piece)[0] for piece in _PIECES)
