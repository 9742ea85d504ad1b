"""Requests whose answer has no output tokens: rankings, scores, and the tokenizer's own endpoints.

SGLang and vLLM name the fields of scores differently; both ways are read.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from evenkeel_router.api.contents import Contents
from evenkeel_router.api.errors import invalid
from evenkeel_router.api.fields import DETOKENIZE, RERANK, SCORE, TOKENIZE
from evenkeel_router.api.inference import (
    Inference,
    Limits,
    adapter_of,
    check_model,
    check_not_empty,
    input_only,
)
from evenkeel_router.api.media_names import may_name_media, unnamed
from evenkeel_router.api.prompt import (
    MAX_PROMPTS,
    USUAL_TOKEN_BYTES,
    Input,
    Message,
    Prompt,
    prompt_of_input,
    prompt_of_messages,
    with_prefix,
)
from evenkeel_router.api.reading import Reader


class _Rerank(msgspec.Struct, kw_only=True):
    query: Raw
    documents: Raw
    model: str | None = None


class _Score(msgspec.Struct, kw_only=True):
    model: str | None = None
    # SGLang
    query: Raw | UnsetType = UNSET
    items: Raw | UnsetType = UNSET
    # vLLM
    text_1: Raw | UnsetType = UNSET
    text_2: Raw | UnsetType = UNSET
    queries: Raw | UnsetType = UNSET
    documents: Raw | UnsetType = UNSET
    data_1: Raw | UnsetType = UNSET
    data_2: Raw | UnsetType = UNSET


_PAIRS: Final = (
    ("query", "items"),
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
    ("text_1", "text_2"),
)
"""The members that hold the two sides of scores."""


class _Tokenize(msgspec.Struct, kw_only=True):
    prompt: Input | None = None
    messages: list[Message] | None = None
    tools: Raw | UnsetType = UNSET
    model: str | None = None


class _Detokenize(msgspec.Struct, kw_only=True):
    tokens: list[int | list[int]]
    model: str | None = None


_LIST: Final = msgspec.json.Decoder(list[Raw])
_RERANK: Final = Reader(_Rerank, RERANK)
_SCORE: Final = Reader(_Score, SCORE)
_TOKENIZE: Final = Reader(_Tokenize, TOKENIZE)
_DETOKENIZE: Final = Reader(_Detokenize, DETOKENIZE)


def rerank(body: bytes, limits: Limits) -> Inference:
    """`/v1/rerank`: the engine reads the query once for each document."""
    read = _RERANK.read(body, limits.allowed_fields)
    fields = read.fields
    check_model(fields.model, limits)
    texts = _Texts()
    query = texts.one(bytes(fields.query))
    given = texts.pairs([query], fields.documents, "documents")
    return input_only(unnamed(read, limits, names_media=texts.names_media), given)


def score(body: bytes, limits: Limits) -> Inference:
    """`/v1/score`: the engine reads one pair of texts for each score."""
    read = _SCORE.read(body, limits.allowed_fields)
    fields = read.fields
    check_model(fields.model, limits)
    texts = _Texts()
    for left, right in _PAIRS:
        first, second = getattr(fields, left), getattr(fields, right)
        if first is not UNSET and second is not UNSET:
            given = texts.pairs(texts.several(first, left), second, right)
            return input_only(unnamed(read, limits, names_media=texts.names_media), given)
    message = "query and items (or text_1 and text_2, or queries and documents) are required."
    raise invalid(message, code="missing_required_parameter", param="query")


def tokenize(body: bytes, limits: Limits) -> Inference:
    """`/tokenize`: of a prompt or of a conversation."""
    read = _TOKENIZE.read(body, limits.allowed_fields)
    fields = read.fields
    adapter_of(fields.model, limits)  # an adapter has the model's tokenizer
    if fields.messages is not None:
        given = with_prefix(prompt_of_messages(fields.messages, read.body), (fields.tools,))
    elif fields.prompt is not None:
        given = prompt_of_input(fields.prompt, "prompt")
    else:
        message = "prompt or messages is required."
        raise invalid(message, code="missing_required_parameter", param="prompt")
    return input_only(read, given, text=b"")


def detokenize(body: bytes, limits: Limits) -> Inference:
    """`/detokenize`."""
    read = _DETOKENIZE.read(body, limits.allowed_fields)
    fields = read.fields
    adapter_of(fields.model, limits)
    tokens = sum(1 if isinstance(one, int) else len(one) for one in fields.tokens)
    return input_only(read, Prompt(b"", len(read.body), tokens))


class _Texts:
    """Reads the texts of one request: strings, token ids, and contents with media."""

    def __init__(self) -> None:
        self._contents = Contents()
        self.names_media = False
        """Whether a part may name a medium in the engine's cache."""

    def one(self, raw: bytes) -> tuple[bytes, int]:
        """The canonical text of one of them, and the bytes of text that an engine reads."""
        if raw.startswith(b'"'):
            return raw, len(raw)
        if _is_ids(raw):
            return raw, USUAL_TOKEN_BYTES * (raw.count(b",") + 1)
        self.names_media = self.names_media or may_name_media(raw)
        before = self._contents.text_bytes
        text = self._contents.part(raw).encode()
        return text, self._contents.text_bytes - before

    def several(self, given: Raw, field: str) -> list[tuple[bytes, int]]:
        """A text, or each entry of a list."""
        raw = bytes(given)
        if not raw.startswith(b"[") or _is_ids(raw):
            return [self.one(raw)]
        entries = _LIST.decode(raw)
        if len(entries) > MAX_PROMPTS:
            message = f"{field} has {len(entries)} entries; send at most {MAX_PROMPTS}."
            raise invalid(message, code="invalid_value", param=field)
        return [self.one(bytes(entry)) for entry in entries]

    def pairs(self, first: list[tuple[bytes, int]], given: Raw, field: str) -> Prompt:
        """Each text of `given` with its own of `first`, or with the only one."""
        second = self.several(given, field)
        check_not_empty(field, first and second)
        repeated = len(second) if len(first) == 1 else 1
        size_bytes = repeated * sum(size for _, size in first) + sum(size for _, size in second)
        text = first[0][0] + second[0][0]
        media = self._contents.media()
        return Prompt(text, size_bytes, None, max(len(first), len(second)), media)


def _is_ids(raw: bytes) -> bool:
    """Whether a value is a list of token ids."""
    return raw.startswith(b"[") and raw[1:].lstrip(b" \t\r\n")[:1].isdigit()
