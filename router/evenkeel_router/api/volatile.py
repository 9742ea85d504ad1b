"""Lines in a system prompt that programs write for the API of their own vendor, and that change with every request or conversation.

They stand first in the prompt, so an engine that reads them finds nothing in its cache. `LINES` has all that are known:

- A line is found only where it begins the system's text: `system`, `instructions`, or the first message, if its role is system or
  developer. Each is a string or a list of text parts. All other text stays as it is.
- It is never part of the text that prefixes are matched by.
- `Limits.keeps_volatile_lines` decides whether the engine gets it (`spec.router.prefix.volatileLines`).

Dates and times are no such lines: a model reads them (docs/how-to/agents.md).
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import msgspec
from evenkeel_contract.messages import UNREADABLE
from msgspec import Raw

from evenkeel_router.api.fields import metric_name
from evenkeel_router.api.inference import Inference, Limits, Parser
from evenkeel_router.api.prompt import START, UNIT
from evenkeel_router.api.reading import members_of


class Line(NamedTuple):
    """One kind of line."""

    name: str
    """Begins the line, and is its label in the metric of removed fields."""
    pattern: re.Pattern[str]
    """The line at the beginning of a text, with the line breaks after it. Its length is bounded."""
    switch: str
    """Setting of the program that switches the line off."""


LINES: Final = (
    # Claude Code 2.1.332: `cc_version` ends with a digest of the conversation. 2.1.177: `cch` is another in every request.
    # vLLM 0.32 drops it too (its pull request 36829), SGLang 0.5.23 does not.
    Line(
        "x-anthropic-billing-header",
        re.compile(
            r"x-anthropic-billing-header:(?: ?[\w.-]{1,64}=[^;\r\n]{0,256};){1,64}[\r\n]{0,4}"
        ),
        "CLAUDE_CODE_ATTRIBUTION_HEADER=0",
    ),
)
LINE_NAMES: Final = frozenset(line.name for line in LINES)
_SYSTEM: Final = ("system", "developer")
_TEXTS: Final = ("system", "instructions")
"""Members of a body that are a text of the system."""
_TURNS: Final = ("messages", "input")
"""Members of a body that are a conversation."""
_START: Final = START.encode()
_UNIT: Final = UNIT.encode()
_BEGINNINGS: Final = tuple(
    f"{START}{role}{UNIT}{line.name}".encode() for role in _SYSTEM for line in LINES
)
"""How the first turn of a canonical text begins, if it has a line."""
_NAMES: Final = tuple(line.name.encode() for line in LINES)


class _Turn(msgspec.Struct):
    role: str
    content: Raw


_RAW_LIST: Final = msgspec.json.Decoder(list[Raw])
_TURN: Final = msgspec.json.Decoder(_Turn)


def label_of(removed: str) -> str:
    """The label of a removed line or field in metrics."""
    return removed if removed in LINE_NAMES else metric_name(removed)


def reading_without_lines(parser: Parser) -> Parser:
    """A parser whose prefix text has no volatile line, and whose body has none unless the service keeps it."""

    def parse(body: bytes, limits: Limits) -> Inference:
        inference = parser(body, limits)
        text = inference.text
        if text.startswith(_START) and not text.startswith(_BEGINNINGS):
            return inference  # the usual case
        start = max(text.find(_START), 0)
        if not text.startswith(_BEGINNINGS, start) and (
            text or not any(name in body for name in _NAMES)
        ):
            return inference
        found = _without_line(inference.body)
        return inference if found is None else _replaced(inference, found, start, limits)

    return parse


class _Found(NamedTuple):
    """A line, and the value that it was taken out of, encoded."""

    name: str
    size_bytes: int
    rest: Raw


def _replaced(inference: Inference, found: _Found, start: int, limits: Limits) -> Inference:
    """`start`: where the first turn begins in the canonical text."""
    text, removed_bytes = inference.text, found.size_bytes
    if text:
        line = text.index(found.name.encode(), start)
        # A separator follows a line that was a part of its own.
        text = text[:line] + text[line + removed_bytes :].removeprefix(_UNIT)
        removed_bytes = len(inference.text) - len(text)
    if limits.keeps_volatile_lines:
        return msgspec.structs.replace(inference, text=text)
    return msgspec.structs.replace(
        inference,
        body=bytes(found.rest),
        text=text,
        prompt_bytes=inference.prompt_bytes - removed_bytes,
        stripped=(*inference.stripped, found.name),
    )


def _without_line(body: bytes) -> _Found | None:
    """The body without its line; None: it has none that could be removed."""
    members = members_of(body)
    try:
        for member in filter(members.__contains__, (*_TEXTS, *_TURNS)):
            of_member = _of_content if member in _TEXTS else _of_turns
            if (found := of_member(members[member])) is not None:
                members[member] = found.rest
                return found._replace(rest=Raw(msgspec.json.encode(members)))
    except UNREADABLE:
        pass  # of another form than texts: the engine will say so
    return None


def _of_turns(raw: Raw) -> _Found | None:
    turns = _RAW_LIST.decode(raw)
    first = _TURN.decode(turns[0])
    found = _of_content(first.content) if first.role in _SYSTEM else None
    if found is None:
        return None
    turns[0] = Raw(msgspec.json.encode(members_of(turns[0]) | {"content": found.rest}))
    return found._replace(rest=Raw(msgspec.json.encode(turns)))


def _of_content(raw: Raw) -> _Found | None:
    """A string, or a list of parts whose first one begins with the line; that part goes if nothing is left of it."""
    value: Any = msgspec.json.decode(raw)
    parts = value if isinstance(value, list) else [{"text": value}]
    if not parts or not isinstance(parts[0], dict) or not isinstance(parts[0].get("text"), str):
        return None
    text = parts[0]["text"]
    for line in LINES:
        if match := line.pattern.match(text):
            rest = text[match.end() :]
            first = [parts[0] | {"text": rest}] if rest else []
            content = [*first, *parts[1:]] if isinstance(value, list) else rest
            return _Found(line.name, len(match[0].encode()), Raw(msgspec.json.encode(content)))
    return None
