"""What tests send over each API, and what a fake engine answers: whole, in a stream, with its usage."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from evenkeel_router.api.errors import Outcome
from evenkeel_router.app import Router

from tests.support.nasty import Asked, Behaviour, Nasty, nasty
from tests.support.routers import KEY, MODEL, PATIENCE_S, config_for, router_of

CHAT = "ns/acme/chat"
AUTH = {"x-api-key": KEY}
MESSAGES: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "Hi"}],
}
RESPONSES: dict[str, Any] = {"model": MODEL, "input": "Hi"}
OPENAI_USAGE = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}
ANTHROPIC_USAGE = {"input_tokens": 5, "cache_read_input_tokens": 4, "output_tokens": 3}
RESPONSES_USAGE = {
    "input_tokens": 9, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 4},
}  # fmt: skip


def event(name: str, **fields: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name} | fields)}\n\n".encode()


STARTED = event("message_start", message={"usage": ANTHROPIC_USAGE | {"output_tokens": 0}})
TEXT = event("content_block_delta", index=0, delta={"type": "text_delta", "text": "a"})
CREATED = event("response.created", sequence_number=0)
DELTA = event("response.output_text.delta", sequence_number=1, delta="a")


def chunk(**fields: Any) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()


def generated(tokens: int) -> bytes:
    facts = {"prompt_tokens": 9, "cached_tokens": 4, "completion_tokens": tokens}
    return chunk(text="a" * tokens, meta_info=facts)


CHAT_TEXT = chunk(choices=[{"index": 0, "delta": {"content": "a"}}])
TEXT_PIECE = chunk(choices=[{"index": 0, "text": "a"}])
USED = chunk(choices=[], usage=OPENAI_USAGE | {"completion_tokens": 3})
DONE = b"data: [DONE]\n\n"
STREAMS = {
    "/v1/chat/completions": [
        chunk(choices=[{"index": 0, "delta": {"role": "assistant"}}]),
        CHAT_TEXT, CHAT_TEXT, CHAT_TEXT, USED, DONE,
    ],
    "/v1/completions": [TEXT_PIECE, TEXT_PIECE, TEXT_PIECE, USED, DONE],
    "/generate": [generated(1), generated(2), generated(3), DONE],
    "/v1/messages": [
        STARTED, TEXT, TEXT, TEXT,
        event("message_delta", delta={}, usage={"output_tokens": 3}), event("message_stop"),
    ],
    "/v1/responses": [
        CREATED, DELTA, DELTA, DELTA,
        event("response.completed", response={"usage": RESPONSES_USAGE}),
    ],
}  # fmt: skip
COUNTED = {"stream_options": {"include_usage": True}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": MODEL, "messages": MESSAGES["messages"], **COUNTED},
    "/v1/completions": {"model": MODEL, "prompt": "Hi", **COUNTED},
    "/generate": {"text": "Hi", "sampling_params": {"max_new_tokens": 9}},
    "/v1/messages": MESSAGES,
    "/v1/responses": RESPONSES,
}
FIRST_COUNTED = {"/v1/completions": 0, "/generate": 0}
"""The first event of a stream that counts as output, where it is not the second."""
EARLY_USAGE = ("/v1/messages", "/generate")
"""Streams that report the input before their end."""


@asynccontextmanager
async def behind(
    behave: Behaviour, **changes: Any
) -> AsyncIterator[tuple[Router, Nasty, httpx.AsyncClient]]:
    async with (
        nasty(behave) as replica,
        router_of(config_for(replica.config("r0"), **changes)) as router,
        httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S, headers=AUTH) as client,
    ):
        yield router, replica, client


def answering(reply: Any, **head: str) -> Behaviour:
    async def behave(asked: Asked) -> None:
        await asked.answer(
            reply if isinstance(reply, bytes) else json.dumps(reply).encode(), **head
        )

    return behave


def streaming(*chunks: bytes, ends: bool = True) -> Behaviour:
    async def behave(asked: Asked) -> None:
        await asked.begin_stream(*chunks)
        if ends:
            await asked.send(b"0\r\n\r\n")
        else:
            await asked.hang()

    return behave


def served(router: Router) -> float:
    """Service of the client in the ledger: computed input tokens, and twice the output tokens."""
    return router.rooms.service_ledger.ledger.served(CHAT)


def tokens_of(router: Router) -> tuple[int, int, int]:
    """Input, cached and output tokens of the only client."""
    (totals,) = router.rooms.totals.clients()
    return totals.input_tokens, totals.cached_tokens, totals.output_tokens


def counted(router: Router) -> dict[Outcome, int]:
    total = router.rooms.totals.refused.copy()
    for totals in router.rooms.totals.clients():
        total += totals.errors
    return dict(total)
