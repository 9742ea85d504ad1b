"""The inference APIs that the router serves, by path: one row of a table for each.

SGLang 0.5.23 and vLLM 0.32 serve all of them. An engine or a model that lacks one answers 4xx itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple


class Endpoint(Enum):
    """The value is the path."""

    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    COUNT_TOKENS = "/v1/messages/count_tokens"
    EMBEDDINGS = "/v1/embeddings"
    RERANK = "/v1/rerank"
    SCORE = "/v1/score"
    CLASSIFY = "/v1/classify"
    TRANSCRIPTIONS = "/v1/audio/transcriptions"
    TOKENIZE = "/tokenize"
    V1_TOKENIZE = "/v1/tokenize"
    DETOKENIZE = "/detokenize"
    V1_DETOKENIZE = "/v1/detokenize"
    GENERATE = "/generate"


class Dialect(Enum):
    """How answers, events, usage and errors are written."""

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
    key_in_body: bool = False
    """Whether the client key travels in the body; otherwise in a header."""


_TOKENIZER: Final = Api(Dialect.OPENAI, computes=False)
APIS: Final[Mapping[Endpoint, Api]] = MappingProxyType(
    {
        Endpoint.COMPLETIONS: Api(Dialect.OPENAI, streams=True),
        Endpoint.CHAT: Api(Dialect.OPENAI, streams=True),
        Endpoint.RESPONSES: Api(Dialect.RESPONSES, streams=True),
        Endpoint.MESSAGES: Api(Dialect.ANTHROPIC, streams=True),
        Endpoint.COUNT_TOKENS: Api(Dialect.ANTHROPIC, computes=False),
        Endpoint.EMBEDDINGS: Api(Dialect.OPENAI),
        Endpoint.RERANK: Api(Dialect.RANKING),
        Endpoint.SCORE: Api(Dialect.OPENAI),
        Endpoint.CLASSIFY: Api(Dialect.OPENAI),
        Endpoint.TRANSCRIPTIONS: Api(Dialect.AUDIO, streams=True),
        Endpoint.TOKENIZE: _TOKENIZER,
        Endpoint.V1_TOKENIZE: _TOKENIZER,
        Endpoint.DETOKENIZE: _TOKENIZER,
        Endpoint.V1_DETOKENIZE: _TOKENIZER,
        Endpoint.GENERATE: Api(Dialect.SGLANG, streams=True, key_in_body=True),
    }
)

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
    return Dialect.OPENAI if endpoint is None else APIS[endpoint].dialect


def is_stored_response(path: str) -> bool:
    """Whether a path names a stored response (`/v1/responses/ID`, and what is below it)."""
    return path.startswith(f"{Endpoint.RESPONSES.value}/")
