"""What a replica says a request used.

Place in the flow: forward and stream → **usage** → account. Replies are decoded for these few numbers only;
the rest is checked to be JSON. Numbers that a replica leaves out, or sends as null, count as 0.
"""

from __future__ import annotations

from typing import Final

import msgspec
from evenkeel_fairshare.fleet.contract import Usage

from evenkeel_router.api.inference import Endpoint


class GarbageError(ValueError):
    """A reply that is not what the endpoint answers."""


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


_OPENAI: Final = msgspec.json.Decoder(_OpenAIReply)
_CHUNK: Final = msgspec.json.Decoder(_Chunk)
_GENERATED: Final = msgspec.json.Decoder(_Generated | list[_Generated])


def of_reply(endpoint: Endpoint, body: bytes) -> Usage | None:
    """The usage of a whole reply; None if it names none. Raises `GarbageError`."""
    try:
        if endpoint is Endpoint.GENERATE:
            return _of_generated(_GENERATED.decode(body))
        reply = _OPENAI.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise GarbageError(f"the reply is not what {endpoint.value} answers: {error}") from error
    return None if reply.usage is None else _of_openai(reply.usage)


def of_chunk(data: bytes) -> tuple[Usage | None, bool]:
    """The usage in a stream's event, and whether the event carries nothing else. Never raises."""
    try:
        chunk = _CHUNK.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None, False  # the client may make more of it
    if chunk.usage is None:
        return None, False
    return _of_openai(chunk.usage), not chunk.choices


def of_generated_event(data: bytes) -> Usage | None:
    """The usage so far, out of an event of `/generate`. Never raises."""
    try:
        return _of_generated(_GENERATED.decode(data))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def _of_openai(usage: _OpenAIUsage) -> Usage:
    details = usage.prompt_tokens_details
    return _usage(
        usage.prompt_tokens, details.cached_tokens if details else None, usage.completion_tokens
    )


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
    """Within what is possible: a replica's slip must not make a negative charge."""
    input_tokens = max(0, given or 0)
    return Usage(input_tokens, min(max(0, cached or 0), input_tokens), max(0, output or 0))
