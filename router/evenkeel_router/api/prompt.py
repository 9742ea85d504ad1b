"""The canonical text of a prompt, for matching prefixes: one prompt always gives the same bytes.

A conversation has the same text whatever its JSON spacing, and whether content is a string or a text part. The text differs
from that of the engine's chat template, but it changes where that would change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from evenkeel_router.api.errors import invalid

Input: TypeAlias = str | list[str | int | list[int]]
"""A prompt, several, token ids, or several of those."""

MAX_PROMPTS: Final = 2048  # of one request; OpenAI's limit of embeddings
MAX_PARTS: Final = 65_536  # of all messages together: a body of 16 MiB has room for millions
_START = "\x1e"  # before each message; control characters of ASCII that separate records and units
_UNIT = "\x1f"


class Part(msgspec.Struct):
    """A piece of a message's content. Media count by their bytes."""

    type: str = ""
    text: str | None = None
    image_url: Raw | UnsetType = UNSET
    video_url: Raw | UnsetType = UNSET
    input_audio: Raw | UnsetType = UNSET


class Message(msgspec.Struct):
    """A chat message: the fields that a template may print."""

    role: str
    content: str | list[Part] | None = None
    tool_calls: Raw | UnsetType = UNSET
    reasoning_content: str | None = None


class Prompt(NamedTuple):
    """What the router needs of a request's prompts."""

    first: bytes
    """Canonical text of the first one."""
    size_bytes: int
    """Of all of them."""
    tokens: int | None
    """Of all of them, if token ids were sent."""
    prompts: int = 1


def of_messages(messages: list[Message], tools: bytes) -> Prompt:
    """Tools first, as templates put them, then role and content of each message in turn.

    Raises `Refusal` if there are so many that reading them would delay other requests.
    """
    check_parts("messages", messages)
    pieces = [tools.decode()] if tools else []
    for message in messages:
        pieces += (_START, message.role, _UNIT)
        content = message.content
        if isinstance(content, str):
            pieces.append(content)
        elif content is not None:
            pieces.extend(_part(part) for part in content)
        if message.reasoning_content is not None:
            pieces += (_UNIT, message.reasoning_content)
        if message.tool_calls is not UNSET:
            pieces += (_UNIT, bytes(message.tool_calls).decode())
    text = "".join(pieces).encode()
    return Prompt(text, len(text), None)


def of_turns(tools: UnsetType | Raw, turns: Iterable[tuple[str, Sequence[str]]]) -> Prompt:
    """Tools first, then each turn of a conversation: its role and its pieces."""
    pieces = [] if tools is UNSET else [bytes(tools).decode()]
    for role, given in turns:
        pieces += (_START, role, _UNIT, _UNIT.join(given))
    text = "".join(pieces).encode()
    return Prompt(text, len(text), None)


class _Turn(Protocol):
    @property
    def content(self) -> object: ...


def check_parts(field: str, turns: Sequence[_Turn]) -> None:
    """Raises `Refusal` for a conversation of so many parts that reading them would delay other requests."""
    parts = 0
    for one in turns:
        parts += len(one.content) if isinstance(one.content, list) else 1
    if parts > MAX_PARTS:
        message = f"{field} has {parts} parts; send at most {MAX_PARTS}."
        raise invalid(message, code="invalid_value", param=field)


def text_of(raw: UnsetType | Raw | None) -> str:
    """An encoded value as text; empty if there is none."""
    return bytes(raw).decode() if isinstance(raw, Raw) else ""


def of_input(given: str | Sequence[str | int | list[int]], field: str) -> Prompt:
    """A prompt of completions, embeddings or `/generate`; raises `Refusal` if it is empty."""
    if isinstance(given, str):
        text = given.encode()
        return Prompt(text, len(text), None)
    if not given:
        raise invalid(f"{field} is empty.", code="invalid_value", param=field)
    if isinstance(given[0], int):
        text = msgspec.json.encode(given)
        return Prompt(text, len(text), len(given))
    if len(given) > MAX_PROMPTS:
        message = f"{field} has {len(given)} prompts; send at most {MAX_PROMPTS} at a time."
        raise invalid(message, code="invalid_value", param=field)
    texts = [one.encode() if isinstance(one, str) else msgspec.json.encode(one) for one in given]
    tokens = sum(len(one) for one in given if isinstance(one, list))
    return Prompt(texts[0], sum(map(len, texts)), tokens or None, len(texts))


def _part(part: Part) -> str:
    if part.text is not None:
        return part.text
    for media in (part.image_url, part.video_url, part.input_audio):
        if media is not UNSET:
            return bytes(media).decode()
    return part.type
