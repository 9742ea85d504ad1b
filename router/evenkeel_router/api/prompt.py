"""Prompts: their canonical text, for matching prefixes, and what their tokens are estimated by. Pure.

The canonical text of a conversation is the same whatever its JSON spacing, and whether content is a string or a text part. It is
not the text of the engine's chat template. But where two conversations differ in that text, they differ in this one too: parts
that are no plain text, and those that the router does not know, are in it as JSON or as a digest (`contents`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from evenkeel_router.api.contents import Contents, Media
from evenkeel_router.api.errors import Refusal, invalid

Input: TypeAlias = str | list[str | int | list[int]]
"""A prompt, several, token ids, or several of those."""

USUAL_TOKEN_BYTES: Final = 4
"""Bytes of text of one token, as in English, before a tenant's own ratio is learnt."""
MAX_PROMPTS: Final = 2048  # of one request; OpenAI's limit of embeddings
MAX_PARTS: Final = 65_536  # of all messages together: a body of 16 MiB has room for millions
_START = "\x1e"  # before each message; control characters of ASCII that separate records and units
UNIT: Final = "\x1f"
_UNIT = UNIT


class Part(msgspec.Struct):
    """A piece of a message's content. One that is no plain text is read again as it was sent (`Contents`)."""

    type: str = ""
    text: str | None = None
    uuid: Raw | UnsetType = UNSET
    """vLLM's name of a medium in its cache, which all tenants share: never sent on."""


class Message(msgspec.Struct):
    """A chat message: the fields that a template may print."""

    role: str
    content: str | list[Part] | None = None
    tool_calls: Raw | UnsetType = UNSET
    reasoning_content: str | None = None
    reasoning: Raw | UnsetType = UNSET
    name: Raw | UnsetType = UNSET
    tool_call_id: Raw | UnsetType = UNSET
    refusal: Raw | UnsetType = UNSET
    function_call: Raw | UnsetType = UNSET
    audio: Raw | UnsetType = UNSET
    tools: Raw | UnsetType = UNSET


class _RawMessage(msgspec.Struct):
    content: Raw | UnsetType = UNSET


class _RawMessages(msgspec.Struct):
    messages: list[_RawMessage] = []


TEXT_PARTS: Final = frozenset({"", "text", "input_text", "output_text"})
"""Types of parts whose member `text` is all that an engine reads of them."""
_rare_members = attrgetter(
    "reasoning_content",
    "tool_calls",
    "reasoning",
    "name",
    "tool_call_id",
    "refusal",
    "function_call",
    "audio",
    "tools",
)
_NONE_RARE: Final = (None, *(UNSET,) * 8)
_RAW_MESSAGES: Final = msgspec.json.Decoder(_RawMessages)
_RAW_LIST: Final = msgspec.json.Decoder(list[Raw])


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """What the router needs of a request's prompts."""

    first: bytes
    """Canonical text of the first prompt."""
    size_bytes: int
    """Bytes of text of all prompts."""
    tokens: int | None
    """Tokens of the prompts that are token ids; None unless some are."""
    prompts: int = 1
    media: tuple[Media, ...] = ()
    names_media: bool = False
    """Whether a part names a medium in the engine's cache."""


def prompt_of_messages(messages: list[Message], body: bytes) -> Prompt:
    """Role and content of each message in turn.

    `body`: what the messages were decoded from. Raises `Refusal` if there are so many that reading them would delay other requests.
    """
    pieces: list[str] = []
    parts = len(messages)
    if parts > MAX_PARTS:
        raise _too_many_parts("messages", parts)
    contents = None
    for index, message in enumerate(messages):
        content = message.content
        if isinstance(content, str):
            pieces += (_START, message.role, _UNIT, content)
        else:
            pieces += (_START, message.role, _UNIT)
            if content:
                parts += len(content) - 1
                if parts > MAX_PARTS:
                    raise _too_many_parts("messages", parts)
                contents = _add_parts(pieces, index, content, contents, body)
        rare = _rare_members(message)
        if rare != _NONE_RARE:
            thoughts, *others = rare
            given = [thoughts or "", *map(text_of, others)]
            pieces += [_UNIT + text for text in given if text not in ("", "null")]
    text = "".join(pieces).encode()
    if contents is None:
        return Prompt(text, len(text), None)
    return Prompt(
        text,
        contents.text_bytes_of(text),
        None,
        media=contents.read.media(),
        names_media=contents.names_media,
    )


def _add_parts(  # noqa: PLR0917 - a part of the loop above
    pieces: list[str],
    index: int,
    content: Sequence[Part],
    contents: RawContents | None,
    body: bytes,
) -> RawContents | None:
    """Add the texts of a message's parts. Returns what read those that are no plain text; None: there was none so far."""
    if any(
        part.text is None or part.type not in TEXT_PARTS or part.uuid is not UNSET
        for part in content
    ):
        contents = contents or RawContents(body)
        pieces += contents.parts(index, content)
    else:
        pieces += [part.text or "" for part in content]
    return contents


class RawContents:
    """Parts of messages as they were sent, for messages that have parts which are no plain text."""

    def __init__(self, body: bytes) -> None:
        self.read = Contents()
        self._messages = _RAW_MESSAGES.decode(body).messages
        self.names_media = False
        """Whether a part names a medium in the engine's cache."""
        self._canonical_bytes = 0
        """Bytes of the canonical text of parts that are no plain text."""

    def parts(self, index: int, parts: Sequence[Part]) -> list[str]:
        """Canonical texts of the parts of message `index`."""
        self.names_media = self.names_media or any(part.uuid is not UNSET for part in parts)
        raw = self._messages[index].content
        given = _RAW_LIST.decode(raw) if isinstance(raw, Raw) else []
        return [
            part.text if part.text is not None and part.type in TEXT_PARTS else self.part(one)
            for part, one in zip(parts, given, strict=True)
        ]

    def part(self, raw: Raw) -> str:
        """Canonical text of a part that is no plain text."""
        text = self.read.part(bytes(raw))
        self._canonical_bytes += len(text.encode())
        return text

    def text_bytes_of(self, text: bytes) -> int:
        """Bytes of the canonical `text` that an engine reads as text: without digests of media."""
        return len(text) - self._canonical_bytes + self.read.text_bytes


def prompt_of_turns(
    tools: UnsetType | Raw,
    turns: Iterable[tuple[str, Sequence[str]]],
    contents: RawContents | None = None,
) -> Prompt:
    """Tools first, then each turn of a conversation: its role and its pieces. `contents`: what made pieces of parts."""
    pieces = [text_of(tools)]
    for role, given in turns:
        pieces += (_START, role, _UNIT, _UNIT.join(given))
    text = "".join(pieces).encode()
    if contents is None:
        return Prompt(text, len(text), None)
    return Prompt(text, contents.text_bytes_of(text), None, media=contents.read.media())


def check_parts(field: str, contents: Iterable[object]) -> None:
    """Raises `Refusal` for a conversation of so many parts that reading them would delay other requests."""
    parts = sum(len(content) if isinstance(content, list) else 1 for content in contents)
    if parts > MAX_PARTS:
        raise _too_many_parts(field, parts)


def _too_many_parts(field: str, parts: int) -> Refusal:
    message = f"{field} has {parts} parts; send at most {MAX_PARTS}."
    return invalid(message, code="invalid_value", param=field)


def text_of(raw: UnsetType | Raw | None) -> str:
    """An encoded value as text; empty if there is none."""
    return bytes(raw).decode() if isinstance(raw, Raw) else ""


def prompt_of_input(given: str | Sequence[str | int | list[int]], field: str) -> Prompt:
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
    size_bytes, tokens = (
        sum(map(len, texts)),
        sum(len(one) for one in given if isinstance(one, list)),
    )
    if tokens and any(isinstance(one, str) for one in given):
        # Texts beside token ids: the ids count as text of the usual ratio.
        texts_only = sum(
            len(text) for text, one in zip(texts, given, strict=True) if isinstance(one, str)
        )
        return Prompt(texts[0], texts_only + USUAL_TOKEN_BYTES * tokens, None, len(texts))
    return Prompt(texts[0], size_bytes, tokens or None, len(texts))


def with_prefix(prompt: Prompt, before: Iterable[UnsetType | Raw]) -> Prompt:
    """A prompt with what a template prints before the messages, or what changes how it prints them."""
    text = _UNIT.join(filter(None, map(text_of, before))).encode()
    size_bytes = prompt.size_bytes + len(text)
    return msgspec.structs.replace(prompt, first=text + prompt.first, size_bytes=size_bytes)


def with_extras(
    prompt: Prompt, given: Mapping[str, UnsetType | Raw], *, suffix: str = ""
) -> Prompt:
    """A prompt with what an engine reads beside its text: a suffix, and media by kind (`contents.MEDIA`)."""
    contents, pieces = Contents(), [prompt.first.decode("utf-8", "surrogateescape")]
    if suffix:
        pieces += (_UNIT, suffix)
    for kind, media in given.items():
        if isinstance(media, Raw) and bytes(media) != b"null":
            pieces.append(contents.several(bytes(media), kind))
    text = "".join(pieces).encode("utf-8", "surrogateescape")
    size_bytes = prompt.size_bytes + len(suffix.encode())
    found = contents.media()
    return msgspec.structs.replace(prompt, first=text, size_bytes=size_bytes, media=found)
