"""The inference APIs that the router serves, by path: one row of a table for each; and the parsing of their bodies.

SGLang 0.5.23 and vLLM 0.32 serve all of them. An engine or a model that lacks one answers 4xx itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple, Self

import msgspec

from evenkeel_router.api import generate, messages, openai, responses, scoring
from evenkeel_router.api.audio import transcription
from evenkeel_router.api.errors import Dialect, Refusal, invalid
from evenkeel_router.api.inference import Inference, Limits, with_adapter

Parser = Callable[[bytes, Limits], Inference]


class Api(NamedTuple):
    """One row of the table."""

    dialect: Dialect
    parser: Parser | None
    """None for a form."""
    computes: bool = True
    """Whether the model runs. If not, the request costs no service: it counts in the tenant's limits only."""
    key_in_body: bool = False
    """Whether the client key travels in the body; otherwise in a header."""
    salt_in_body: bool = False
    """Whether engines read a salt of their cache from the body, without the plug-in."""

    @property
    def form(self) -> bool:
        """Whether the body is a form; otherwise it is JSON."""
        return self.parser is None


def _openai(parser: Parser, *, computes: bool = True, salt_in_body: bool = False) -> Api:
    return Api(Dialect.OPENAI, parser, computes, salt_in_body=salt_in_body)


class Endpoint(Enum):
    """The table: the value is the path."""

    COMPLETIONS = ("/v1/completions", _openai(openai.completions, salt_in_body=True))
    CHAT = ("/v1/chat/completions", _openai(openai.chat, salt_in_body=True))
    RESPONSES = ("/v1/responses", Api(Dialect.RESPONSES, responses.responses, salt_in_body=True))
    MESSAGES = ("/v1/messages", Api(Dialect.ANTHROPIC, messages.messages))
    COUNT_TOKENS = (
        "/v1/messages/count_tokens",
        Api(Dialect.ANTHROPIC, messages.count_tokens, computes=False),
    )
    EMBEDDINGS = ("/v1/embeddings", _openai(openai.embeddings))
    RERANK = ("/v1/rerank", Api(Dialect.RANKING, scoring.rerank))
    SCORE = ("/v1/score", _openai(scoring.score))
    CLASSIFY = ("/v1/classify", _openai(scoring.classify))
    TRANSCRIPTIONS = ("/v1/audio/transcriptions", Api(Dialect.AUDIO, None))
    TOKENIZE = ("/tokenize", _openai(scoring.tokenize, computes=False))
    V1_TOKENIZE = ("/v1/tokenize", _openai(scoring.tokenize, computes=False))
    DETOKENIZE = ("/detokenize", _openai(scoring.detokenize, computes=False))
    V1_DETOKENIZE = ("/v1/detokenize", _openai(scoring.detokenize, computes=False))
    GENERATE = (
        "/generate",
        Api(Dialect.SGLANG, generate.generate, key_in_body=True, salt_in_body=True),
    )

    api: Api
    __hash__ = object.__hash__  # Enum's own is Python code; it is looked up for every request

    def __new__(cls, path: str, api: Api) -> Self:
        member = object.__new__(cls)
        member._value_ = path
        member.api = api
        return member


MODELS: Final = "/v1/models"
"""Answered by the router."""
_BY_PATH: Final = {endpoint.value: endpoint for endpoint in Endpoint}


_PLACE: Final = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>\$.*)`)?$", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(?P<field>[^`]+)`")


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


def parse(endpoint: Endpoint, body: bytes, limits: Limits, *, content_type: str = "") -> Inference:
    """Parse a body; raises `Refusal` with the invalid field. `content_type` is read for forms only."""
    parser = endpoint.api.parser
    if parser is None:
        return transcription(body, content_type, limits)
    _check_utf8(body)
    try:
        inference = parser(body, limits)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise invalid(f"The body is not valid JSON: {error}.", code="invalid_json") from error
    if inference.adapter is None:
        return inference
    return with_adapter(inference, limits, names_model=endpoint is not Endpoint.GENERATE)


def _check_utf8(body: bytes) -> None:
    """JSON is UTF-8, but the decoder does not check strings that it skips."""
    if body.isascii():
        return
    try:
        body.decode()
    except UnicodeDecodeError as error:
        message = f"The body is not valid UTF-8 (byte {error.start})."
        raise invalid(message, code="invalid_utf8") from error


def _wrong_field(error: str) -> Refusal:
    """A decoder's message as a refusal with the invalid field."""
    match = _PLACE.match(error)
    what, path = (match["what"], match["path"] or "$") if match else (error, "$")
    param = path.removeprefix("$").removeprefix(".")
    missing = _MISSING.match(what)
    if missing is not None:
        param = f"{param}.{missing['field']}" if param else missing["field"]
        return invalid(f"{param} is required.", code="missing_required_parameter", param=param)
    message = f"{param or 'The body'}: {what[:1].lower()}{what[1:]}.".replace("`", "'")
    return invalid(message, code="invalid_type", param=param or None)
