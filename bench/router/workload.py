"""The requests of the benchmark, and the check of their answers.

Prompts come in families with a shared prefix, and clients in equal parts. A number unique to the request is in every event. The
check therefore finds answers of other requests, lost events and swapped events.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from enum import Enum

from bench.router.worker import DONE, MODEL

FAMILIES = 32
_WORDS = ["every", "quick", "brown", "fox", "counts", "nine", "lazy", "stars", "over", "a", "dog"]
_USAGE = re.compile(rb'"cached_tokens":\s*(\d+)')
_PROMPT = re.compile(rb'"prompt_tokens":\s*(\d+)')
_ORDER = re.compile(rb"request-\d{6} (\d+)")


class Mode(Enum):
    """Kind of requests."""

    UNARY = "unary"
    STREAM = "stream"
    MIXED = "mixed"  # every other one is streamed


class WrongAnswerError(Exception):
    """A response that is not the answer to its request; the message has the difference."""


@dataclass(frozen=True, slots=True)
class Question:
    """One request, ready to be sent."""

    wire: bytes
    tag: bytes
    stream: bool
    events: int


@dataclass(frozen=True, slots=True)
class Usage:
    """The counts that an answer reported."""

    prompt_tokens: int
    cached_tokens: int


class Workload:
    """Builds questions from templates, so that a question costs one substitution."""

    def __init__(
        self, mode: Mode, *, keys: list[str], events: int, prompt_bytes: int, seed: int
    ) -> None:
        self._mode = mode
        self._events = events
        self._asked = 0
        rng = random.Random(seed)
        prefixes = [_prose(rng, prompt_bytes) for _ in range(FAMILIES)]
        self._templates = {
            stream: [
                _template(
                    key, f"family-{i:02d} {prefix}", stream=stream, events=events, rng=rng
                ).partition(b"request-000000")
                for key in keys
                for i, prefix in enumerate(prefixes)
            ]
            for stream in (False, True)
        }
        self._rng = rng

    def ask(self) -> Question:
        """The next question."""
        self._asked += 1
        stream = self._mode is Mode.STREAM or (self._mode is Mode.MIXED and self._asked % 2 == 0)
        templates = self._templates[stream]
        before, _, after = templates[self._rng.randrange(len(templates))]
        tag = b"request-%06d" % (self._asked % 1_000_000)
        return Question(before + tag + after, tag, stream, self._events)


def check(question: Question, status: int, body: bytes, *, order: bool) -> Usage:
    """The usage in a right answer; raises `WrongAnswerError`. `order` looks at each event's number."""
    if status != 200:
        raise WrongAnswerError(f"status {status}: {body[:200]!r}")
    if question.stream:
        _check_stream(question, body, order=order)
    elif json.loads(body)["choices"][0]["message"]["content"].count(question.tag.decode()) < 1:
        raise WrongAnswerError("the text is another request's")
    prompt, cached = _PROMPT.findall(body), _USAGE.findall(body)
    if not prompt or not cached:
        raise WrongAnswerError("no usage")
    return Usage(int(prompt[-1]), int(cached[-1]))


def _check_stream(question: Question, body: bytes, *, order: bool) -> None:
    if not body.endswith(DONE):
        raise WrongAnswerError(f"no end mark: {body[-80:]!r}")
    events = body.count(b"\n\n") - 2  # the usage and the end mark
    if events != question.events:
        raise WrongAnswerError(f"{events} events, not {question.events}")
    if body.count(question.tag) != 2 * events + 1:  # id and text, and the id of the usage
        raise WrongAnswerError("events of another request")
    if order and [int(n) for n in _ORDER.findall(body)] != list(range(events)):
        raise WrongAnswerError("events out of order")


def _prose(rng: random.Random, size_bytes: int) -> str:
    words: list[str] = []
    length = 0
    while length < size_bytes:
        words.append(rng.choice(_WORDS))
        length += len(words[-1]) + 1
    return " ".join(words)[:size_bytes]


def _template(key: str, system: str, *, stream: bool, events: int, rng: random.Random) -> bytes:
    question: dict[str, object] = {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": f"request-000000 {_prose(rng, 200)}"},
        ],
        "max_tokens": events,
        "temperature": 0.7,
    }
    if stream:
        question |= {"stream": True, "stream_options": {"include_usage": True}}
    body = json.dumps(question).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        b"authorization: Bearer %s\r\ncontent-type: application/json\r\naccept: */*\r\n"
        b"user-agent: bench\r\ncontent-length: %d\r\n\r\n%s" % (key.encode(), len(body), body)
    )
