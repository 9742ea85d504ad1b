"""OpenAI's completions, chat completions and embeddings."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from evenkeel_router.api.inference import (
    Guarded,
    Inference,
    Input,
    Limits,
    Message,
    Prompt,
    adapter_of,
    check_choices,
    check_not_empty,
    check_output,
    members_of,
    prompt_of_input,
    prompt_of_messages,
    splice,
    without_guarded,
)

DEFAULT_COMPLETION: Final = 16  # OpenAI's default `max_tokens` of completions
_USAGE_MEMBER: Final = b'"stream_options":{"include_usage":true}'


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _OpenAI(Guarded, kw_only=True):
    model: str
    n: int | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | UnsetType | None = UNSET
    lora_path: str | list[str | None] | None = None


class _Completions(_OpenAI, kw_only=True):
    prompt: Input


class _Chat(_OpenAI, kw_only=True):
    messages: list[Message]
    max_completion_tokens: int | None = None
    tools: Raw | UnsetType = UNSET


class _Embeddings(_OpenAI, kw_only=True):
    input: Input


_COMPLETIONS: Final = msgspec.json.Decoder(_Completions)
_CHAT: Final = msgspec.json.Decoder(_Chat)
_EMBEDDINGS: Final = msgspec.json.Decoder(_Embeddings)


def completions(body: bytes, limits: Limits) -> Inference:
    """`/v1/completions`."""
    fields = _COMPLETIONS.decode(body)
    check_output("max_tokens", fields.max_tokens, limits)
    text = prompt_of_input(fields.prompt, "prompt")
    bound = DEFAULT_COMPLETION if fields.max_tokens is None else fields.max_tokens
    return _openai(body, fields, text, limits, bound)


def embeddings(body: bytes, limits: Limits) -> Inference:
    """`/v1/embeddings`."""
    fields = _EMBEDDINGS.decode(body)
    fields.stream = None
    text = prompt_of_input(fields.input, "input")
    return _openai(body, fields, text, limits, 0)


def chat(body: bytes, limits: Limits) -> Inference:
    """`/v1/chat/completions`."""
    fields = _CHAT.decode(body)
    # As in SGLang: 0 only computes the prompt, and a max_completion_tokens of 0 counts as not set.
    check_output("max_tokens", fields.max_tokens, limits, least=0)
    check_output("max_completion_tokens", fields.max_completion_tokens, limits, least=0)
    check_not_empty("messages", fields.messages)
    tools = b"" if fields.tools is UNSET else bytes(fields.tools)
    bound = fields.max_completion_tokens or fields.max_tokens
    text = prompt_of_messages(fields.messages, tools)
    return _openai(body, fields, text, limits, bound)


def _openai(
    body: bytes, fields: _OpenAI, text: Prompt, limits: Limits, bound: int | None
) -> Inference:
    adapter = adapter_of(fields.model, limits, fields.lora_path)
    check_choices("n", fields.n)
    body, stripped = without_guarded(body, fields)
    stream = bool(fields.stream)
    options = fields.stream_options
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
        max_output_tokens=None if bound is None else bound * (fields.n or 1) * text.prompts,
        stream=stream,
        wants_usage=wants_usage,
        stripped=stripped,
        adapter=adapter,
    )


def _with_usage_option(body: bytes) -> bytes:
    """Change the client's `stream_options`: of two members with one name, the client's would win."""
    members = members_of(body)
    raw = bytes(members["stream_options"])
    options = {} if raw == b"null" else members_of(raw)
    options["include_usage"] = Raw(b"true")
    members["stream_options"] = Raw(msgspec.json.encode(options))
    return msgspec.json.encode(members)
