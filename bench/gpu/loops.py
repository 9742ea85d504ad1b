"""Closed loops against a real engine, and the figures of each client.

The workloads are those of `bench.closed_loop`, so the simulator runs the same ones (`bench.gpu.compare`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from math import isfinite
from random import Random
from typing import Any, Final

import aiohttp
import msgspec
from evenkeel_contract.key import ClientKey

from bench.closed_loop import LoopClient, LoopFigures, LoopSpec
from bench.gpu.sending import Answer, body_of, generate, key_of

Note = Callable[[Mapping[str, Any]], None]
"""Takes a record of raw output."""
_SMALL_OUTPUT: Final = 8
"""On a toy engine outputs are at most this many times shorter: a request of one token decodes nothing."""


class ClientFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one client got, without the warm-up. None: nothing to measure."""

    client: str
    requests_per_s: float
    output_tokens_per_s: float
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    itl_mean_ms: float | None
    """Mean inter-token latency."""
    itl_p99_ms: float | None
    hit_rate: float


def scaled(spec: LoopSpec, *, tokens: float, seconds: float, most_open: int) -> LoopSpec:
    """The workload for a toy engine: token counts and times multiplied, at most `most_open` open requests of a client."""

    def small(client: LoopClient) -> LoopClient:
        shared = round(client.shared_tokens * tokens)
        output = max(1, round(client.output_tokens * max(tokens, 1 / _SMALL_OUTPUT)))
        return msgspec.structs.replace(
            client,
            open_requests=min(client.open_requests, most_open),
            shared_tokens=shared,
            input_tokens=max(shared + 1, round(client.input_tokens * tokens)),
            output_tokens=output,
        )

    return msgspec.structs.replace(
        spec,
        duration_s=spec.duration_s * seconds,
        warmup_s=spec.warmup_s * seconds,
        clients=tuple(map(small, spec.clients)),
    )


def alone(spec: LoopSpec) -> LoopSpec:
    """The first client without its rivals, for a third of the time."""
    return msgspec.structs.replace(
        spec,
        duration_s=spec.duration_s / 3,
        warmup_s=spec.warmup_s / 3,
        clients=spec.clients[:1],
    )


def figures_of(figures: Mapping[str, LoopFigures], spec: LoopSpec) -> list[ClientFigures]:
    """The figures of each client that the workload names."""
    return [
        _figures(client.name, figures.get(client.name) or LoopFigures(), spec)
        for client in spec.clients
    ]


def _figures(name: str, own: LoopFigures, spec: LoopSpec) -> ClientFigures:
    from_s, until_s = spec.warmup_s, spec.duration_s
    output = sum(tokens for at, tokens in own.tokens if from_s <= at < until_s)

    def ms(seconds: float) -> float | None:
        return 1e3 * seconds if isfinite(seconds) else None

    return ClientFigures(
        client=name,
        requests_per_s=own.rate_per_s(from_s, until_s),
        output_tokens_per_s=output / (until_s - from_s),
        ttft_p50_ms=ms(own.ttft_s(from_s, 50)),
        ttft_p99_ms=ms(own.ttft_s(from_s, 99)),
        itl_mean_ms=ms(own.mean_gap_s(from_s)),
        itl_p99_ms=ms(own.p99_gap_s(from_s)),
        hit_rate=own.hit_rate(from_s),
    )


async def play(
    session: aiohttp.ClientSession,
    url: str,
    spec: LoopSpec,
    *,
    scene: str,
    vocabulary: int,
    note: Note,
) -> dict[str, LoopFigures]:
    """Run a workload of closed loops for its time; requests that still run then are aborted. Each that ended is noted.

    `scene`: part of the clients' names, so that no run uses accounts of an earlier one.
    """
    loops = _Loops(session, url, scene=scene, vocabulary=vocabulary, note=note)
    tasks = [
        asyncio.create_task(loops.one_after_another(client, numbers))
        for client in spec.clients
        for numbers in [count()]
        for _ in range(client.open_requests)
    ]
    try:
        await asyncio.wait(tasks, timeout=spec.duration_s, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    failures = [one for one in ended if isinstance(one, Exception)]
    if failures:
        raise failures[0]
    return loops.figures


class _Loops:
    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        *,
        scene: str,
        vocabulary: int,
        note: Note,
    ) -> None:
        self.figures: dict[str, LoopFigures] = {}
        self._session, self._url, self._scene, self._note = session, url, scene, note
        self._vocabulary = vocabulary
        self._prefixes: dict[tuple[str, int], list[int]] = {}
        self._began_s = time.monotonic()

    def now_s(self) -> float:
        """Seconds since the begin."""
        return time.monotonic() - self._began_s

    async def one_after_another(self, client: LoopClient, numbers: Iterable[int]) -> None:
        """One of the client's open requests."""
        own = self.figures.setdefault(client.name, LoopFigures())
        key = ClientKey("bench", self._scene, client.name)
        for number in numbers:
            body = body_of(key, self._prompt(client, number), client.output_tokens)
            sent_s = self.now_s()
            answer = await generate(
                self._session, self._url, body, now_s=self.now_s, key=key_of(client.name)
            )
            _add(own, answer, client, sent_s)
            self._note(_raw(answer, client, sent_s))

    def _prompt(self, client: LoopClient, number: int) -> list[int]:
        which = (client.name, client.prefix_of(number))
        if which not in self._prefixes:
            self._prefixes[which] = self._words(which, client.shared_tokens)
        own = client.input_tokens - client.shared_tokens
        return self._prefixes[which] + self._words((client.name, "own", number), own)

    def _words(self, key: object, tokens: int) -> list[int]:
        rng = Random(f"{self._scene}/{key}")
        return [2 + int((self._vocabulary - 2) * rng.random()) for _ in range(tokens)]


def _add(own: LoopFigures, answer: Answer, client: LoopClient, sent_s: float) -> None:
    first_s, ended_s = answer.tokens[0][0], answer.tokens[-1][0]
    own.ttfts_s.append((sent_s, first_s - sent_s))
    own.computed.append((first_s, client.input_tokens - answer.cached_tokens))
    own.hits.append((ended_s, client.input_tokens, answer.cached_tokens))
    own.finished.append(ended_s)
    before_s, before = first_s, 0
    for at_s, tokens in answer.tokens:
        own.tokens.append((at_s, tokens - before))
        if before and tokens > before:
            own.gaps_s.append((at_s, (at_s - before_s) / (tokens - before)))
        before_s, before = at_s, tokens


def _raw(answer: Answer, client: LoopClient, sent_s: float) -> dict[str, Any]:
    times_ms = [round(1e3 * (at_s - sent_s), 1) for at_s, _ in answer.tokens]
    return {
        "kind": "request",
        "client": client.name,
        "sent_s": round(sent_s, 4),
        "input_tokens": client.input_tokens,
        "cached_tokens": answer.cached_tokens,
        "token_ms": times_ms,
    }
