"""Completions and chats as SGLang 0.5.23 writes them: bodies and server-sent events, field by field.

Pure. Fields that only a real engine can fill are null, as SGLang leaves them where a feature is off.

The endpoints stream differently. Completions send the text of each step and finish with the last one; chats send a role
first and a reason of their own last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from evenkeel_simulator.server.ask import Ask
from evenkeel_simulator.server.logprobs import (
    chat_form,
    completion_form,
    probabilities,
    prompt_probabilities,
)
from evenkeel_simulator.server.served import ServedRequest
from evenkeel_simulator.server.speech import Delta

DONE: Final = b"data: [DONE]\n\n"
WEIGHT_VERSION: Final = "default"
_COMPLETION: Final = "text_completion"
_CHAT_CHUNK: Final = "chat.completion.chunk"

_encoder: Final = msgspec.json.Encoder()


class _CachedTokens(msgspec.Struct):
    cached_tokens: int


class Usage(msgspec.Struct):
    """Tokens of one HTTP request, over all of its choices."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: _CachedTokens | None = None
    reasoning_tokens: int = msgspec.field(default_factory=int)  # never left out
    completion_tokens_details: None = None


class _BriefUsage(Usage, omit_defaults=True):
    """Usage without null fields, in the last event of a completion."""


class _CompletionChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    matched_stop: int | str | None = None


class _Function(msgspec.Struct):
    name: str | None
    arguments: str


class _ToolCall(msgspec.Struct):
    id: str | None
    index: int
    type: str
    function: _Function


class _Delta(msgspec.Struct, omit_defaults=True):
    reasoning_content: str | None
    role: str | None = None
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _ChatDelta(msgspec.Struct):
    index: int
    delta: _Delta
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    matched_stop: int | str | None = None


class _ChatMessage(msgspec.Struct, omit_defaults=True):
    role: str
    content: str | None
    reasoning_content: str | None
    tool_calls: list[_ToolCall] | None = None


class _ChatChoice(msgspec.Struct):
    index: int
    message: _ChatMessage
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    matched_stop: int | str | None = None


class _Named(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str


class _Body(_Named):
    choices: list[_CompletionChoice] | list[_ChatChoice]
    usage: Usage
    metadata: dict[str, str]


class _CompletionChunk(_Named):
    choices: list[_CompletionChoice]
    usage: Usage | None = None


class _ChatChunk(_Named, omit_defaults=True):
    choices: list[_ChatDelta]
    usage: Usage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Fields that every event of one answer repeats."""

    model: str
    created: int
    """Unix time, whole seconds."""
    continuous_usage: bool = False
    cache_report: bool = True
    """Report `cached_tokens` in OpenAI usage (`--enable-cache-report`)."""

    def of(self, request: ServedRequest, kind: str) -> tuple[str, str, int, str]:
        """The fields of `_Named`."""
        return request.id, kind, self.created, self.model


def usage(requests: Sequence[ServedRequest], *, n: int, cache_report: bool) -> Usage:
    """Usage over all choices: every answer counts, every prompt once (its first choice of `n`)."""
    prompts = [request for request in requests if request.index % n == 0]
    prompt_tokens = sum(request.input_tokens for request in prompts)
    completion_tokens = sum(request.output_tokens for request in requests)
    cached = _CachedTokens(sum(request.cached_tokens for request in prompts))
    return Usage(
        prompt_tokens=prompt_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        completion_tokens=completion_tokens,
        prompt_tokens_details=cached if cache_report else None,
    )


# OpenAI, whole bodies


def completion_body(head: Head, requests: Sequence[ServedRequest], ask: Ask) -> bytes:
    """Body of `/v1/completions` without streaming."""
    n = ask.sampling.n
    choices = [
        _CompletionChoice(
            index=request.index,
            text=(ask.echoes[request.index // n] if ask.echoes else "") + request.text(),
            logprobs=_completion_logprobs(request, ask, 0, begins=True),
            finish_reason=request.finish_reason,
            matched_stop=request.matched_stop,
        )
        for request in requests
    ]
    return _body(head, _COMPLETION, choices, requests, n=n)


def chat_body(head: Head, requests: Sequence[ServedRequest], ask: Ask) -> bytes:
    """Body of `/v1/chat/completions` without streaming."""
    choices = [
        _ChatChoice(
            index=request.index,
            message=_message(request),
            logprobs=chat_logprobs(request, ask.top_logprobs, 0),
            finish_reason=request.finish_reason,
            matched_stop=request.matched_stop,
        )
        for request in requests
    ]
    return _body(head, "chat.completion", choices, requests, n=ask.sampling.n)


def _message(request: ServedRequest) -> _ChatMessage:
    calls = [
        _ToolCall(request.call_id(number), number, "function", _Function(name, arguments))
        for number, (name, arguments) in enumerate(request.tool_calls())
    ]
    text = request.text()
    return _ChatMessage("assistant", None if calls else text, None, calls or None)


def _body(
    head: Head,
    kind: str,
    choices: list[_CompletionChoice] | list[_ChatChoice],
    requests: Sequence[ServedRequest],
    *,
    n: int,
) -> bytes:
    total = usage(requests, n=n, cache_report=head.cache_report)
    metadata = {"weight_version": WEIGHT_VERSION}
    return encode(_Body(*head.of(requests[0], kind), choices, total, metadata))


# OpenAI, events


def completion_event(
    head: Head, request: ServedRequest, ask: Ask, start: int, *, begins: bool
) -> bytes:
    """One event of a completion, with the tokens from `start` on; the last one carries the finish reason."""
    echo = ask.echoes[request.index // ask.sampling.n] if ask.echoes and begins else ""
    choice = _CompletionChoice(
        index=request.index,
        text=echo + request.speech.text(start, request.output_tokens),
        logprobs=_completion_logprobs(request, ask, start, begins=begins),
        finish_reason=request.finish_reason,
        matched_stop=request.matched_stop,
    )
    running = _running_usage(head, request)
    return event(_CompletionChunk(*head.of(request, _COMPLETION), [choice], running))


def chat_role_event(head: Head, request: ServedRequest) -> bytes:
    """The first event of a chat's choice."""
    return _chat_event(head, request, _Delta(reasoning_content=None, role="assistant", content=""))


def chat_event(
    head: Head,
    request: ServedRequest,
    delta: Delta,
    logprobs: dict[str, Any] | None = None,
) -> bytes:
    """Text of a chat's choice, or a piece of a tool call."""
    if delta.call is None:
        made = _Delta(reasoning_content=None, content=delta.text)
    else:
        begins = delta.name is not None
        made = _Delta(
            reasoning_content=None,
            tool_calls=[
                _ToolCall(
                    request.call_id(delta.call) if begins else None,
                    delta.call,
                    "function",
                    _Function(delta.name, delta.text),
                )
            ],
        )
    return _chat_event(head, request, made, logprobs=logprobs, usage=_running_usage(head, request))


def chat_finish_event(head: Head, request: ServedRequest) -> bytes:
    """The finish reason of a chat's choice; sent after the text of all choices."""
    return _chat_event(head, request, _Delta(reasoning_content=None), ends=True)


def _chat_event(
    head: Head,
    request: ServedRequest,
    delta: _Delta,
    *,
    logprobs: dict[str, Any] | None = None,
    ends: bool = False,
    usage: Usage | None = None,
) -> bytes:
    choice = _ChatDelta(
        index=request.index,
        delta=delta,
        logprobs=logprobs,
        finish_reason=request.finish_reason if ends else None,
        matched_stop=request.matched_stop if ends else None,
    )
    return event(_ChatChunk(*head.of(request, _CHAT_CHUNK), [choice], usage))


def completion_usage_event(head: Head, requests: Sequence[ServedRequest], *, n: int) -> bytes:
    """The event without choices that `stream_options.include_usage` asks for."""
    total = usage(requests, n=n, cache_report=head.cache_report)
    brief = _BriefUsage(**msgspec.structs.asdict(total))
    return event(_CompletionChunk(*head.of(requests[0], _COMPLETION), [], brief))


def chat_usage_event(head: Head, requests: Sequence[ServedRequest], *, n: int) -> bytes:
    """The event without choices that `stream_options.include_usage` asks for in a chat."""
    total = usage(requests, n=n, cache_report=head.cache_report)
    return event(_ChatChunk(*head.of(requests[0], _CHAT_CHUNK), [], total))


def _running_usage(head: Head, request: ServedRequest) -> Usage | None:
    if not head.continuous_usage:
        return None
    done = request.output_tokens
    return Usage(request.input_tokens, request.input_tokens + done, done)


# Parts of answers


def _completion_logprobs(
    request: ServedRequest, ask: Ask, start: int, *, begins: bool
) -> dict[str, Any] | None:
    if ask.top_logprobs is None:
        return None
    echoed = request.prompt_ids if ask.echoes is not None and begins else ()
    found = probabilities(request.speech, start, request.output_tokens, ask.top_logprobs)
    before = prompt_probabilities(echoed, ask.top_logprobs)
    return completion_form(list(found), echoed=list(before))


def chat_logprobs(request: ServedRequest, top: int | None, start: int) -> dict[str, Any] | None:
    """Log probabilities of the tokens from `start` on, in the form of chats; None if the request wants none."""
    if top is None:
        return None
    return chat_form(list(probabilities(request.speech, start, request.output_tokens, top)))


def encode(content: object) -> bytes:
    """The content as JSON."""
    return _encoder.encode(content)


def event(content: object) -> bytes:
    """The content as one server-sent event."""
    return b"data: " + _encoder.encode(content) + b"\n\n"


def named_event(name: str, content: object) -> bytes:
    """One server-sent event with a name."""
    return b"event: " + name.encode() + b"\n" + event(content)
