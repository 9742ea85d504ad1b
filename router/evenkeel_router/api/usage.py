"""What a replica reports that a request used, in whole answers and in events. Pure.

Only the numbers that the router needs are decoded; the rest is checked to be JSON. Numbers that are missing or null count
as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from evenkeel_fairshare.fleet.contract import Usage

from evenkeel_router.api.audio import TOKENS_PER_S
from evenkeel_router.api.endpoints import Dialect, Endpoint

JSON: Final = "application/json"
TEXT_BYTES_PER_TOKEN: Final = 4
"""Of a transcript, for its estimate. Engines do not report its tokens."""
_LONGEST_S: Final = 1e6


class GarbageError(ValueError):
    """An invalid answer of a replica."""


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _OpenAIUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _OpenAIReply(msgspec.Struct):
    usage: _OpenAIUsage | None = None


class _Chunk(msgspec.Struct):
    usage: _OpenAIUsage | None = None
    choices: list[msgspec.Raw] | None = None


class _Meta(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class _Generated(msgspec.Struct):
    meta_info: _Meta | None = None


class _ResponsesUsage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None


class _Response(msgspec.Struct):
    usage: _ResponsesUsage | None = None


class _ResponseEvent(msgspec.Struct):
    response: _Response | None = None


class _AnthropicUsage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Message(msgspec.Struct):
    usage: _AnthropicUsage | None = None


class _MessageEvent(_Message):
    message: _Message | None = None


class _Heard(msgspec.Struct):
    seconds: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class _Transcript(msgspec.Struct):
    text: str = ""
    usage: _Heard | None = None


_OPENAI: Final = msgspec.json.Decoder(_OpenAIReply)
_CHUNK: Final = msgspec.json.Decoder(_Chunk)
_GENERATED: Final = msgspec.json.Decoder(_Generated | list[_Generated])
_RANKING: Final = msgspec.json.Decoder(_OpenAIReply | list[_Generated])
_RESPONSE: Final = msgspec.json.Decoder(_Response)
_RESPONSE_EVENT: Final = msgspec.json.Decoder(_ResponseEvent)
_MESSAGE: Final = msgspec.json.Decoder(_Message)
_MESSAGE_EVENT: Final = msgspec.json.Decoder(_MessageEvent)
_TRANSCRIPT: Final = msgspec.json.Decoder(_Transcript)
_NOT_DECODED: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


def of_reply(endpoint: Endpoint, body: bytes, content_type: str = JSON) -> Usage | None:
    """The usage of a whole answer; None if it has none. Raises `GarbageError`."""
    api = endpoint.api
    if api.form and not content_type.startswith(JSON):
        return None  # a transcript as text
    try:
        return _READERS[api.dialect](body)
    except _NOT_DECODED as error:
        raise GarbageError(f"the answer is not valid for {endpoint.value}: {error}") from error


def _of_ranking(body: bytes) -> Usage | None:
    ranking = _RANKING.decode(body)
    return _of_generated(ranking) if isinstance(ranking, list) else _of_openai(ranking.usage)


def of_chunk(data: bytes) -> tuple[Usage | None, bool]:
    """The usage in an event of OpenAI's, and whether the event carries nothing else. Never raises."""
    try:
        chunk = _CHUNK.decode(data)
    except _NOT_DECODED:
        return None, False  # the client may understand it
    return _of_openai(chunk.usage), chunk.usage is not None and not chunk.choices


def of_generated_event(data: bytes) -> Usage | None:
    """The usage so far, from an event of `/generate`. Never raises."""
    try:
        return _of_generated(_GENERATED.decode(data))
    except _NOT_DECODED:
        return None


def of_response_event(data: bytes) -> Usage | None:
    """The usage in the last event of `/v1/responses`. Never raises."""
    try:
        response = _RESPONSE_EVENT.decode(data).response
    except _NOT_DECODED:
        return None
    return None if response is None else _of_response(response.usage)


def of_message_event(data: bytes) -> Usage | None:
    """The usage in `message_start` or `message_delta`; 0 input tokens where it has none. Never raises."""
    try:
        event = _MESSAGE_EVENT.decode(data)
    except _NOT_DECODED:
        return None
    return _of_message(event.usage if event.message is None else event.message.usage)


def _of_openai(usage: _OpenAIUsage | None) -> Usage | None:
    if usage is None:
        return None
    details = usage.prompt_tokens_details
    return _usage(
        usage.prompt_tokens, details.cached_tokens if details else None, usage.completion_tokens
    )


def _of_response(usage: _ResponsesUsage | None) -> Usage | None:
    if usage is None:
        return None
    details = usage.input_tokens_details
    cached = None if details is None else details.cached_tokens
    return _usage(usage.input_tokens, cached, usage.output_tokens)


def _of_message(usage: _AnthropicUsage | None) -> Usage | None:
    """Anthropic's `input_tokens` are those beside the cache."""
    if usage is None:
        return None
    read = max(0, usage.cache_read_input_tokens or 0)
    rest = max(0, usage.input_tokens or 0) + max(0, usage.cache_creation_input_tokens or 0)
    return _usage(rest + read, read, usage.output_tokens)


def _of_transcript(reply: _Transcript) -> Usage | None:
    usage = reply.usage
    if usage is None or not (usage.seconds or usage.input_tokens):
        return None
    heard = usage.input_tokens or int(TOKENS_PER_S * min(usage.seconds or 0, _LONGEST_S))
    written = usage.output_tokens
    return _usage(heard, 0, len(reply.text) // TEXT_BYTES_PER_TOKEN if written is None else written)


def _of_generated(reply: _Generated | list[_Generated]) -> Usage | None:
    metas = [one.meta_info for one in (reply if isinstance(reply, list) else [reply])]
    usages = [
        _usage(meta.prompt_tokens, meta.cached_tokens, meta.completion_tokens)
        for meta in metas
        if meta is not None
    ]
    if not usages:
        return None
    return Usage(
        sum(usage.input_tokens for usage in usages),
        sum(usage.cached_tokens for usage in usages),
        sum(usage.output_tokens for usage in usages),
    )


def _usage(given: int | None, cached: int | None, output: int | None) -> Usage:
    """Clamped to possible values, so that a replica's error cannot make a negative charge."""
    input_tokens = max(0, given or 0)
    return Usage(input_tokens, min(max(0, cached or 0), input_tokens), max(0, output or 0))


_READERS: Final[Mapping[Dialect, Callable[[bytes], Usage | None]]] = {
    Dialect.OPENAI: lambda body: _of_openai(_OPENAI.decode(body).usage),
    Dialect.SGLANG: lambda body: _of_generated(_GENERATED.decode(body)),
    Dialect.RANKING: _of_ranking,
    Dialect.RESPONSES: lambda body: _of_response(_RESPONSE.decode(body).usage),
    Dialect.ANTHROPIC: lambda body: _of_message(_MESSAGE.decode(body).usage),
    Dialect.AUDIO: lambda body: _of_transcript(_TRANSCRIPT.decode(body)),
}
