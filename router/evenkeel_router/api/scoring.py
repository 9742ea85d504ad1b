"""Requests whose answer has no output tokens: rankings, scores, classes, and the tokenizer's own endpoints.

SGLang and vLLM name the fields of scores differently; both ways are read.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from evenkeel_router.api.errors import invalid
from evenkeel_router.api.inference import (
    Guarded,
    Inference,
    Limits,
    adapter_of,
    check_model,
    check_not_empty,
    input_only,
)
from evenkeel_router.api.prompt import (
    MAX_PROMPTS,
    Input,
    Message,
    Prompt,
    prompt_of_input,
    prompt_of_messages,
    with_prefix,
)


class _Rerank(Guarded, kw_only=True):
    query: Raw
    documents: list[Raw]
    model: str | None = None


class _Score(Guarded, kw_only=True):
    model: str | None = None
    # SGLang
    query: Raw | UnsetType = UNSET
    items: Raw | UnsetType = UNSET
    # vLLM
    text_1: Raw | UnsetType = UNSET
    text_2: Raw | UnsetType = UNSET
    queries: Raw | UnsetType = UNSET
    documents: Raw | UnsetType = UNSET


class _Classify(Guarded, kw_only=True):
    input: Input
    model: str | None = None


class _Tokenize(Guarded, kw_only=True):
    prompt: Input | None = None
    messages: list[Message] | None = None
    tools: Raw | UnsetType = UNSET
    model: str | None = None


class _Detokenize(Guarded, kw_only=True):
    tokens: list[int | list[int]]
    model: str | None = None


_LIST: Final = msgspec.json.Decoder(list[Raw])
_RERANK: Final = msgspec.json.Decoder(_Rerank)
_SCORE: Final = msgspec.json.Decoder(_Score)
_CLASSIFY: Final = msgspec.json.Decoder(_Classify)
_TOKENIZE: Final = msgspec.json.Decoder(_Tokenize)
_DETOKENIZE: Final = msgspec.json.Decoder(_Detokenize)


def rerank(body: bytes, limits: Limits) -> Inference:
    """`/v1/rerank`: the engine reads the query once for each document."""
    fields = _RERANK.decode(body)
    check_model(fields.model, limits)
    check_not_empty("documents", fields.documents)
    documents = [bytes(one) for one in fields.documents]
    return input_only(body, fields, _pairs([bytes(fields.query)], documents, "documents"))


def score(body: bytes, limits: Limits) -> Inference:
    """`/v1/score`: the engine reads one pair of texts for each score."""
    fields = _SCORE.decode(body)
    check_model(fields.model, limits)
    for left, right in (("query", "items"), ("text_1", "text_2"), ("queries", "documents")):
        first, second = getattr(fields, left), getattr(fields, right)
        if first is not UNSET and second is not UNSET:
            given = _pairs(_several(first), _several(second), right)
            return input_only(body, fields, given)
    message = "query and items (or text_1 and text_2, or queries and documents) are required."
    raise invalid(message, code="missing_required_parameter", param="query")


def classify(body: bytes, limits: Limits) -> Inference:
    """`/v1/classify`."""
    fields = _CLASSIFY.decode(body)
    check_model(fields.model, limits)
    return input_only(body, fields, prompt_of_input(fields.input, "input"))


def tokenize(body: bytes, limits: Limits) -> Inference:
    """`/tokenize`: of a prompt or of a conversation."""
    fields = _TOKENIZE.decode(body)
    adapter_of(fields.model, limits)  # an adapter has the model's tokenizer
    if fields.messages is not None:
        given = with_prefix(prompt_of_messages(fields.messages, body), (fields.tools,))
    elif fields.prompt is not None:
        given = prompt_of_input(fields.prompt, "prompt")
    else:
        message = "prompt or messages is required."
        raise invalid(message, code="missing_required_parameter", param="prompt")
    return input_only(body, fields, given, text=b"")


def detokenize(body: bytes, limits: Limits) -> Inference:
    """`/detokenize`."""
    fields = _DETOKENIZE.decode(body)
    adapter_of(fields.model, limits)
    tokens = sum(1 if isinstance(one, int) else len(one) for one in fields.tokens)
    return input_only(body, fields, Prompt(b"", len(body), tokens))


def _several(given: Raw) -> list[bytes]:
    """A text, or each entry of a list, as encoded."""
    raw = bytes(given)
    return [bytes(one) for one in _LIST.decode(raw)] if raw.startswith(b"[") else [raw]


def _pairs(first: list[bytes], second: list[bytes], field: str) -> Prompt:
    """Each text of `second` with its own of `first`, or with the only one."""
    check_not_empty(field, first and second)
    if len(second) > MAX_PROMPTS:
        message = f"{field} has {len(second)} entries; send at most {MAX_PROMPTS}."
        raise invalid(message, code="invalid_value", param=field)
    repeated = len(second) if len(first) == 1 else 1
    size_bytes = repeated * sum(map(len, first)) + sum(map(len, second))
    return Prompt(first[0] + second[0], size_bytes, None, len(second))
