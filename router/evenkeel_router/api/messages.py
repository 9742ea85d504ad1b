"""Anthropic's messages: what the router reads of a request.

`system` comes first in the canonical text, then tools, then the messages, as engines build the prompt. `max_tokens` is
required, so the output always has a bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from evenkeel_router.api.fields import COUNT_TOKENS, MESSAGES
from evenkeel_router.api.inference import (
    Inference,
    Limits,
    adapter_of,
    check_not_empty,
    check_output,
    input_only,
)
from evenkeel_router.api.prompt import (
    TEXT_PARTS,
    Part,
    Prompt,
    RawContents,
    check_parts,
    prompt_of_turns,
)
from evenkeel_router.api.reading import Reader


class _Block(Part):
    """A block of content. One that is no text is read again as it was sent."""

    thinking: str | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Block]


class _Counted(msgspec.Struct, kw_only=True):
    """What `/v1/messages/count_tokens` takes."""

    model: str
    messages: list[_Message]
    system: str | list[_Block] | None = None
    tools: Raw | UnsetType = UNSET


class _Messages(_Counted, kw_only=True):
    max_tokens: int
    stream: bool | None = None


_COUNTED: Final = Reader(_Counted, COUNT_TOKENS)
_MESSAGES: Final = Reader(_Messages, MESSAGES)


def messages(body: bytes, limits: Limits) -> Inference:
    """`/v1/messages`."""
    read = _MESSAGES.read(body, limits.allowed_fields)
    fields, body = read.fields, read.body
    check_output("max_tokens", fields.max_tokens, limits)
    given = _prompt(fields, limits, body)
    return Inference(
        body=body,
        text=given.first,
        prompt_bytes=given.size_bytes,
        prompt_tokens=None,
        max_output_tokens=fields.max_tokens,
        most_output_tokens=fields.max_tokens,
        media=given.media,
        loose_events=fields.tools is not UNSET,
        stream=bool(fields.stream),
        stripped=read.removed,
        adapter=adapter_of(fields.model, limits),
    )


def count_tokens(body: bytes, limits: Limits) -> Inference:
    """`/v1/messages/count_tokens`."""
    read = _COUNTED.read(body, limits.allowed_fields)
    return input_only(read, _prompt(read.fields, limits, read.body), text=b"")


def _prompt(fields: _Counted, limits: Limits, body: bytes) -> Prompt:
    adapter_of(fields.model, limits)  # an adapter has the model's tokenizer
    check_not_empty("messages", fields.messages)
    check_parts("messages", (message.content for message in fields.messages))
    plain = all(_is_plain(message.content) for message in fields.messages)
    contents = None if plain else RawContents(body)
    return prompt_of_turns(fields.tools, _turns(fields, contents), contents)


def _turns(fields: _Counted, contents: RawContents | None) -> Iterator[tuple[str, list[str]]]:
    system = fields.system
    if system is not None:
        yield (
            "system",
            [system] if isinstance(system, str) else [_text(block) or "" for block in system],
        )
    for index, message in enumerate(fields.messages):
        content = message.content
        if isinstance(content, str):
            yield message.role, [content]
        elif contents is None or _is_plain(content):
            yield message.role, [_text(block) or "" for block in content]
        else:
            yield message.role, contents.parts(index, content)


def _is_plain(content: str | list[_Block]) -> bool:
    """Whether all blocks are text or thoughts."""
    return isinstance(content, str) or all(_text(block) is not None for block in content)


def _text(block: _Block) -> str | None:
    """The text of a block; None if it is no text."""
    if block.text is not None and block.type in TEXT_PARTS:
        return block.text
    return block.thinking if block.type == "thinking" else None
