"""Answers as SGLang 0.5.23 writes them: bodies and server-sent events, field by field.

Pure. Fields that only a real engine can fill are null, as SGLang leaves them where a feature is off.

The three endpoints stream differently. Completions send the text of each step and
finish with the last one; chats send a role first and a reason of their own last; `/generate` repeats the
whole text so far in every event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import msgspec

from evenkeel_simulator.server.served import Finish, FinishType, ServedRequest

DONE: Final = b"data: [DONE]\n\n"
WEIGHT_VERSION: Final = "default"

_encoder: Final = msgspec.json.Encoder()


class _CachedTokens(msgspec.Struct):
    cached_tokens: int


class Usage(msgspec.Struct):
    """Tokens of one HTTP request, over all of its choices."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: _CachedTokens | None
    reasoning_tokens: int = 0
    completion_tokens_details: None = None


class _BriefUsage(msgspec.Struct, omit_defaults=True):
    """The same without null fields: the last event of a completion."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: _CachedTokens | None = None
    reasoning_tokens: int = msgspec.field(default_factory=int)  # never left out


class _CompletionChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: None = None
    finish_reason: str | None = None
    matched_stop: int | str | None = None


class _Delta(msgspec.Struct, omit_defaults=True):
    reasoning_content: str | None
    role: str | None = None
    content: str | None = None


class _ChatDelta(msgspec.Struct):
    index: int
    delta: _Delta
    logprobs: None = None
    finish_reason: str | None = None
    matched_stop: int | str | None = None


class _ChatMessage(msgspec.Struct):
    role: str
    content: str
    reasoning_content: None = None


class _ChatChoice(msgspec.Struct):
    index: int
    message: _ChatMessage
    logprobs: None = None
    finish_reason: str | None = None
    matched_stop: int | str | None = None


class _Body(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[_CompletionChoice] | list[_ChatChoice]
    usage: Usage
    metadata: dict[str, str]


class _CompletionChunk(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[_CompletionChoice]
    usage: Usage | _BriefUsage | None = None


class _ChatChunk(msgspec.Struct, omit_defaults=True):
    id: str
    object: str
    created: int
    model: str
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


def completion_body(
    head: Head, requests: Sequence[ServedRequest], *, n: int, echoes: Sequence[str] | None
) -> bytes:
    """Body of `/v1/completions` without streaming."""
    choices = [
        _CompletionChoice(
            index=request.index,
            text=(echoes[request.index // n] if echoes else "") + answer_text(request),
            finish_reason=_reason(request.finish),
            matched_stop=_matched(request.finish),
        )
        for request in requests
    ]
    return _body(head, "text_completion", choices, requests, n=n)


def chat_body(head: Head, requests: Sequence[ServedRequest], *, n: int) -> bytes:
    """Body of `/v1/chat/completions` without streaming."""
    choices = [
        _ChatChoice(
            index=request.index,
            message=_ChatMessage(role="assistant", content=answer_text(request)),
            finish_reason=_reason(request.finish),
            matched_stop=_matched(request.finish),
        )
        for request in requests
    ]
    return _body(head, "chat.completion", choices, requests, n=n)


def _body(
    head: Head,
    kind: str,
    choices: list[_CompletionChoice] | list[_ChatChoice],
    requests: Sequence[ServedRequest],
    *,
    n: int,
) -> bytes:
    return _encoder.encode(
        _Body(
            id=requests[0].id,
            object=kind,
            created=head.created,
            model=head.model,
            choices=choices,
            usage=usage(requests, n=n, cache_report=head.cache_report),
            metadata={"weight_version": WEIGHT_VERSION},
        )
    )


# OpenAI, events


def completion_event(head: Head, request: ServedRequest, text: str) -> bytes:
    """One event of a completion; the last one carries the finish reason."""
    choice = _CompletionChoice(
        index=request.index,
        text=text,
        finish_reason=_reason(request.finish),
        matched_stop=_matched(request.finish),
    )
    return _event(
        _CompletionChunk(
            id=request.id,
            object="text_completion",
            created=head.created,
            model=head.model,
            choices=[choice],
            usage=_running_usage(head, request),
        )
    )


def chat_role_event(head: Head, request: ServedRequest) -> bytes:
    """The first event of a chat's choice."""
    return _chat_event(head, request, _Delta(reasoning_content=None, role="assistant", content=""))


def chat_event(head: Head, request: ServedRequest, text: str) -> bytes:
    """Text of a chat's choice."""
    delta = _Delta(reasoning_content=None, content=text)
    return _chat_event(head, request, delta, usage=_running_usage(head, request))


def chat_finish_event(head: Head, request: ServedRequest) -> bytes:
    """The finish reason of a chat's choice; sent after the text of all choices."""
    return _chat_event(head, request, _Delta(reasoning_content=None), finish=request.finish)


def _chat_event(
    head: Head,
    request: ServedRequest,
    delta: _Delta,
    *,
    finish: Finish | None = None,
    usage: Usage | None = None,
) -> bytes:
    choice = _ChatDelta(
        index=request.index,
        delta=delta,
        finish_reason=_reason(finish),
        matched_stop=_matched(finish),
    )
    return _event(
        _ChatChunk(
            id=request.id,
            object="chat.completion.chunk",
            created=head.created,
            model=head.model,
            choices=[choice],
            usage=usage,
        )
    )


def completion_usage_event(head: Head, requests: Sequence[ServedRequest], *, n: int) -> bytes:
    """The event without choices that `stream_options.include_usage` asks for."""
    total = usage(requests, n=n, cache_report=head.cache_report)
    brief = _BriefUsage(
        prompt_tokens=total.prompt_tokens,
        total_tokens=total.total_tokens,
        completion_tokens=total.completion_tokens,
        prompt_tokens_details=total.prompt_tokens_details,
    )
    chunk = _CompletionChunk(requests[0].id, "text_completion", head.created, head.model, [], brief)
    return _event(chunk)


def chat_usage_event(head: Head, requests: Sequence[ServedRequest], *, n: int) -> bytes:
    """The same of a chat."""
    total = usage(requests, n=n, cache_report=head.cache_report)
    kind = "chat.completion.chunk"
    return _event(_ChatChunk(requests[0].id, kind, head.created, head.model, [], total))


def _running_usage(head: Head, request: ServedRequest) -> Usage | None:
    if not head.continuous_usage:
        return None
    done = request.output_tokens
    return Usage(request.input_tokens, request.input_tokens + done, done, None)


# `/generate`


def native_answer(request: ServedRequest, text: str, *, e2e_s: float | None) -> dict[str, Any]:
    """One answer of `/generate`: `text` is all of it so far; `e2e_s` only once it ended."""
    meta: dict[str, Any] = {
        "id": request.id,
        "finish_reason": _native_finish(request),
        "prompt_tokens": request.input_tokens,
        "weight_version": WEIGHT_VERSION,
        "num_retractions": request.retractions,
        "reasoning_tokens": 0,
        "completion_tokens": request.output_tokens,
        "cached_tokens": request.cached_tokens,
        "dp_rank": 0,
    }
    if e2e_s is not None:
        meta["e2e_latency"] = e2e_s
    ids = request.speech.ids(0, request.output_tokens)
    return {"text": text, "output_ids": ids, "meta_info": meta}


def native_body(answers: Sequence[dict[str, Any]], *, batched: bool) -> bytes:
    """Body of `/generate` without streaming: one answer, or a list of them."""
    return _encoder.encode(list(answers) if batched else answers[0])


def native_event(answer: dict[str, Any], *, index: int | None) -> bytes:
    """One event of `/generate`; `index`: which of several answers (None: there is one)."""
    return _event(answer if index is None else {**answer, "index": index})


def _native_finish(request: ServedRequest) -> dict[str, Any] | None:
    finish = request.finish
    if finish is None:
        return None
    if finish.type is FinishType.LENGTH:
        return {"type": "length", "length": request.output_tokens}
    if finish.type is FinishType.STOP:
        return {"type": "stop", "matched": finish.matched}
    return {"type": "abort", "message": finish.message}


# Errors


class _Error(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: int
    object: str = "error"


def error_body(message: str, *, kind: str, status: int) -> bytes:
    """SGLang's error on OpenAI endpoints: flat, not under `error`."""
    return _encoder.encode(
        {"object": "error", "message": message, "type": kind, "param": None, "code": status}
    )


def schema_error_body(message: str) -> bytes:
    """A body that does not follow the schema."""
    return error_body(message, kind=HTTPStatus.BAD_REQUEST.phrase, status=400)


def native_error_body(message: str) -> bytes:
    """SGLang's error on `/generate`."""
    return _encoder.encode({"error": {"message": message}})


def native_error_event(message: str) -> bytes:
    """An invalid request to `/generate`, detected after the stream's headers were sent."""
    error = {"message": message, "type": "invalid_request_error", "code": 400, "retryable": False}
    return _event({"error": error})


def answer_text(request: ServedRequest) -> str:
    """All text delivered."""
    return request.speech.text(0, request.output_tokens)


def _event(content: object) -> bytes:
    return b"data: " + _encoder.encode(content) + b"\n\n"


def _reason(finish: Finish | None) -> str | None:
    return None if finish is None else finish.type.value


def _matched(finish: Finish | None) -> int | str | None:
    return None if finish is None else finish.matched
