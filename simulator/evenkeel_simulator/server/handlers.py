"""The endpoints that generate: parse → admit → stream or wait → release.

A client that disconnects cancels its handler, which aborts its work in the engine; besides `/abort_request` that is the
only way work ends early.

On OpenAI endpoints a stream's status goes out with its first token, on `/generate` at
once. So a router can retry the former elsewhere for as long as nothing was computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from aiohttp import web
from evenkeel_contract.names import CLIENT_KEY_HEADER

from evenkeel_simulator.server import wire
from evenkeel_simulator.server.identity import Owner, owner_of
from evenkeel_simulator.server.parse import (
    Ask,
    BadRequest,
    parse_chat,
    parse_completion,
    parse_generate,
)
from evenkeel_simulator.server.replica import Overloaded, Replica
from evenkeel_simulator.server.served import ServedRequest
from evenkeel_simulator.server.streams import AnswerFormat, Chat, Completion, MakeFormat, Native

REPLICA: Final = web.AppKey("replica", Replica)

_EVENT_STREAM: Final = {"Content-Type": "text/event-stream; charset=utf-8"}

Parse = Callable[..., Ask]


async def completions(http: web.Request) -> web.StreamResponse:
    """`POST /v1/completions`."""
    return await _serve_openai(http, parse_completion, Completion)


async def chat_completions(http: web.Request) -> web.StreamResponse:
    """`POST /v1/chat/completions`."""
    return await _serve_openai(http, parse_chat, Chat)


async def generate(http: web.Request) -> web.StreamResponse:
    """`POST /generate`."""
    received_s = time.monotonic()
    try:
        ask = parse_generate(await read_body(http), context_length=_context_length(http))
    except BadRequest as error:
        return native_refusal(error)
    owner = owner_of([] if ask.routing_key is None else [ask.routing_key])
    answer = Native(ask, _head(http, ask))
    try:
        return await _answer(http, ask, owner, answer, received_s=received_s)
    except BadRequest as error:
        if not ask.stream:
            return native_refusal(error)
        # The stream was promised before the fault was found, so the fault is its only event.
        body = wire.native_error_event(str(error)) + wire.DONE
        return web.Response(body=body, headers=_EVENT_STREAM)
    except Overloaded as error:
        return _json(wire.native_error_body(str(error)), status=503)


async def embeddings(http: web.Request) -> web.StreamResponse:
    """`POST /v1/embeddings`: as SGLang answers when it serves a model that generates."""
    return openai_refusal(
        BadRequest(
            "This model does not appear to be an embedding model by default. "
            "Please add `--is-embedding` when launching the server or try another model."
        )
    )


async def _serve_openai(
    http: web.Request, parse: Parse, make_format: MakeFormat
) -> web.StreamResponse:
    received_s = time.monotonic()
    try:
        if http.content_type != "application/json":
            message = "Unsupported Media Type: Only 'application/json' is allowed"
            raise BadRequest(message, by_schema=True)
        ask = parse(await read_body(http), context_length=_context_length(http))
        owner = owner_of(http.headers.getall(CLIENT_KEY_HEADER, []))
        answer = make_format(ask, _head(http, ask))
        return await _answer(http, ask, owner, answer, received_s=received_s)
    except BadRequest as error:
        return openai_refusal(error)
    except Overloaded as error:
        body = wire.error_body(str(error), kind="SERVICE_UNAVAILABLE", status=503)
        return _json(body, status=503)


async def _answer(
    http: web.Request, ask: Ask, owner: Owner, answer: AnswerFormat, *, received_s: float
) -> web.StreamResponse:
    """Submit and answer; whatever ends this call ends its work in the engine."""
    replica = http.app[REPLICA]
    with replica.answering():
        await replica.driver.resumed.wait()  # SGLang holds requests here while generation is paused
        choices = replica.admit(ask, owner, received_s=received_s)
        try:
            if not ask.stream:
                return await _wait(answer, choices)
            response = web.StreamResponse(headers=_EVENT_STREAM)
            with suppress(ConnectionResetError):  # the client has disconnected
                await _stream(http, response, answer, choices)
            return response
        finally:
            replica.release(choices)


async def _wait(answer: AnswerFormat, choices: Sequence[ServedRequest]) -> web.Response:
    news = choices[0].news
    while any(choice.finish is None for choice in choices):
        news.clear()
        await news.wait()
    return _json(answer.body(choices))


async def _stream(
    http: web.Request,
    response: web.StreamResponse,
    answer: AnswerFormat,
    choices: Sequence[ServedRequest],
) -> None:
    if answer.opens_early:
        await response.prepare(http)
    news = choices[0].news
    sent = [0] * len(choices)
    open_choices = list(choices)
    while open_choices:
        await news.wait()
        news.clear()
        events = []
        for choice in open_choices:
            if choice.output_tokens > sent[choice.index] or choice.finish is not None:
                events.append(answer.news(choice, sent[choice.index]))
                sent[choice.index] = choice.output_tokens
        open_choices = [choice for choice in open_choices if choice.finish is None]
        if not open_choices:
            events.append(answer.closing(choices))
        if not response.prepared:
            await response.prepare(http)
        # A slow reader waits here, alone; what comes meanwhile is one event when it has caught up.
        await response.write(b"".join(events))


def _head(http: web.Request, ask: Ask) -> wire.Head:
    settings = http.app[REPLICA].settings
    return wire.Head(
        model=ask.model,
        created=int(time.time()),
        continuous_usage=ask.continuous_usage,
        cache_report=settings.cache_report,
    )


async def read_body(http: web.Request) -> bytes:
    """The body; raises `BadRequest` if it is not encoded as in its header."""
    try:
        return await http.read()
    except web.RequestPayloadError as error:
        raise BadRequest(f"the body cannot be read: {error}", by_schema=True) from error


def _context_length(http: web.Request) -> int:
    return http.app[REPLICA].settings.context_tokens


def openai_refusal(error: BadRequest) -> web.Response:
    """A 400 of the OpenAI endpoints."""
    if error.by_schema:
        return _json(wire.schema_error_body(str(error)), status=400)
    return _json(wire.error_body(str(error), kind="BadRequestError", status=400), status=400)


def native_refusal(error: BadRequest) -> web.Response:
    """A 400 of `/generate`."""
    if error.by_schema:
        return _json(wire.schema_error_body(str(error)), status=400)
    return _json(wire.native_error_body(str(error)), status=400)


def _json(body: bytes, *, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")
