"""The usage in whole answers of replicas, of every API. Pure.

Only the numbers that the router needs are decoded; the rest is checked to be JSON. Numbers that are missing or null
count as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
from evenkeel_contract.messages import UNREADABLE
from evenkeel_fairshare.fleet.contract import Usage

from evenkeel_router.api.audio import TOKENS_PER_S
from evenkeel_router.api.contents import written_bytes
from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.api.errors import Dialect, Refusal, aborted, failure_in
from evenkeel_router.api.openai import Details, OpenAIUsage, of_openai, within_bounds

JSON: Final = "application/json"
TEXT_BYTES_PER_TOKEN: Final = 4
"""Bytes of a transcript that count as one token. Engines do not report its tokens."""
_LONGEST_S: Final = 1e6

_Read = tuple[Usage | None, bool]
"""The usage of a whole answer, and whether nothing in it says that it is an error."""


class GarbageError(ValueError):
    """An answer of a replica that is not JSON."""


class ErrorAnswer(Exception):
    """An answer of a replica that is an error in spite of its status 200."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class _Meta(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: object = None


class _Ended(msgspec.Struct):
    finish_reason: object = None


class _Answer(msgspec.Struct):
    """An answer, by the members in which it may say that it is an error (`errors.failure_in`)."""

    error: object = None
    kind: object = msgspec.field(default=None, name="object")
    type: object = None
    status: object = None

    @property
    def is_sound(self) -> bool:
        """Whether none of them does."""
        return (
            self.error is None
            and self.kind != "error"
            and self.type != "error"
            and self.status != "failed"
        )


class _OpenAIReply(_Answer):
    usage: OpenAIUsage | None = None
    choices: list[_Ended] | None = None


class Generated(_Answer):
    meta_info: _Meta | None = None


class _Ranking(_OpenAIReply):
    """vLLM's answer has `usage`; SGLang's to one prompt has `meta_info`."""

    meta_info: _Meta | None = None


class _ResponsesUsage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: Details | None = None


class Response(_Answer):
    usage: _ResponsesUsage | None = None


class _AnthropicUsage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class MessageReply(_Answer):
    usage: _AnthropicUsage | None = None


class _Heard(msgspec.Struct):
    seconds: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class _Transcript(_Answer):
    text: str = ""
    usage: _Heard | None = None


_OPENAI: Final = msgspec.json.Decoder(_OpenAIReply)
GENERATED: Final = msgspec.json.Decoder(Generated | list[Generated])
GENERATED_ONE: Final = msgspec.json.Decoder(Generated)
_RANKING: Final = msgspec.json.Decoder(_Ranking | list[Generated])
_RESPONSE: Final = msgspec.json.Decoder(Response)
_ANY: Final = msgspec.json.Decoder(msgspec.Raw)
_MESSAGE: Final = msgspec.json.Decoder(MessageReply)
_TRANSCRIPT: Final = msgspec.json.Decoder(_Transcript)


def of_bytes(metadata: str) -> Usage | None:
    """The usage in the header that describes an answer of bytes; None if it has none that can be read."""
    try:
        return of_openai(_OPENAI.decode(metadata.encode()).usage)
    except UNREADABLE:
        return None


def of_reply(endpoint: Endpoint, body: bytes, content_type: str = JSON) -> Usage | None:
    """The usage of a whole answer; None if it has none that can be read. Raises `GarbageError`, `ErrorAnswer`."""
    api = endpoint.api
    if api.form and not content_type.startswith(JSON):
        return None  # a transcript as text
    try:
        usage, sound = _READERS[api.dialect](body)
    except UNREADABLE as error:
        try:
            _ANY.decode(
                body
            )  # the client may understand an answer with a shape that is not known here
        except UNREADABLE:
            raise GarbageError(f"the answer of {endpoint.value} is not JSON: {error}") from error
        usage, sound = None, False
    if usage is None or not sound:
        _check(body)
    return usage


def _check(body: bytes) -> None:
    """Raise `ErrorAnswer` for an answer that is an error."""
    failure = failure_in(body)
    if failure is None:
        try:
            choices = _OPENAI.decode(body).choices or ()
        except UNREADABLE:
            choices = ()
        reasons = [choice.finish_reason for choice in choices] or [end_of(body)]
        failure = next(filter(None, map(aborted, reasons)), None)
    if failure is not None:
        raise ErrorAnswer(failure)


def written_in(body: bytes) -> int:
    """Bytes of text in a whole answer, which may be a transcript without JSON."""
    return written_bytes(body) if body[:1] in (b"{", b"[") else len(body)


def end_of(body: bytes) -> object:
    """The reason why an answer of `/generate` ended, of the first one that has one; None: there is none."""
    try:
        reply = GENERATED.decode(body)
    except UNREADABLE:
        return None
    metas = [one.meta_info for one in (reply if isinstance(reply, list) else [reply])]
    return next((meta.finish_reason for meta in metas if meta and meta.finish_reason), None)


def _openai(body: bytes) -> _Read:
    reply = _OPENAI.decode(body)
    return of_openai(reply.usage), reply.is_sound and _ended_well(reply.choices or ())


def _generated(reply: Generated | list[Generated]) -> _Read:
    ones = reply if isinstance(reply, list) else [reply]
    return of_generated(reply), all(one.is_sound for one in ones) and _ended_well(
        [one.meta_info for one in ones if one.meta_info is not None]
    )


def _ranking(body: bytes) -> _Read:
    ranking = _RANKING.decode(body)
    if isinstance(ranking, list):
        return _generated(ranking)
    if ranking.meta_info is None:
        return of_openai(ranking.usage), ranking.is_sound and _ended_well(ranking.choices or ())
    usage, ended_well = _generated(Generated(meta_info=ranking.meta_info))
    return usage, ended_well and ranking.is_sound


def _response(body: bytes) -> _Read:
    reply = _RESPONSE.decode(body)
    return of_response(reply.usage), reply.is_sound


def _message(body: bytes) -> _Read:
    reply = _MESSAGE.decode(body)
    return of_message(reply.usage), reply.is_sound


def _transcript(body: bytes) -> _Read:
    reply = _TRANSCRIPT.decode(body)
    return _of_transcript(reply), reply.is_sound


def _ended_well(ones: Sequence[_Ended | _Meta]) -> bool:
    """Whether none of some choices was given up."""
    for one in ones:
        reason = one.finish_reason
        if reason != "stop" and aborted(reason) is not None:
            return False
    return True


def of_response(usage: _ResponsesUsage | None) -> Usage | None:
    if usage is None:
        return None
    details = usage.input_tokens_details
    cached = None if details is None else details.cached_tokens
    return within_bounds(usage.input_tokens, cached, usage.output_tokens)


def of_message(usage: _AnthropicUsage | None) -> Usage | None:
    """The usage of an Anthropic message, whose `input_tokens` are those beside the cache."""
    if usage is None:
        return None
    read = max(0, usage.cache_read_input_tokens or 0)
    rest = max(0, usage.input_tokens or 0) + max(0, usage.cache_creation_input_tokens or 0)
    return within_bounds(rest + read, read, usage.output_tokens)


def _of_transcript(reply: _Transcript) -> Usage | None:
    usage = reply.usage
    if usage is None or not (usage.seconds or usage.input_tokens):
        return None
    heard = usage.input_tokens or int(TOKENS_PER_S * min(usage.seconds or 0, _LONGEST_S))
    written = usage.output_tokens
    return within_bounds(
        heard, 0, len(reply.text) // TEXT_BYTES_PER_TOKEN if written is None else written
    )


def of_generated(reply: Generated | list[Generated]) -> Usage | None:
    metas = [one.meta_info for one in (reply if isinstance(reply, list) else [reply])]
    usages = [
        within_bounds(meta.prompt_tokens, meta.cached_tokens, meta.completion_tokens)
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


_READERS: Final[Mapping[Dialect, Callable[[bytes], _Read]]] = {
    Dialect.OPENAI: _openai,
    Dialect.SGLANG: lambda body: _generated(GENERATED.decode(body)),
    Dialect.RANKING: _ranking,
    Dialect.RESPONSES: _response,
    Dialect.ANTHROPIC: _message,
    Dialect.AUDIO: _transcript,
}
