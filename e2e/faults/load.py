"""Steady load from stock clients, with a record of every request.

Each hand is a loop of OpenAI's Python client: it sends a request, reads the whole answer, and sends the next one. The
clients do not retry, so no loss is hidden. An answer is whole if it ended as a model ends it and has exactly the tokens
that were asked for.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

import httpx2
import openai

from e2e.installed import MODEL

STREAM_TOKENS: Final = 50
UNARY_TOKENS: Final = 20
_PROMPT_WORDS: Final = 60
_TIMEOUT_S: Final = 240.0
_PAUSE_S: Final = 0.2
"""After a failure, so that a service that refuses everything is not flooded."""


@dataclass(slots=True)
class Request:
    """One request. Its begin and end are times of the monotonic clock, in seconds."""

    id: str
    tenant: str
    stream: bool
    began_s: float = field(default_factory=time.monotonic)
    ended_s: float = 0.0
    begun: bool = False
    """Whether the client got a first token. If not, a stock client repeats it by itself."""
    service: float = 0.0
    """Weighted tokens: input tokens that were not cached, and twice the output tokens."""
    fault: str = ""
    """Empty if the answer was whole."""


@dataclass(frozen=True, slots=True)
class Hands:
    """Clients of one tenant at one service."""

    tenant: str
    url: str
    key: str
    streams: int
    unary: int


@dataclass(slots=True)
class Load:
    """All requests so far. `load` makes it."""

    requests: list[Request] = field(default_factory=list)
    """Those that have ended."""
    open: set[str] = field(default_factory=set)
    """Ids of the others."""
    _stopped: threading.Event = field(default_factory=threading.Event)

    def ended(self, *, after_s: float = 0.0) -> list[Request]:
        """Requests that ended since then."""
        return [one for one in list(self.requests) if one.ended_s > after_s]

    async def run(self, hands: Sequence[Hands]) -> None:
        """Until `stop`; then every open request ends."""
        loops = []
        async with AsyncExitStack() as stack:
            for one in hands:
                client = openai.AsyncOpenAI(
                    base_url=f"{one.url}/v1",
                    api_key=one.key,
                    max_retries=0,
                    timeout=_TIMEOUT_S,
                )
                await stack.enter_async_context(client)
                loops += [self._hand(client, one.tenant, stream=True) for _ in range(one.streams)]
                loops += [self._hand(client, one.tenant, stream=False) for _ in range(one.unary)]
            await asyncio.gather(*loops)

    def stop(self) -> None:
        self._stopped.set()

    async def _hand(self, client: openai.AsyncOpenAI, tenant: str, *, stream: bool) -> None:
        rng = random.Random()
        while not self._stopped.is_set():
            one = Request(uuid.uuid4().hex, tenant, stream)
            self.open.add(one.id)
            prompt = " ".join(str(rng.randrange(10**6)) for _ in range(_PROMPT_WORDS))
            try:
                await (_stream if stream else _unary)(client, one, prompt)
            except openai.APIStatusError as error:
                one.fault = f"{error.status_code} {error.code}"
            except openai.APIConnectionError as error:
                one.fault = f"connection: {error.__cause__ or error!r}"
            except openai.APIError as error:
                one.fault = f"error event: {error.message}"
            except httpx2.HTTPError as error:  # of the client's transport
                one.fault = type(error).__name__
            one.ended_s = time.monotonic()
            self.requests.append(one)
            self.open.discard(one.id)
            if one.fault:
                await asyncio.sleep(_PAUSE_S)


async def _stream(client: openai.AsyncOpenAI, one: Request, prompt: str) -> None:
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": prompt}],
        max_tokens=STREAM_TOKENS,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
        extra_headers={"x-request-id": one.id},
    )
    reason, tokens = None, 0
    async for chunk in answer:
        one.begun = True
        for choice in chunk.choices:
            reason = choice.finish_reason or reason
            one.service += 2 if choice.delta.content else 0
        if chunk.usage is not None:
            tokens = chunk.usage.completion_tokens
            one.service = _service(chunk.usage)
    if (reason, tokens) != ("length", STREAM_TOKENS):
        one.fault = f"cut after {tokens} tokens"


async def _unary(client: openai.AsyncOpenAI, one: Request, prompt: str) -> None:
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": prompt}],
        max_tokens=UNARY_TOKENS,
        extra_body={"ignore_eos": True},
        extra_headers={"x-request-id": one.id},
    )
    assert answer.usage is not None
    one.service = _service(answer.usage)
    if answer.usage.completion_tokens != UNARY_TOKENS:
        one.fault = f"cut after {answer.usage.completion_tokens} tokens"


def _service(usage: openai.types.CompletionUsage) -> float:
    details = usage.prompt_tokens_details
    cached = (details.cached_tokens or 0) if details else 0
    return usage.prompt_tokens - cached + 2.0 * usage.completion_tokens


@contextmanager
def load(hands: Sequence[Hands]) -> Iterator[Load]:
    """All hands send for the time of the context; at its end every open request has ended."""
    made = Load()
    thread = threading.Thread(target=lambda: asyncio.run(made.run(hands)))
    thread.start()
    try:
        yield made
    finally:
        made.stop()
        thread.join(timeout=2 * _TIMEOUT_S)
        assert not thread.is_alive(), "a request never ended"
