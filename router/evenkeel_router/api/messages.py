"""Anthropic's messages: what the router reads of a request.

`system` comes first in the canonical text, then tools, then the messages, as engines build the prompt. `max_tokens` is
required, so the output always has a bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from evenkeel_router.api.inference import (
    Guarded,
    Inference,
    Limits,
    Prompt,
    adapter_of,
    check_not_empty,
    check_output,
    check_parts,
    input_only,
    prompt_of_turns,
    text_of,
    without_guarded,
)


class _Block(msgspec.Struct):
    """A block of content. What is no text counts by its bytes."""

    type: str
    text: str | None = None
    thinking: str | None = None
    name: str | None = None
    input: Raw | UnsetType = UNSET
    content: Raw | UnsetType = UNSET
    source: Raw | UnsetType = UNSET


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Block]


class _Counted(Guarded, kw_only=True):
    """What `/v1/messages/count_tokens` takes."""

    model: str
    messages: list[_Message]
    system: str | list[_Block] | None = None
    tools: Raw | UnsetType = UNSET


class _Messages(_Counted, kw_only=True):
    max_tokens: int
    stream: bool | None = None


_COUNTED: Final = msgspec.json.Decoder(_Counted)
_MESSAGES: Final = msgspec.json.Decoder(_Messages)


def messages(body: bytes, limits: Limits) -> Inference:
    """`/v1/messages`."""
    fields = _MESSAGES.decode(body)
    check_output("max_tokens", fields.max_tokens, limits)
    given = _prompt(fields, limits)
    body, stripped = without_guarded(body, fields)
    return Inference(
        body=body,
        text=given.first,
        prompt_bytes=given.size_bytes,
        prompt_tokens=None,
        max_output_tokens=fields.max_tokens,
        stream=bool(fields.stream),
        stripped=stripped,
        adapter=adapter_of(fields.model, limits),
    )


def count_tokens(body: bytes, limits: Limits) -> Inference:
    """`/v1/messages/count_tokens`."""
    fields = _COUNTED.decode(body)
    return input_only(body, fields, _prompt(fields, limits), text=b"")


def _prompt(fields: _Counted, limits: Limits) -> Prompt:
    adapter_of(fields.model, limits)  # an adapter has the model's tokenizer
    check_not_empty("messages", fields.messages)
    check_parts("messages", (message.content for message in fields.messages))
    return prompt_of_turns(fields.tools, _turns(fields))


def _turns(fields: _Counted) -> Iterator[tuple[str, list[str]]]:
    if fields.system is not None:
        yield "system", _pieces(fields.system)
    for message in fields.messages:
        yield message.role, _pieces(message.content)


def _pieces(content: str | list[_Block]) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [piece for block in content for piece in _of_block(block)]


def _of_block(block: _Block) -> list[str]:
    for text in (block.text, block.thinking):
        if text is not None:
            return [text]
    encoded = map(text_of, (block.input, block.content, block.source))
    return [block.type, block.name or "", *filter(None, encoded)]
