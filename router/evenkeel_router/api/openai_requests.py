"""Requests of OpenAI's completions and chat completions: what the router reads of a body, and how it asks for usage. Pure."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from evenkeel_router.api.errors import invalid
from evenkeel_router.api.fields import CHAT, COMPLETIONS, NESTED
from evenkeel_router.api.inference import (
    Inference,
    Limits,
    adapter_of,
    check_choices,
    check_not_empty,
    check_output,
    splice,
)
from evenkeel_router.api.media_names import unnamed
from evenkeel_router.api.prompt import (
    Input,
    Message,
    Prompt,
    prompt_of_input,
    prompt_of_messages,
    with_extras,
    with_prefix,
)
from evenkeel_router.api.reading import Read, Reader, closed, members_of

DEFAULT_COMPLETION: Final = 16  # OpenAI's default `max_tokens` of completions
_USAGE_MEMBER: Final = b'"stream_options":{"include_usage":true}'
_CONTINUOUS_MEMBER: Final = b'"stream_options":{"include_usage":true,"continuous_usage_stats":true}'


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _OpenAI(msgspec.Struct, kw_only=True):
    model: str | None = None
    n: int | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | UnsetType | None = UNSET
    lora_path: str | list[str | None] | None = None


class _Completions(_OpenAI, kw_only=True):
    prompt: Input | None = None
    best_of: int | None = None
    suffix: str | None = None
    echo: bool | None = None
    prompt_embeds: Raw | UnsetType = UNSET


class _Chat(_OpenAI, kw_only=True):
    messages: list[Message]
    max_completion_tokens: int | None = None
    tools: Raw | UnsetType = UNSET
    # What a template prints before the messages, or how.
    documents: Raw | UnsetType = UNSET
    chat_template: Raw | UnsetType = UNSET
    chat_template_kwargs: Raw | UnsetType = UNSET
    reasoning_effort: Raw | UnsetType = UNSET


def _with_text_parts(body: bytes) -> bytes:
    """A chat in which the parts that are strings, as vLLM takes them, are parts of text. Any other body stays as it is."""
    members = members_of(body)
    try:
        messages = _MESSAGES.decode(members.get("messages", b""))
        for message in messages:
            content = bytes(message.get("content", b""))
            if content.startswith(b"["):
                parts = [bytes(part) for part in _PARTS.decode(content)]
                texts = [b'{"text":%b}' % part if part[:1] == b'"' else part for part in parts]
                message["content"] = Raw(b"[%b]" % b",".join(texts))
    except msgspec.DecodeError:
        return body  # its reader names the field
    members["messages"] = Raw(msgspec.json.encode(messages))
    return msgspec.json.encode(members)


_MESSAGES: Final = msgspec.json.Decoder(list[dict[str, Raw]])
_PARTS: Final = msgspec.json.Decoder(list[Raw])
_before_messages = attrgetter(
    "tools", "documents", "chat_template", "chat_template_kwargs", "reasoning_effort"
)
_NOTHING_BEFORE: Final = (UNSET,) * 5
_STREAM_OPTIONS: Final = closed(_StreamOptions, NESTED["stream_options"])
_COMPLETIONS: Final = Reader(_Completions, COMPLETIONS, stream_options=_STREAM_OPTIONS)
_CHAT: Final = Reader(_Chat, CHAT, mend=_with_text_parts, stream_options=_STREAM_OPTIONS)


def completions(body: bytes, limits: Limits) -> Inference:
    """`/v1/completions`."""
    read = _COMPLETIONS.read(body, limits.allowed_fields)
    fields = read.fields
    check_output("max_tokens", fields.max_tokens, limits)
    if fields.prompt is not None:
        text = prompt_of_input(fields.prompt, "prompt")
    elif fields.prompt_embeds is not UNSET:
        text = Prompt(b"", 0, None)
    else:
        raise invalid("prompt is required.", code="missing_required_parameter", param="prompt")
    if fields.suffix or fields.prompt_embeds is not UNSET:
        text = with_extras(text, {"embeds": fields.prompt_embeds}, suffix=fields.suffix or "")
    bound = DEFAULT_COMPLETION if fields.max_tokens is None else fields.max_tokens
    if fields.best_of is not None:
        check_choices("n", fields.n)
        check_choices("best_of", fields.best_of)
        fields.n = max(fields.n or 1, fields.best_of)  # the engine computes all of them
    assumed = fields.max_tokens is None
    return _openai(read, text, limits, bound=bound, assumed=assumed, loose_events=bool(fields.echo))


def chat(body: bytes, limits: Limits) -> Inference:
    """`/v1/chat/completions`."""
    read = _CHAT.read(body, limits.allowed_fields)
    fields = read.fields
    messages, bound = fields.messages, fields.max_tokens
    if bound is not None:
        check_output("max_tokens", bound, limits)
    if fields.max_completion_tokens:  # as in SGLang: 0 counts as not set
        bound = fields.max_completion_tokens
        check_output("max_completion_tokens", bound, limits)
    check_not_empty("messages", messages)
    text = prompt_of_messages(messages, read.body)
    if text.names_media:
        read = unnamed(read, limits, names_media=True)
    before = _before_messages(fields)
    if before == _NOTHING_BEFORE:
        return _openai(read, text, limits, bound=bound)
    tools = fields.tools is not UNSET
    text = with_prefix(text, before)
    return _openai(read, text, limits, bound=bound, loose_events=tools)


def _openai(
    read: Read[Any],
    text: Prompt,
    limits: Limits,
    *,
    bound: int | None,
    assumed: bool = False,
    loose_events: bool = False,
) -> Inference:
    fields, body = read.fields, read.body
    adapter = None
    if fields.model != limits.model or fields.lora_path:
        adapter = adapter_of(fields.model, limits, fields.lora_path)
    sequences = text.prompts
    if fields.n is not None:
        check_choices("n", fields.n)
        sequences *= fields.n
    stream, options = bool(fields.stream), fields.stream_options
    wants_usage = isinstance(options, _StreamOptions) and bool(options.include_usage)
    if stream and options is UNSET:
        body = splice(body, _USAGE_MEMBER)
    elif stream and not wants_usage:
        body = _with_usage_option(body)
    return Inference(
        body=body,
        text=text.first,
        prompt_bytes=text.size_bytes,
        prompt_tokens=text.tokens,
        max_output_tokens=None if bound is None else bound * sequences,
        most_output_tokens=sequences
        * (limits.max_output_tokens if assumed or bound is None else bound),
        media=text.media,
        sequences=sequences,
        prompts=text.prompts,
        loose_events=loose_events,
        stream=stream,
        wants_usage=wants_usage,
        stripped=read.removed,
        adapter=adapter,
    )


def _with_usage_option(body: bytes) -> bytes:
    """Change the client's `stream_options`. A second member with that name would have no effect: engines would use the client's."""
    members = members_of(body)
    raw = bytes(members["stream_options"])
    options = {} if raw == b"null" else members_of(raw)
    options["include_usage"] = Raw(b"true")
    members["stream_options"] = Raw(msgspec.json.encode(options))
    return msgspec.json.encode(members)


def with_continuous_usage(body: bytes) -> bytes:
    """The body, asking for usage in every event as vLLM and SGLang offer it, if the router itself asks for usage in it."""
    asked = b"{" + _USAGE_MEMBER
    if not body.startswith(asked):
        return body
    return b"{" + _CONTINUOUS_MEMBER + body[len(asked) :]
