"""The endpoints that generate: parse → admit → stream or wait → release.

A client that disconnects cancels its handler, which aborts its work in the engine; besides `/abort_request` that is the
only way work ends early.

On OpenAI endpoints a stream's status goes out with its first token, on `/generate` at
once. So a router can retry the former elsewhere for as long as nothing was computed.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from aiohttp import web
from evenkeel_contract.names import CACHE_SALT_HEADER, CLIENT_KEY_HEADER

from evenkeel_simulator.server import error_bodies, messages, pooled, wire
from evenkeel_simulator.server.answers import AnswerFormat, MakeFormat, Read, StreamFormat
from evenkeel_simulator.server.ask import Ask
from evenkeel_simulator.server.bodies import BadRequest
from evenkeel_simulator.server.chat import Chat, parse_chat
from evenkeel_simulator.server.completions import Completion, parse_completion
from evenkeel_simulator.server.native import Native, parse_generate
from evenkeel_simulator.server.replica import Overloaded, Replica
from evenkeel_simulator.server.responses import read_responses
from evenkeel_simulator.server.served import Owner, ServedRequest, owner_of

REPLICA: Final = web.AppKey("replica", Replica)

_EVENT_STREAM: Final = {"Content-Type": "text/event-stream; charset=utf-8"}

ErrorBody = Callable[[Exception, int], bytes]
"""Body of an error and its status, in the words of one API."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _generating(read: Read, error_body: ErrorBody = error_bodies.openai_error) -> Handler:
    """A handler for an endpoint that takes the client key from a header."""

    async def handle(http: web.Request) -> web.StreamResponse:
        received_s = time.monotonic()
        try:
            ask, make = read(await _json_body(http), _context_length(http))
            owner = _owner(http, http.headers.getall(CLIENT_KEY_HEADER, []))
            return await _answer(http, ask, owner, make(_head(http, ask)), received_s=received_s)
        except BadRequest as error:
            return _json(error_body(error, 400), status=400)
        except Overloaded as error:
            return _json(error_body(error, 503), status=503)

    return handle


def _owner(http: web.Request, keys: Sequence[str]) -> Owner:
    return owner_of(keys, cache_salt=http.headers.get(CACHE_SALT_HEADER, ""))


def _with(parse: Callable[..., Ask], make: Callable[[Ask, wire.Head], AnswerFormat]) -> Read:
    def read(body: bytes, context_length: int) -> tuple[Ask, MakeFormat]:
        ask = parse(body, context_length=context_length)
        return ask, partial(make, ask)

    return read


def _counting(
    count: Callable[..., bytes], error_body: ErrorBody = error_bodies.openai_error
) -> Handler:
    """A handler for an endpoint that reads prompts and computes nothing in the engine."""

    async def handle(http: web.Request) -> web.StreamResponse:
        try:
            body = count(await _json_body(http), context_length=_context_length(http))
        except BadRequest as error:
            return _json(error_body(error, 400), status=400)
        return _json(body)

    return handle


completions: Final = _generating(_with(parse_completion, Completion))
chat_completions: Final = _generating(_with(parse_chat, Chat))
responses: Final = _generating(read_responses, error_bodies.responses_error)
anthropic_messages: Final = _generating(
    _with(messages.parse_messages, messages.Messages), error_bodies.anthropic_error
)
embeddings: Final = _generating(pooled.read_embeddings)
classify: Final = _generating(pooled.read_classify)
score: Final = _generating(pooled.read_score)
rerank: Final = _generating(pooled.read_rerank)
ranking: Final = _generating(pooled.read_ranking)
count_tokens: Final = _counting(messages.count_tokens, error_bodies.anthropic_error)
tokenize: Final = _counting(pooled.tokenize)
detokenize: Final = _counting(pooled.detokenize)


async def generate(http: web.Request) -> web.StreamResponse:
    """`POST /generate`: the key is in the body, the content type is not looked at."""
    received_s = time.monotonic()
    try:
        ask = parse_generate(await read_body(http), context_length=_context_length(http))
    except BadRequest as error:
        return native_refusal(error)
    owner = _owner(http, [] if ask.routing_key is None else [ask.routing_key])
    answer = Native(ask, _head(http, ask))
    try:
        return await _answer(http, ask, owner, answer, received_s=received_s)
    except BadRequest as error:
        if not ask.stream:
            return native_refusal(error)
        # The answer to a stream is a stream: its only event is the error.
        body = error_bodies.native_error_event(str(error)) + wire.DONE
        return web.Response(body=body, headers=_EVENT_STREAM)
    except Overloaded as error:
        return _json(error_bodies.native_error(error, 503), status=503)


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
            assert isinstance(answer, StreamFormat)
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
    answer: StreamFormat,
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


async def _json_body(http: web.Request) -> bytes:
    if http.content_type != "application/json":
        message = "Unsupported Media Type: Only 'application/json' is allowed"
        raise BadRequest(message, by_schema=True)
    return await read_body(http)


def _context_length(http: web.Request) -> int:
    return http.app[REPLICA].settings.context_tokens


def native_refusal(error: BadRequest) -> web.Response:
    """A 400 of SGLang's own endpoints."""
    return _json(error_bodies.native_error(error, 400), status=400)


def _json(body: bytes, *, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")
