"""Parses a request's body by its endpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from evenkeel_router.api import generate, messages, openai, responses, scoring
from evenkeel_router.api.audio import transcription
from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.api.errors import Refusal, invalid
from evenkeel_router.api.inference import Inference, Limits

_PARSERS: Final[Mapping[Endpoint, Callable[[Endpoint, bytes, Limits], Inference]]] = {
    Endpoint.COMPLETIONS: openai.completions,
    Endpoint.CHAT: openai.chat,
    Endpoint.RESPONSES: responses.responses,
    Endpoint.MESSAGES: messages.messages,
    Endpoint.COUNT_TOKENS: messages.count_tokens,
    Endpoint.EMBEDDINGS: openai.embeddings,
    Endpoint.RERANK: scoring.rerank,
    Endpoint.SCORE: scoring.score,
    Endpoint.CLASSIFY: scoring.classify,
    Endpoint.TOKENIZE: scoring.tokenize,
    Endpoint.V1_TOKENIZE: scoring.tokenize,
    Endpoint.DETOKENIZE: scoring.detokenize,
    Endpoint.V1_DETOKENIZE: scoring.detokenize,
    Endpoint.GENERATE: generate.generate,
}
_PLACE: Final = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>\$.*)`)?$", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(?P<field>[^`]+)`")


def parse(endpoint: Endpoint, body: bytes, limits: Limits, *, content_type: str = "") -> Inference:
    """Parse a body; raises `Refusal` with the invalid field. `content_type` is read for forms only."""
    if endpoint.api.form:
        return transcription(body, content_type, limits)
    _check_utf8(body)
    try:
        return _PARSERS[endpoint](endpoint, body, limits)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise invalid(f"The body is not valid JSON: {error}.", code="invalid_json") from error


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
