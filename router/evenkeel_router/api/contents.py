"""Contents of a prompt that are no plain text: media, and parts that the router does not know. Pure.

An engine reads all of them, so all are in the prompt's canonical text: small ones as JSON, media as a digest of `DIGEST_BYTES`.
Two different files are never one prefix. Bytes of media are no bytes of text, so they have an estimate of their own for each
kind (`ledger.estimates`).

| kind              | counted by | tokens before any is learnt | most tokens of one |
|-------------------|------------|-----------------------------|--------------------|
| image, by URL too | item       | 1024                        | 16,384             |
| audio inline      | bytes      | 50 a second of 128 kbit/s   | 131,072            |
| audio by URL      | item       | 1500 (30 s)                 | 131,072            |
| video             | item       | 8192                        | 262,144            |
| file              | item       | 4096                        | 262,144            |
| embeds            | bytes      | one per 8192 bytes          | its bytes          |
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec
import xxhash
from evenkeel_contract.messages import UNREADABLE

from evenkeel_router.api.errors import Refusal, invalid

DIGEST_BYTES: Final = 4096
"""Bytes of canonical text that stand for one medium: about its tokens, so that matched tokens are not all of its text."""
PADDED: Final = 32
"""Media of one request whose digest is repeated to `DIGEST_BYTES`. Of more media each has its digest alone, which bounds the text."""
MAX_NODES: Final = 65_536
"""Values in all parts that are no plain text. More would delay other requests."""
_URLS: Final = ("http://", "https://", "file://", "s3://", "gs://")
_DATA: Final = re.compile(r"data:(\w+)/[\w.+-]+[;,]")  # RFC 2397
_INLINE: Final = 1024  # a shorter string that is no data URL is a name or an id of a file


class MediaRule(NamedTuple):
    """How a kind of media is estimated before any is learnt, and what an engine may report at most."""

    item_tokens: float
    """Tokens of one; 0 for a kind that is counted by its bytes."""
    token_bytes: float
    """Bytes of one token, encoded as base64; 0 for a kind that is counted by items."""
    most_tokens: int
    """Most tokens of one; 0: its bytes."""


MEDIA: Final = {
    "image": MediaRule(1024, 0, 16_384),
    "image_url": MediaRule(1024, 0, 16_384),
    "audio": MediaRule(0, 427, 131_072),
    "audio_url": MediaRule(1500, 0, 131_072),
    "video": MediaRule(8192, 0, 262_144),
    "video_url": MediaRule(8192, 0, 262_144),
    "file": MediaRule(4096, 0, 262_144),
    "file_url": MediaRule(4096, 0, 262_144),
    "embeds": MediaRule(0, 8192, 0),
}
"""Kind of media → its rule. Kinds with `_url` are those that the engine fetches: their size is unknown here."""

_KINDS: Final = {
    "image": "image", "image_url": "image", "input_image": "image", "image_pil": "image",
    "computer_screenshot": "image", "image_generation_call": "image",
    "audio": "audio", "audio_url": "audio", "input_audio": "audio",
    "video": "video", "video_url": "video", "input_video": "video",
    "file": "file", "input_file": "file", "document": "file", "pdf": "file",
    "image_embeds": "embeds", "audio_embeds": "embeds", "video_embeds": "embeds", "embeds": "embeds",
}  # fmt: skip
"""Types of parts, and members that hold a medium → its kind, if it is inline."""
_MEMBERS: Final = frozenset(_KINDS) - {"image", "audio", "video", "file", "document", "pdf"}
"""Members that hold a medium whatever the part's type is; the others may be words of a tool's arguments."""


class Media(NamedTuple):
    """All media of one kind in one request."""

    kind: str
    items: int
    tokens: float
    """Expected tokens by the rule of the kind."""
    most_tokens: int
    """Most tokens that an engine can have read."""


def merged(several: Iterable[tuple[Media, ...]]) -> tuple[Media, ...]:
    """The media of several prompts, by kind."""
    found: dict[str, Media] = {}
    for one in itertools.chain.from_iterable(several):
        before = found.get(one.kind, Media(one.kind, 0, 0.0, 0))
        found[one.kind] = Media(
            one.kind,
            before.items + one.items,
            before.tokens + one.tokens,
            before.most_tokens + one.most_tokens,
        )
    return tuple(found.values())


class Contents:
    """Collects what is no plain text. One request; deterministic."""

    __slots__ = ("_media", "_nodes", "_padded", "text_bytes")

    def __init__(self) -> None:
        self.text_bytes = 0
        """Bytes of the canonical text so far that an engine reads as text."""
        self._nodes = 0
        self._padded = 0
        self._media: dict[str, Media] = {}

    def media(self) -> tuple[Media, ...]:
        """The media so far, by kind."""
        return tuple(self._media.values())

    def part(self, raw: bytes) -> str:
        """Canonical text of an encoded part; raises `Refusal` if it has too many values."""
        return self._of(msgspec.json.decode(raw))

    def several(self, raw: bytes, kind: str) -> str:
        """Canonical text of a member that is one medium of a kind, or a list of them (SGLang's `image_data`)."""
        value = msgspec.json.decode(raw)
        given = value if isinstance(value, list) else [value]
        self._count(len(given))
        return "".join(self._medium(kind, one) for one in given if one is not None)

    def _of(self, value: Any) -> str:
        self._count(1)
        if isinstance(value, dict):
            return self._object(value)
        if isinstance(value, list):
            return "".join([self._of(one) for one in value])
        if isinstance(value, str) and (found := _DATA.match(value)):
            return self._medium(found[1] if found[1] in MEDIA else "file", value)
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        self.text_bytes += len(text.encode())
        return text

    def _object(self, value: dict[str, Any]) -> str:
        named = value.get("type")
        kind = _KINDS.get(named, "") if isinstance(named, str) else ""
        source = value.get("source")
        if isinstance(source, dict) and source.get("type") in ("text", "content"):
            kind = ""  # Anthropic's document of text or of blocks
        if kind:
            return self._medium(kind, value)
        pieces: list[str] = []
        for name, member in value.items():
            if name in _MEMBERS and member is not None:
                pieces.append(self._medium(_KINDS[name], member))
            else:
                self.text_bytes += len(name)
                pieces += (name, "\x1f", self._of(member), "\x1f")
        return "".join(pieces)

    def _medium(self, kind: str, value: Any) -> str:
        encoded = msgspec.json.encode(value)
        longest = max(_strings(value), key=len, default="")
        inline = longest.startswith("data:") or len(longest) >= _INLINE
        if kind != "embeds" and (not inline or longest.startswith(_URLS)):
            kind = f"{kind}_url"
        rule = MEDIA[kind]
        before = self._media.get(kind, Media(kind, 0, 0.0, 0))
        tokens = rule.item_tokens or max(1.0, len(encoded) / rule.token_bytes)
        self._media[kind] = Media(
            kind,
            before.items + 1,
            before.tokens + tokens,
            before.most_tokens + (rule.most_tokens or len(encoded)),
        )
        self._padded += 1
        digest = xxhash.xxh3_128_hexdigest(encoded)
        return digest * (DIGEST_BYTES // len(digest)) if self._padded <= PADDED else digest

    def _count(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise too_many_values()


def too_many_values() -> Refusal:
    """The refusal of parts with more values than are read."""
    message = f"The parts of the messages have more than {MAX_NODES} values; send fewer."
    return invalid(message, code="invalid_value", param="messages")


def _strings(value: Any) -> Iterable[str]:
    """The strings in a medium's value and below it: its payload is the longest."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)


TEXT_MEMBERS: Final = frozenset(
    {"arguments", "content", "partial_json", "reasoning", "reasoning_content", "refusal", "text", "thinking"}
)  # fmt: skip
"""Members of answers whose strings a model wrote."""


def written_bytes(answer: bytes) -> int:
    """Bytes of text that a model wrote, in a whole answer or an event of any API; 0 if it cannot be read."""
    try:
        value = msgspec.json.decode(answer)
    except UNREADABLE:
        return 0
    waiting, found = [value], 0
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting.extend(one)
        elif isinstance(one, dict):
            for name, member in one.items():
                if isinstance(member, str):
                    # `delta` of responses is the text itself.
                    if name in TEXT_MEMBERS or name == "delta":
                        found += len(member.encode())
                elif name != "logprobs":
                    waiting.append(member)
    return found
