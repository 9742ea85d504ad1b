"""The parsed request, and the parts that all parsers share: prompts, checks of fields, and changes to a body.

`reading` decodes the fields that the router needs. Everything else is checked to be JSON and is sent as the client wrote it. The
usual changes (asking for usage, and naming the client on `/generate`) insert one member behind the opening brace, so
that a long prompt is not encoded again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec
from evenkeel_contract.names import CACHE_SALT_FIELD, CLIENT_KEY_FIELD
from msgspec import Raw

from evenkeel_router.api.contents import Media
from evenkeel_router.api.errors import Outcome, Refusal, invalid
from evenkeel_router.api.prompt import UNIT, Prompt
from evenkeel_router.api.reading import Read, members_of

MAX_CHOICES: Final = 128  # OpenAI's bound of `n`
_KEY_MEMBER: Final = f'"{CLIENT_KEY_FIELD}":"%b"'.encode()
_SALT_MEMBER: Final = f'"{CACHE_SALT_FIELD}":"%b"'.encode()


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that parsing enforces."""

    model: str
    max_output_tokens: int
    adapters: frozenset[str] = frozenset()
    """Names of the LoRA adapters."""
    aliases: frozenset[str] = frozenset()
    """Other names of the model."""
    allowed_fields: frozenset[str] = frozenset()
    """Fields that are not listed (`fields`) and may reach an engine all the same."""
    keeps_volatile_lines: bool = False
    """Whether engines get the lines that `volatile` takes out of prefixes."""


class Hashed(msgspec.Struct, frozen=True, gc=False):
    """The canonical text of a long prompt, as hashes of its blocks."""

    hashes: Sequence[int]
    """Hashes of the whole blocks, shortest prefix first (`text_blocks`)."""
    block_bytes: int
    text_bytes: int


class Inference(msgspec.Struct, gc=False):
    """One request, as later steps use it."""

    body: bytes
    """What a replica receives, but for the client key on `/generate`."""
    text: bytes
    """Canonical text of the first prompt, for matching prefixes; empty if nothing is cached, if it is `hashed`, and once it was
    matched: until its answer comes, a request has its prompt in memory once."""
    prompt_bytes: int
    """Bytes of text of all prompts, for the estimate of input tokens; 0 if they are no text."""
    prompt_tokens: int | None
    """Tokens of the prompts that the client sent as token ids, or that are no text; None without such a prompt."""
    max_output_tokens: int | None
    """Most output tokens of all sequences together; None if the client sets no limit, and the API has no default."""
    most_output_tokens: int = 0
    """Most output tokens of all sequences that the engine may make: bounded by the client, else by the router. The default of an
    API is no bound, because an engine's may be another."""
    media: tuple[Media, ...] = ()
    """Media in the prompts, by kind."""
    sequences: int = 1
    """Sequences that the engine computes: prompts times answers to each (R19)."""
    prompts: int = 1
    loose_events: bool = False
    """Whether events of its stream show its output tokens only roughly: calls of tools, or an echo of the prompt."""
    stream: bool = False
    wants_usage: bool = True
    """Whether the client wants the usage event: False if only the router asked for it."""
    binary: bool = False
    """Whether the client wants numbers as bytes, not as JSON (vLLM's `encoding_format`)."""
    stripped: tuple[str, ...] = ()
    """Fields that were removed, because they are not listed."""
    content_type: bytes = b"application/json"
    """Content type of the body."""
    adapter: str | None = None
    """The LoRA adapter that the request names."""
    hashed: Hashed | None = None
    """The text, where a process of its own read the body."""
    values: int = 0
    """Values of the body or a few more, where a process of its own read it; otherwise they are few."""


Parser: TypeAlias = Callable[[bytes, Limits], Inference]


def json_parser(
    parser: Parser, *, names_model: bool = True
) -> Callable[[bytes, Limits, str], Inference]:
    """Parses a body; raises `Refusal` with the invalid field. `names_model`: whether bodies of the API name the model."""

    def parse(body: bytes, limits: Limits, _content_type: str) -> Inference:
        if not body.isascii():
            _check_utf8(body)
        try:
            inference = parser(body, limits)
        except msgspec.ValidationError as error:
            raise _wrong_field(str(error)) from error
        except RecursionError as error:
            message = "The body is nested too deeply; send less than a few hundred levels."
            raise invalid(message, code="invalid_json") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise invalid(f"The body is not valid JSON: {error}.", code="invalid_json") from error
        if inference.adapter is None:
            return inference
        return with_adapter(inference, limits, names_model=names_model)

    return parse


def _check_utf8(body: bytes) -> None:
    """JSON is UTF-8, but the decoder does not check strings that it skips."""
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


def input_only(read: Read[Any], given: Prompt, *, text: bytes | None = None) -> Inference:
    """A request that produces no output tokens. `text` replaces the first prompt for matching prefixes."""
    return Inference(
        body=read.body,
        text=given.first if text is None else text,
        prompt_bytes=given.size_bytes,
        prompt_tokens=given.tokens,
        max_output_tokens=0,
        media=given.media,
        sequences=given.prompts,
        prompts=given.prompts,
        stripped=read.removed,
    )


def check_model(model: str | None, limits: Limits) -> None:
    """A request names the model if any; raises `Refusal`. For APIs in which engines ignore or refuse adapters."""
    adapter = adapter_of(model, limits)
    if adapter is not None:
        message = f"Engines do not use adapters with this API; send the model {limits.model!r}."
        raise invalid(message, code="unsupported_model", param="model")


def adapter_of(
    model: str | None, limits: Limits, lora_path: str | list[str | None] | None = None
) -> str | None:
    """The adapter that a request names: `model:adapter`, its name alone, or SGLang's field `lora_path`.

    None: the model itself. Raises `Refusal` for a model or an adapter that the service does not have.
    """
    if model is not None and model != limits.model and model not in limits.aliases:
        name = model.removeprefix(f"{limits.model}:")
    else:
        if not lora_path:
            return None
        if isinstance(lora_path, list):
            message = "lora_path is a list; send one request for each adapter."
            raise invalid(message, code="invalid_value", param="lora_path")
        name = lora_path
    if name in limits.adapters:
        return name
    served = repr(limits.model)
    if limits.adapters:
        served += f" with {len(limits.adapters)} adapters (GET /v1/models lists them)"
    asked = name if model in (None, limits.model) else model or ""
    message = f"The model {asked[:200]!r} does not exist; this service serves {served}."
    raise Refusal(Outcome.NOT_FOUND, message, code="model_not_found", param="model")


def with_adapter(inference: Inference, limits: Limits, *, names_model: bool) -> Inference:
    """The request as an engine takes it. SGLang reads `model:adapter`, and answers an adapter's name alone with the model.

    The adapter goes before the text, so that no prefix is shared across adapters.
    """
    adapter = inference.adapter
    body = inference.body
    if names_model:
        members = members_of(body)
        members["model"] = Raw(msgspec.json.encode(f"{limits.model}:{adapter}"))
        body = msgspec.json.encode(members)
    text = f"{adapter}{UNIT}".encode() + inference.text if inference.text else b""
    return msgspec.structs.replace(inference, body=body, text=text)


def check_output(field: str, value: int | None, limits: Limits) -> None:
    """The client's bound of the output tokens; raises `Refusal`. 0 only computes the prompt; some engines refuse it."""
    if value is not None and not 0 <= value <= limits.max_output_tokens:
        shown = value if -(10**9) < value < 10**9 else "a huge number"
        message = f"{field} is {shown}; it must be from 0 to {limits.max_output_tokens}."
        raise invalid(message, code="invalid_value", param=field)


def check_choices(field: str, value: int | None) -> None:
    """The number of answers to one prompt; raises `Refusal`."""
    if value is not None and not 1 <= value <= MAX_CHOICES:
        message = f"{field} must be from 1 to {MAX_CHOICES}."
        raise invalid(message, code="invalid_value", param=field)


def check_not_empty(field: str, values: object) -> None:
    """A list that needs an entry; raises `Refusal`."""
    if not values:
        message = f"{field} is empty; send at least one."
        raise invalid(message, code="invalid_value", param=field)


def splice(body: bytes, member: bytes) -> bytes:
    """Insert `member` as the first of the object. The first brace of `body` opens it."""
    if body.startswith(b'{"'):  # the usual case: it has a member
        return b"{%b,%b" % (member, body[1:])
    start = body.index(b"{") + 1
    rest = body[start:]
    separator = b"" if rest.lstrip(b" \t\r\n").startswith(b"}") else b","
    return b"%b%b%b%b" % (body[:start], member, separator, rest)


def with_client_key(body: bytes, key: str) -> bytes:
    """A `/generate` body that names the client. `body` has no such member, because parsing removed it."""
    return splice(body, _KEY_MEMBER % key.encode("ascii"))


def with_cache_salt(body: bytes, cache_salt: str) -> bytes:
    """A body whose prefixes are shared with those of the same salt only; it has no such member, because parsing removed it."""
    return splice(body, _SALT_MEMBER % cache_salt.encode("ascii"))


_PLACE: Final = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>\$.*)`)?$", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(?P<field>[^`]+)`")
