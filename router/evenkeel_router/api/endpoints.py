"""The inference APIs that the router serves, by path: one row of a table for each.

SGLang 0.5.23 and vLLM 0.32 serve all of them. An engine or a model that lacks one answers 4xx itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Self

from evenkeel_router.api import generate, messages, openai_requests, pooling, responses, scoring
from evenkeel_router.api.audio import transcription, translation
from evenkeel_router.api.errors import Dialect
from evenkeel_router.api.inference import Inference, Limits, Parser, json_parser
from evenkeel_router.api.volatile import reading_without_lines


@dataclass(frozen=True, slots=True)
class Api:
    """One row of the table."""

    dialect: Dialect
    parse: Callable[[bytes, Limits, str], Inference]
    """Parses a body of a content type; raises `Refusal` with the invalid field."""
    computes: bool = True
    """Whether the model runs. If not, the request costs no service: it counts in the tenant's limits only."""
    key_in_body: bool = False
    """Whether the client key travels in the body, too: where SGLang reads no header."""
    salt_in_body: bool = False
    """Whether engines read a salt of their cache from the body, without the plug-in."""
    form: bool = False
    """Whether the body is a form; otherwise it is JSON."""
    methods: tuple[str, ...] = ("POST",)
    """Methods that engines take, all as `POST`."""


def _json(
    parser: Parser,
    dialect: Dialect = Dialect.OPENAI,
    *,
    computes: bool = True,
    key_in_body: bool = False,
    salt_in_body: bool = False,
    names_model: bool = True,
    methods: tuple[str, ...] = ("POST",),
) -> Api:
    parse = json_parser(reading_without_lines(parser), names_model=names_model)
    return Api(dialect, parse, computes, key_in_body, salt_in_body, methods=methods)


_POST_OR_PUT: Final = ("POST", "PUT")
"""SGLang takes either for its own APIs."""


class Endpoint(Enum):
    """The table: the value is the path."""

    COMPLETIONS = ("/v1/completions", _json(openai_requests.completions, salt_in_body=True))
    CHAT = ("/v1/chat/completions", _json(openai_requests.chat, salt_in_body=True))
    RESPONSES = ("/v1/responses", _json(responses.responses, Dialect.RESPONSES, salt_in_body=True))
    MESSAGES = ("/v1/messages", _json(messages.messages, Dialect.ANTHROPIC))
    COUNT_TOKENS = (
        "/v1/messages/count_tokens",
        _json(messages.count_tokens, Dialect.ANTHROPIC, computes=False),
    )
    EMBEDDINGS = ("/v1/embeddings", _json(pooling.embeddings))
    RERANK = ("/v1/rerank", _json(scoring.rerank, Dialect.RANKING, methods=_POST_OR_PUT))
    BARE_RERANK = ("/rerank", _json(scoring.rerank, Dialect.RANKING))
    V2_RERANK = ("/v2/rerank", _json(scoring.rerank, Dialect.RANKING))
    SCORE = ("/v1/score", _json(scoring.score))
    BARE_SCORE = ("/score", _json(scoring.score))
    CLASSIFY = ("/v1/classify", _json(pooling.classify))
    BARE_CLASSIFY = (
        "/classify",
        _json(pooling.native_classify, Dialect.RANKING, key_in_body=True, methods=_POST_OR_PUT),
    )
    POOLING = ("/pooling", _json(pooling.pooling))
    TRANSCRIPTIONS = ("/v1/audio/transcriptions", Api(Dialect.AUDIO, transcription, form=True))
    TRANSLATIONS = ("/v1/audio/translations", Api(Dialect.AUDIO, translation, form=True))
    TOKENIZE = ("/tokenize", _json(scoring.tokenize, computes=False))
    V1_TOKENIZE = ("/v1/tokenize", _json(scoring.tokenize, computes=False))
    DETOKENIZE = ("/detokenize", _json(scoring.detokenize, computes=False))
    V1_DETOKENIZE = ("/v1/detokenize", _json(scoring.detokenize, computes=False))
    GENERATE = (
        "/generate",
        _json(
            generate.generate,
            Dialect.SGLANG,
            key_in_body=True,
            salt_in_body=True,
            names_model=False,
            methods=_POST_OR_PUT,
        ),
    )

    api: Api
    __hash__ = object.__hash__  # Enum's own is Python code; it is looked up for every request

    def __new__(cls, path: str, api: Api) -> Self:
        member = object.__new__(cls)
        member._value_ = path
        member.api = api
        return member


MODELS: Final = "/v1/models"
"""Path of the list of models, which the router answers itself."""
ENDPOINTS: Final = {endpoint.value: endpoint for endpoint in Endpoint}
"""Path → endpoint."""


def dialect_of(path: str) -> Dialect:
    """The dialect of errors for a path, served or not."""
    below_messages = path.startswith(f"{Endpoint.MESSAGES.value}/")
    endpoint = Endpoint.MESSAGES if below_messages else ENDPOINTS.get(path)
    return Dialect.OPENAI if endpoint is None else endpoint.api.dialect


def is_stored_response(method: str, path: str) -> bool:
    """Whether a request asks for a stored response: `/v1/responses/ID`, its items, or the end of its work."""
    found = _STORED.fullmatch(path)
    return found is not None and method in _OF_STORED[found["below"] or ""]


_STORED: Final = re.compile(r"/v1/responses/[^/]+(?:/(?P<below>input_items|cancel))?")
_OF_STORED: Final = {
    "": ("GET", "HEAD", "DELETE"),
    "input_items": ("GET", "HEAD"),
    "cancel": ("POST",),
}
