"""Parses a request's body, and makes the body that a replica receives.

Only fields that the router needs are decoded. Everything else is checked to be JSON and is sent as the client wrote it. The
two usual changes (asking for usage, and naming the client on `/generate`) insert one member behind the opening brace, so
that a long prompt is not encoded again. Guarded fields are removed member by member, so that neither a duplicate nor an
escaped spelling (`"r\\u0069d"`) gets through.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

import msgspec
from evenkeel_contract.names import CLIENT_KEY_FIELD, GUARDED_FIELDS
from msgspec import UNSET, Raw, UnsetType

from evenkeel_router.api import prompt
from evenkeel_router.api.errors import Outcome, Refusal, invalid

MAX_CHOICES: Final = 128  # OpenAI's bound of `n`
MAX_MEMBERS: Final = 4096  # of an object that is encoded again
DEFAULT_COMPLETION: Final = 16  # OpenAI's default `max_tokens` of completions
DEFAULT_GENERATED: Final = 128  # SGLang's default `max_new_tokens` of `/generate`


class Endpoint(Enum):
    """The endpoints of a replica, by path."""

    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"
    EMBEDDINGS = "/v1/embeddings"
    GENERATE = "/generate"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that parsing enforces."""

    model: str
    max_output_tokens: int


class Inference(NamedTuple):
    """One request, as later steps use it."""

    endpoint: Endpoint
    body: bytes
    """What a replica receives, but for the client key on `/generate`."""
    text: bytes
    """Canonical text of the first prompt, for matching prefixes."""
    prompt_bytes: int
    """Of all prompts, for the estimate of input tokens."""
    prompt_tokens: int | None
    """Set if the client sent token ids."""
    max_output_tokens: int | None
    """Of all choices together; None if the client sets no limit."""
    stream: bool
    wants_usage: bool
    """Whether the client itself asked for the usage event of a stream."""
    stripped: tuple[str, ...]
    """Guarded fields that were removed."""


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Guarded(msgspec.Struct):
    """Decoded only to find out whether they are present."""

    routing_key: Raw | UnsetType = UNSET
    rid: Raw | UnsetType = UNSET
    priority: Raw | UnsetType = UNSET
    extra_key: Raw | UnsetType = UNSET
    custom_params: Raw | UnsetType = UNSET
    cache_salt: Raw | UnsetType = UNSET


class _OpenAI(_Guarded, kw_only=True):
    model: str
    n: int | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | UnsetType | None = UNSET


class _Completions(_OpenAI, kw_only=True):
    prompt: prompt.Input


class _Chat(_OpenAI, kw_only=True):
    messages: list[prompt.Message]
    max_completion_tokens: int | None = None
    tools: Raw | UnsetType = UNSET


class _Embeddings(_OpenAI, kw_only=True):
    input: prompt.Input


class _Sampling(msgspec.Struct):
    max_new_tokens: int | None = None
    n: int | None = None
    custom_params: Raw | UnsetType = UNSET


class _Generate(_Guarded, kw_only=True):
    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: _Sampling | list[_Sampling] | None = None
    stream: bool | None = None


_COMPLETIONS: Final = msgspec.json.Decoder(_Completions)
_CHAT: Final = msgspec.json.Decoder(_Chat)
_EMBEDDINGS: Final = msgspec.json.Decoder(_Embeddings)
_GENERATE: Final = msgspec.json.Decoder(_Generate)
_MEMBERS: Final = msgspec.json.Decoder(dict[str, Raw])
_PLACE: Final = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>\$.*)`)?$", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(?P<field>[^`]+)`")
_USAGE_MEMBER: Final = b'"stream_options":{"include_usage":true}'


def parse(endpoint: Endpoint, body: bytes, limits: Limits) -> Inference:
    """Parse a body; raises `Refusal` with the invalid field."""
    _check_utf8(body)
    try:
        if endpoint is Endpoint.CHAT:
            return _chat(body, limits)
        if endpoint is Endpoint.COMPLETIONS:
            return _completions(body, limits)
        if endpoint is Endpoint.GENERATE:
            return _generate(body, limits)
        return _embeddings(body, limits)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise invalid(f"The body is not valid JSON: {error}.", code="invalid_json") from error


def with_client_key(body: bytes, key: str) -> bytes:
    """A `/generate` body that names the client. `body` has no such member, because `parse` removed it."""
    return _splice(body, b'"%b":"%b"' % (CLIENT_KEY_FIELD.encode(), key.encode("ascii")))


def _completions(body: bytes, limits: Limits) -> Inference:
    fields = _COMPLETIONS.decode(body)
    _check_output("max_tokens", fields.max_tokens, limits)
    text = prompt.of_input(fields.prompt, "prompt")
    bound = DEFAULT_COMPLETION if fields.max_tokens is None else fields.max_tokens
    return _openai(Endpoint.COMPLETIONS, body, fields, text, limits, bound)


def _embeddings(body: bytes, limits: Limits) -> Inference:
    fields = _EMBEDDINGS.decode(body)
    text = prompt.of_input(fields.input, "input")
    return _openai(Endpoint.EMBEDDINGS, body, fields, text, limits, 0)


def _chat(body: bytes, limits: Limits) -> Inference:
    fields = _CHAT.decode(body)
    _check_output("max_tokens", fields.max_tokens, limits)
    _check_output("max_completion_tokens", fields.max_completion_tokens, limits)
    if not fields.messages:
        raise invalid(
            "messages is empty; send at least one.", code="invalid_value", param="messages"
        )
    tools = b"" if fields.tools is UNSET else bytes(fields.tools)
    # As in SGLang: a max_completion_tokens of 0 counts as not set.
    bound = fields.max_completion_tokens or fields.max_tokens
    text = prompt.of_messages(fields.messages, tools)
    return _openai(Endpoint.CHAT, body, fields, text, limits, bound)


def _openai(
    endpoint: Endpoint, body: bytes, fields: _OpenAI, text: prompt.Prompt, limits: Limits,
    bound: int | None,
) -> Inference:  # fmt: skip
    if fields.model != limits.model:
        message = (
            f"The model {fields.model[:200]!r} does not exist; this service serves "
            f"{limits.model!r}."
        )
        raise Refusal(Outcome.NOT_FOUND, message, code="model_not_found", param="model")
    _check_choices("n", fields.n)
    stripped = _present(fields)
    if stripped:
        body = _without(body, stripped)
    stream = bool(fields.stream) and endpoint is not Endpoint.EMBEDDINGS
    options = fields.stream_options
    wants_usage = isinstance(options, _StreamOptions) and bool(options.include_usage)
    if stream and options is UNSET:
        body = _splice(body, _USAGE_MEMBER)
    elif stream and not wants_usage:
        body = _with_usage_option(body)
    return Inference(
        endpoint=endpoint,
        body=body,
        text=text.first,
        prompt_bytes=text.size_bytes,
        prompt_tokens=text.tokens,
        max_output_tokens=None if bound is None else bound * (fields.n or 1) * text.prompts,
        stream=stream,
        wants_usage=wants_usage,
        stripped=stripped,
    )


def _generate(body: bytes, limits: Limits) -> Inference:
    fields = _GENERATE.decode(body)
    given = fields.text if fields.text is not None else fields.input_ids
    if given is None:
        raise invalid(
            "text or input_ids is required.", code="missing_required_parameter", param="text"
        )
    text = prompt.of_input(given, "text" if given is fields.text else "input_ids")
    sampling = fields.sampling_params
    several = sampling if isinstance(sampling, list) else [sampling] if sampling else []
    if len(several) > prompt.MAX_PROMPTS:
        message = f"sampling_params has {len(several)} entries; send at most {prompt.MAX_PROMPTS}."
        raise invalid(message, code="invalid_value", param="sampling_params")
    for one in several:
        _check_output("sampling_params.max_new_tokens", one.max_new_tokens, limits)
        _check_choices("sampling_params.n", one.n)
    stripped = _present(fields)
    if stripped:
        body = _without(body, stripped)
    if any(one.custom_params is not UNSET for one in several):
        body = _without_custom_params(body)
        stripped = (*stripped, "sampling_params.custom_params")
    return Inference(
        endpoint=Endpoint.GENERATE,
        body=body,
        text=text.first,
        prompt_bytes=text.size_bytes,
        prompt_tokens=text.tokens,
        max_output_tokens=sum(map(_bound, sampling))
        if isinstance(sampling, list)
        else _bound(sampling or _Sampling()) * text.prompts,
        stream=bool(fields.stream),
        wants_usage=True,  # every event has it
        stripped=stripped,
    )


def _bound(sampling: _Sampling) -> int:
    tokens = sampling.max_new_tokens
    return (DEFAULT_GENERATED if tokens is None else tokens) * (sampling.n or 1)


def _check_utf8(body: bytes) -> None:
    """JSON is UTF-8, but the decoder does not check strings that it skips."""
    if body.isascii():
        return
    try:
        body.decode()
    except UnicodeDecodeError as error:
        message = f"The body is not valid UTF-8 (byte {error.start})."
        raise invalid(message, code="invalid_utf8") from error


def _check_output(field: str, value: int | None, limits: Limits) -> None:
    if value is not None and not 0 <= value <= limits.max_output_tokens:
        shown = value if -(10**9) < value < 10**9 else "a huge number"
        message = f"{field} is {shown}; it must be from 0 to {limits.max_output_tokens}."
        raise invalid(message, code="invalid_value", param=field)


def _check_choices(field: str, value: int | None) -> None:
    if value is not None and not 1 <= value <= MAX_CHOICES:
        message = f"{field} must be from 1 to {MAX_CHOICES}."
        raise invalid(message, code="invalid_value", param=field)


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


def _present(fields: _Guarded) -> tuple[str, ...]:
    return tuple(name for name in GUARDED_FIELDS if getattr(fields, name) is not UNSET)


def _members(of: bytes) -> dict[str, Raw]:
    """An object's members, still encoded; raises `Refusal` if there are too many to encode them again."""
    members = _MEMBERS.decode(of)
    if len(members) > MAX_MEMBERS:
        message = f"The body has {len(members)} fields; send at most {MAX_MEMBERS}."
        raise invalid(message, code="invalid_value")
    return members


def _without(body: bytes, names: tuple[str, ...]) -> bytes:
    members = _members(body)
    for name in names:
        members.pop(name, None)
    return msgspec.json.encode(members)


def _without_custom_params(body: bytes) -> bytes:
    members = _members(body)
    raw = bytes(members["sampling_params"])
    if raw.startswith(b"["):
        several = msgspec.json.decode(raw, type=list[dict[str, Raw]])
        for one in several:
            one.pop("custom_params", None)
        members["sampling_params"] = Raw(msgspec.json.encode(several))
    else:
        members["sampling_params"] = Raw(_without(raw, ("custom_params",)))
    return msgspec.json.encode(members)


def _with_usage_option(body: bytes) -> bytes:
    """Change the client's `stream_options`: of two members with one name, the client's would win."""
    members = _members(body)
    raw = bytes(members["stream_options"])
    options = {} if raw == b"null" else _members(raw)
    options["include_usage"] = Raw(b"true")
    members["stream_options"] = Raw(msgspec.json.encode(options))
    return msgspec.json.encode(members)


def _splice(body: bytes, member: bytes) -> bytes:
    """Insert `member` as the first of the object. The first brace of `body` opens it."""
    start = body.index(b"{") + 1
    rest = body[start:]
    separator = b"" if rest.lstrip(b" \t\r\n").startswith(b"}") else b","
    return b"%b%b%b%b" % (body[:start], member, separator, rest)
