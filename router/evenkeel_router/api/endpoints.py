"""The inference APIs that the router serves, by path: one row of a table for each.

SGLang 0.5.23 and vLLM 0.32 serve all of them. An engine or a model that lacks one answers 4xx itself.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple, Self


class Dialect(Enum):
    """How answers, events, usage and errors are written."""

    __hash__ = object.__hash__  # Enum's own is Python code; every answer looks up its reader

    OPENAI = "openai"
    """`usage` in the body or the last event; `[DONE]` ends a stream. Engines use it for their own endpoints, too."""
    SGLANG = "sglang"
    """`meta_info` in each answer and in each event, which repeats the whole answer."""
    RANKING = "ranking"
    """OpenAI's `usage` (vLLM), or a list of results with SGLang's `meta_info`."""
    RESPONSES = "responses"
    """OpenAI's named events; `response.completed` carries the usage and ends a stream."""
    ANTHROPIC = "anthropic"
    """Anthropic's named events; the first and the last but one carry usage."""
    AUDIO = "audio"
    """Text, or JSON with the duration as usage; OpenAI's events."""


class Api(NamedTuple):
    """One row of the table."""

    dialect: Dialect
    streams: bool = False
    """Whether the client may ask for a stream."""
    computes: bool = True
    """Whether the model runs. If not, the request costs no service: it counts in the tenant's limits only."""
    form: bool = False
    """Whether the body is a form; otherwise it is JSON."""
    key_in_body: bool = False
    """Whether the client key travels in the body; otherwise in a header."""


_CHAT: Final = Api(Dialect.OPENAI, streams=True)
_SCORES: Final = Api(Dialect.OPENAI)
_TOKENIZER: Final = Api(Dialect.OPENAI, computes=False)


class Endpoint(Enum):
    """The table: the value is the path."""

    COMPLETIONS = ("/v1/completions", _CHAT)
    CHAT = ("/v1/chat/completions", _CHAT)
    RESPONSES = ("/v1/responses", Api(Dialect.RESPONSES, streams=True))
    MESSAGES = ("/v1/messages", Api(Dialect.ANTHROPIC, streams=True))
    COUNT_TOKENS = ("/v1/messages/count_tokens", Api(Dialect.ANTHROPIC, computes=False))
    EMBEDDINGS = ("/v1/embeddings", _SCORES)
    RERANK = ("/v1/rerank", Api(Dialect.RANKING))
    SCORE = ("/v1/score", _SCORES)
    CLASSIFY = ("/v1/classify", _SCORES)
    TRANSCRIPTIONS = ("/v1/audio/transcriptions", Api(Dialect.AUDIO, streams=True, form=True))
    TOKENIZE = ("/tokenize", _TOKENIZER)
    V1_TOKENIZE = ("/v1/tokenize", _TOKENIZER)
    DETOKENIZE = ("/detokenize", _TOKENIZER)
    V1_DETOKENIZE = ("/v1/detokenize", _TOKENIZER)
    GENERATE = ("/generate", Api(Dialect.SGLANG, streams=True, key_in_body=True))

    api: Api
    __hash__ = object.__hash__  # Enum's own is Python code; every request looks up its parser

    def __new__(cls, path: str, api: Api) -> Self:
        member = object.__new__(cls)
        member._value_ = path
        member.api = api
        return member


MODELS: Final = "/v1/models"
"""Answered by the router."""
_BY_PATH: Final = {endpoint.value: endpoint for endpoint in Endpoint}


def endpoint_of(path: str) -> Endpoint | None:
    """The endpoint with this path."""
    return _BY_PATH.get(path)


def dialect_of(path: str) -> Dialect:
    """The dialect of errors for a path, served or not."""
    below_messages = path.startswith(f"{Endpoint.MESSAGES.value}/")
    endpoint = Endpoint.MESSAGES if below_messages else _BY_PATH.get(path)
    return Dialect.OPENAI if endpoint is None else endpoint.api.dialect


def is_stored_response(path: str) -> bool:
    """Whether a path names a stored response (`/v1/responses/ID`, and what is below it)."""
    return path.startswith(f"{Endpoint.RESPONSES.value}/")
