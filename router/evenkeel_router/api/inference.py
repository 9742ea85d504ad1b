"""What parsing makes of a request, and what every parser needs: checks of fields, and changes to a body.

Only fields that the router needs are decoded. Everything else is checked to be JSON and is sent as the client wrote it. The
usual changes (asking for usage, and naming the client on `/generate`) insert one member behind the opening brace, so
that a long prompt is not encoded again. Guarded fields are removed member by member, so that neither a duplicate nor an
escaped spelling (`"r\\u0069d"`) gets through.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
from evenkeel_contract.names import CLIENT_KEY_FIELD, GUARDED_FIELDS
from msgspec import UNSET, Raw, UnsetType

from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.api.errors import Outcome, Refusal, invalid
from evenkeel_router.api.prompt import Prompt

MAX_CHOICES: Final = 128  # OpenAI's bound of `n`
MAX_MEMBERS: Final = 4096  # of an object that is encoded again


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
    """Canonical text of the first prompt, for matching prefixes; empty if nothing is cached."""
    prompt_bytes: int
    """Of all prompts, for the estimate of input tokens; 0 if they are no text."""
    prompt_tokens: int | None
    """Set if the client sent token ids, or a prompt that is no text."""
    max_output_tokens: int | None
    """Of all choices together; None if the client sets no limit."""
    stream: bool = False
    wants_usage: bool = True
    """False if the client did not ask for the usage event that the router asks for."""
    stripped: tuple[str, ...] = ()
    """Guarded fields that were removed."""
    content_type: bytes = b"application/json"
    """Of the body."""


class Guarded(msgspec.Struct):
    """Decoded only to find out whether they are present."""

    routing_key: Raw | UnsetType = UNSET
    rid: Raw | UnsetType = UNSET
    request_id: Raw | UnsetType = UNSET
    priority: Raw | UnsetType = UNSET
    extra_key: Raw | UnsetType = UNSET
    custom_params: Raw | UnsetType = UNSET
    cache_salt: Raw | UnsetType = UNSET


def input_only(
    endpoint: Endpoint, body: bytes, fields: Guarded, given: Prompt, *, text: bytes | None = None
) -> Inference:
    """A request that produces no output tokens. `text` replaces the first prompt for matching prefixes."""
    body, stripped = without_guarded(body, fields)
    return Inference(
        endpoint=endpoint,
        body=body,
        text=given.first if text is None else text,
        prompt_bytes=given.size_bytes,
        prompt_tokens=given.tokens,
        max_output_tokens=0,
        stripped=stripped,
    )


def check_model(model: str | None, limits: Limits) -> None:
    """A request that names a model names the one that is served; raises `Refusal`."""
    if model is not None and model != limits.model:
        message = f"The model {model[:200]!r} does not exist; this service serves {limits.model!r}."
        raise Refusal(Outcome.NOT_FOUND, message, code="model_not_found", param="model")


def check_output(field: str, value: int | None, limits: Limits) -> None:
    """The client's bound of the output tokens; raises `Refusal`."""
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


def without_guarded(body: bytes, fields: Guarded) -> tuple[bytes, tuple[str, ...]]:
    """The body without guarded fields, and the names of those that were removed."""
    found = tuple(name for name in GUARDED_FIELDS if getattr(fields, name) is not UNSET)
    return (without(body, found) if found else body), found


def is_guarded(field: str) -> bool:
    """Whether only the router may send this field to an engine."""
    return field in GUARDED_FIELDS


def members_of(of: bytes) -> dict[str, Raw]:
    """An object's members, still encoded; raises `Refusal` if there are too many to encode them again."""
    members = _MEMBERS.decode(of)
    if len(members) > MAX_MEMBERS:
        message = f"The body has {len(members)} fields; send at most {MAX_MEMBERS}."
        raise invalid(message, code="invalid_value")
    return members


def without(body: bytes, names: tuple[str, ...]) -> bytes:
    """The body without these fields."""
    members = members_of(body)
    for name in names:
        members.pop(name, None)
    return msgspec.json.encode(members)


def splice(body: bytes, member: bytes) -> bytes:
    """Insert `member` as the first of the object. The first brace of `body` opens it."""
    start = body.index(b"{") + 1
    rest = body[start:]
    separator = b"" if rest.lstrip(b" \t\r\n").startswith(b"}") else b","
    return b"%b%b%b%b" % (body[:start], member, separator, rest)


def with_client_key(body: bytes, key: str) -> bytes:
    """A `/generate` body that names the client. `body` has no such member, because parsing removed it."""
    return splice(body, b'"%b":"%b"' % (CLIENT_KEY_FIELD.encode(), key.encode("ascii")))


_MEMBERS: Final = msgspec.json.Decoder(dict[str, Raw])
