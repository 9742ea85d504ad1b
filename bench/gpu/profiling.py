"""Measures what an iteration of an engine costs: prefill by tokens, decode by batch and context.

`bench.gpu.fit` makes a cost profile of the simulator from it. The engine serves nothing else meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from random import Random
from typing import Final

import aiohttp
import msgspec
from evenkeel_contract.key import ClientKey

from bench.gpu.loops import Note
from bench.gpu.sending import Answer, body_of, clear, generate

PROMPTS: Final = (256, 1024, 2048, 4096, 8192, 16_384)
CONTEXTS: Final = (256, 1024, 4096, 8192)
BATCHES: Final = (1, 8, 32, 64)
REPEATS: Final = 4
"""Prompts of each length; the first is not counted: kernels compile."""
DECODE_REPEATS: Final = 2
"""Batches of each size."""
OUTPUT_TOKENS: Final = 128
LAST_TOKENS: Final = 96
"""Output tokens of each request whose times count: until then all requests of the batch decode."""


class PrefillPoint(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="prefill"):
    """Times to the first token of prompts of one length that share nothing, alone on the engine."""

    tokens: int
    ms: tuple[float, ...]


class DecodePoint(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="decode"):
    """Times of decode steps in batches of one size."""

    batch: int
    context: float
    """Mean tokens of a request's context in the steps that count."""
    ms: tuple[float, ...]
    """Mean step of each request. A mean, because a busy client reads several tokens at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What is measured."""

    prompts: tuple[int, ...]
    batches: tuple[tuple[int, int], ...]
    """(requests, tokens of each prompt)."""


def grid(*, scale: float, pool_tokens: int, context_tokens: int, max_running: int) -> Grid:
    """The points that fit into the engine; token counts are multiplied by `scale`."""
    prompts = [max(1, round(tokens * scale)) for tokens in PROMPTS]
    batches = [
        (batch, max(1, round(context * scale)))
        for context in CONTEXTS
        for batch in BATCHES
        if batch <= max_running
    ]
    most = min(pool_tokens, context_tokens) - OUTPUT_TOKENS
    return Grid(
        prompts=tuple(tokens for tokens in prompts if tokens <= most),
        batches=tuple(
            (batch, tokens)
            for batch, tokens in batches
            if tokens <= most and batch * (tokens + OUTPUT_TOKENS) <= 0.95 * pool_tokens
        ),
    )


async def profile(
    session: aiohttp.ClientSession, url: str, points: Grid, *, vocabulary: int, note: Note
) -> None:
    """Measure all points; each is noted at once."""
    rng = Random(7)

    async def ask(tokens: int, output_tokens: int) -> tuple[float, Answer]:
        words = [2 + int((vocabulary - 2) * rng.random()) for _ in range(tokens)]
        body = body_of(ClientKey("bench", "profile", "profile"), words, output_tokens)
        sent_s = time.monotonic()
        return sent_s, await generate(session, url, body, now_s=time.monotonic)

    await clear(session, url)
    for tokens in points.prompts:
        ms = []
        for _ in range(REPEATS):
            sent_s, answer = await ask(tokens, 1)
            ms.append(round(1e3 * (answer.tokens[0][0] - sent_s), 3))
        note(msgspec.to_builtins(PrefillPoint(tokens=tokens, ms=tuple(ms[1:]))))
    for batch, tokens in points.batches:
        answers: list[Answer] = []
        for _ in range(DECODE_REPEATS):
            await clear(session, url)
            asked = await asyncio.gather(*(ask(tokens, OUTPUT_TOKENS) for _ in range(batch)))
            answers += [answer for _, answer in asked]
        note(msgspec.to_builtins(_decode_point(answers, tokens, batch)))


def _decode_point(answers: list[Answer], tokens: int, batch: int) -> DecodePoint:
    return DecodePoint(
        batch=batch,
        context=tokens + OUTPUT_TOKENS - LAST_TOKENS / 2,
        ms=tuple(round(1e3 * _step_s(answer), 4) for answer in answers),
    )


def _step_s(answer: Answer) -> float:
    """Mean time of the last steps of a request."""
    counted = [event for event in answer.tokens if event[1] >= OUTPUT_TOKENS - LAST_TOKENS]
    (first_s, fewer), (last_s, more) = counted[0], counted[-1]
    return (last_s - first_s) / (more - fewer)
