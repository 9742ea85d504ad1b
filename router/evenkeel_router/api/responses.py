"""OpenAI's responses: what the router reads of a request, and the features that it refuses.

No engine shares stored responses with another, and a request may reach any replica. So everything that needs a stored
response is refused, and `store` is set to false: OpenAI's default is true.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from evenkeel_router.api.errors import Outcome, Refusal, invalid
from evenkeel_router.api.fields import RESPONSES
from evenkeel_router.api.inference import (
    Inference,
    Limits,
    adapter_of,
    check_output,
    splice,
)
from evenkeel_router.api.prompt import (
    TEXT_PARTS,
    Part,
    RawContents,
    check_parts,
    prompt_of_turns,
    text_of,
)
from evenkeel_router.api.reading import Reader

UNSUPPORTED: Final = "unsupported_parameter"
"""OpenAI's code for a feature that the model or the service lacks."""
_NOT_STORED: Final = b'"store":false'
_TEXT_PARTS: Final = TEXT_PARTS | {"reasoning_text", "summary_text"}


class _Item(msgspec.Struct):
    """A message, a tool's call or its result."""

    type: str = "message"
    role: str = ""
    content: str | list[Part] | None = None
    name: str | None = None
    arguments: str | None = None
    output: Raw | UnsetType = UNSET
    input: Raw | UnsetType = UNSET
    summary: Raw | UnsetType = UNSET


_READ_ITEMS: Final = frozenset(
    {"message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning"}
)  # fmt: skip
"""Types of items whose members are those of `_Item`. Others are read again as they were sent."""


class _RawItems(msgspec.Struct):
    input: list[Raw]


_RAW_ITEMS: Final = msgspec.json.Decoder(_RawItems)


class _Responses(msgspec.Struct, kw_only=True):
    input: str | list[_Item]
    model: str | None = None
    instructions: str | None = None
    tools: Raw | UnsetType = UNSET
    max_output_tokens: int | None = None
    stream: bool | None = None
    store: bool | UnsetType | None = UNSET
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: Raw | UnsetType = UNSET
    prompt: Raw | UnsetType = UNSET


_RESPONSES: Final = Reader(_Responses, RESPONSES)


def responses(body: bytes, limits: Limits) -> Inference:
    """`/v1/responses`."""
    read = _RESPONSES.read(body, limits.allowed_fields)
    fields, body = read.fields, read.body
    check_output("max_output_tokens", fields.max_output_tokens, limits)
    _refuse_state(fields)
    if not isinstance(fields.input, str):
        check_parts("input", (item.content for item in fields.input))
        _refuse_references(fields.input)
    contents = None if _is_plain(fields) else RawContents(b"{}")
    given = prompt_of_turns(fields.tools, _turns(fields, body, contents), contents)
    return Inference(
        body=body if fields.store is not UNSET else splice(body, _NOT_STORED),
        text=given.first,
        prompt_bytes=given.size_bytes,
        prompt_tokens=None,
        max_output_tokens=fields.max_output_tokens,
        most_output_tokens=fields.max_output_tokens or limits.max_output_tokens,
        media=given.media,
        loose_events=fields.tools is not UNSET,
        stream=bool(fields.stream),
        stripped=read.removed,
        adapter=adapter_of(fields.model, limits),
    )


def not_stored() -> Refusal:
    """The answer to a request for a stored response."""
    message = (
        "This service stores no responses. Read the answer of the request itself, "
        "and send the whole conversation in 'input'."
    )
    return Refusal(Outcome.NOT_FOUND, message, code="response_not_stored", param="response_id")


def _refuse_state(fields: _Responses) -> None:
    for name, is_given, instead in (
        ("previous_response_id", fields.previous_response_id, "Send the conversation so far in 'input'."),
        ("conversation", _is_given(fields.conversation), "Send the conversation so far in 'input'."),
        ("prompt", _is_given(fields.prompt), "Send its text in 'instructions' and 'input'."),
        ("background", fields.background, "Leave it out, and set 'stream' to true for a long answer."),
        ("store", fields.store is True, "Set it to false, and keep the answer yourself."),
    ):  # fmt: skip
        if is_given:
            message = f"{name} needs stored responses, which this service does not keep. {instead}"
            raise invalid(message, code=UNSUPPORTED, param=name)


def _refuse_references(items: list[_Item]) -> None:
    for index, item in enumerate(items):
        if item.type == "item_reference":
            param = f"input[{index}]"
            message = (
                f"{param} names an item of a stored response, which this service does not keep. "
                "Send the item itself; in many clients this takes 'store' set to false."
            )
            raise invalid(message, code=UNSUPPORTED, param=param)


def _is_given(value: Raw | UnsetType) -> bool:
    return value is not UNSET and bytes(value) != b"null"


def _is_plain(fields: _Responses) -> bool:
    """Whether all items are of text."""
    return isinstance(fields.input, str) or all(map(_is_text, fields.input))


def _is_text(item: _Item) -> bool:
    if item.type not in _READ_ITEMS or text_of(item.output)[:1] in ("[", "{"):
        return False
    parts = item.content if isinstance(item.content, list) else ()
    return all(part.text is not None and part.type in _TEXT_PARTS for part in parts)


def _turns(
    fields: _Responses, body: bytes, contents: RawContents | None
) -> Iterator[tuple[str, list[str]]]:
    if fields.instructions is not None:
        yield "system", [fields.instructions]
    if isinstance(fields.input, str):
        yield "user", [fields.input]
        return
    raw = [] if contents is None else _RAW_ITEMS.decode(body).input
    for index, item in enumerate(fields.input):
        if contents is None or _is_text(item):
            yield item.role or item.type, _pieces(item)
        else:
            yield item.role or item.type, [contents.part(raw[index])]


def _pieces(item: _Item) -> list[str]:
    content = item.content
    if isinstance(content, str):
        pieces = [content]
    else:
        pieces = [part.text or "" for part in content or ()]
    encoded = map(text_of, (item.output, item.input, item.summary))
    return pieces + [one for one in (item.name, item.arguments, *encoded) if one]
