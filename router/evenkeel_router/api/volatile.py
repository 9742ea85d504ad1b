"""Lines in a system prompt that programs write for the API of their own vendor, and that change with every request or conversation.

They stand first in the prompt, so an engine that reads them finds nothing in its cache. `LINES` has all that are known:

- A line is found only where a text of the system begins with it: in `system`, in `instructions`, and in messages of the role
  system or developer, each a string or a list of text parts. What users and tools write stays as it is.
- It is never part of the text that prefixes are matched by.
- `Limits.keeps_volatile_lines` decides whether the engine gets it (`spec.router.prefix.volatileLines`).

Dates and times are no such lines: a model reads them (docs/how-to/agents.md).
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import msgspec
from evenkeel_contract.messages import UNREADABLE
from msgspec import UNSET, Raw, UnsetType

from evenkeel_router.api.inference import Inference, Limits, Parser
from evenkeel_router.api.reading import members_of


class Line(NamedTuple):
    """One kind of line."""

    name: str
    """Label of the line in the metric of removed fields."""
    piece: bytes
    """Bytes that each body with this line contains, and few others: they are searched before anything is read again."""
    pattern: re.Pattern[str]
    """The line at the beginning of a text, with the line breaks after it. Its length is bounded."""
    switch: str
    """Setting of the program that switches the line off."""


LINES: Final = (
    # Claude Code 2.1.332: `cc_version` ends with a digest of the conversation. 2.1.177: `cch` is another in every request.
    # vLLM 0.32 drops it too (its pull request 36829), SGLang 0.5.23 does not.
    Line(
        "x-anthropic-billing-header",
        b"-billing-",
        re.compile(r"x-anthropic-billing-header:(?: ?[\w.-]{1,64}=[^;\r\n]{0,256};){1,64}\s{0,4}"),
        "CLAUDE_CODE_ATTRIBUTION_HEADER=0",
    ),
)
LINE_NAMES: Final = frozenset(line.name for line in LINES)
_SYSTEM: Final = frozenset({"system", "developer"})
_TEXTS: Final = ("system", "instructions")
"""Members of a body that are a text of the system."""
_TURNS: Final = ("messages", "input")
"""Members of a body that are a conversation."""


class _Turn(msgspec.Struct):
    role: str = ""
    content: Raw | UnsetType = UNSET


_RAW_LIST: Final = msgspec.json.Decoder(list[Raw])
_TURN: Final = msgspec.json.Decoder(_Turn)


def reading_without_lines(parser: Parser) -> Parser:
    """A parser whose prefix text has no volatile lines, and whose body has none unless the service keeps them."""

    def parse(body: bytes, limits: Limits) -> Inference:
        found = without_lines(body)
        if found is None:
            return parser(body, limits)
        inference = parser(found.body, limits)
        if limits.keeps_volatile_lines:
            return msgspec.structs.replace(parser(body, limits), text=inference.text)
        names = (*inference.stripped, *found.names)
        return msgspec.structs.replace(inference, stripped=names)

    return parse


class Without(NamedTuple):
    """A body without volatile lines."""

    body: bytes
    names: tuple[str, ...]
    """Names of the lines that were removed."""


def without_lines(body: bytes) -> Without | None:
    """The body without volatile lines; None: it has none, or cannot be read. Raises `Refusal` for too many fields."""
    found = [line for line in LINES if line.piece in body]
    if not found:
        return None
    removal = _Removal(found)
    try:
        members = members_of(body)
        for name in _TEXTS:
            if name in members:
                members[name] = removal.content(members[name])
        for name in _TURNS:
            if name in members:
                members[name] = removal.turns(members[name])
    except (*UNREADABLE, RecursionError):
        return None  # the API's own parser names the fault
    if not removal.names:
        return None
    return Without(msgspec.json.encode(members), tuple(removal.names))


class _Removal:
    """Removes lines from encoded values, which stay as they are where there is none."""

    def __init__(self, lines: list[Line]) -> None:
        self._lines = lines
        self.names: list[str] = []

    def turns(self, raw: Raw) -> Raw:
        """A conversation."""
        if bytes(raw)[:1] != b"[":
            return raw
        turns = _RAW_LIST.decode(raw)
        changed = False
        for index, turn in enumerate(turns):
            encoded = bytes(turn)
            if all(line.piece not in encoded for line in self._lines):
                continue
            read = _TURN.decode(encoded)
            if read.role not in _SYSTEM or not isinstance(read.content, Raw):
                continue
            content = self.content(read.content)
            if content is not read.content:
                members = members_of(encoded) | {"content": content}
                turns[index], changed = Raw(msgspec.json.encode(members)), True
        return Raw(msgspec.json.encode(turns)) if changed else raw

    def content(self, raw: Raw) -> Raw:
        """A string, or a list of parts: a part that nothing is left of goes."""
        value = msgspec.json.decode(raw)
        rest: Any
        if isinstance(value, str):
            rest = self._rest(value)
        elif isinstance(value, list):
            parts = [self._part(part) for part in value]
            rest = [part for part in parts if part is not None]
        else:
            return raw
        return raw if rest == value else Raw(msgspec.json.encode(rest))

    def _part(self, part: Any) -> Any:
        """A part without the line; None if nothing is left."""
        text = part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str):
            return part
        rest = self._rest(text)
        if rest is text:
            return part
        return part | {"text": rest} if rest else None

    def _rest(self, text: str) -> str:
        for line in self._lines:
            if match := line.pattern.match(text):
                self.names.append(line.name)
                return text[match.end() :]
        return text
