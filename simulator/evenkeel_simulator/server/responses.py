"""The body of OpenAI's `/v1/responses`. Pure; its answers are in `responses_format`.

As with SGLang's default, nothing is stored: `previous_response_id` and `background` are refused.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, Literal

import msgspec
from evenkeel_contract.simulatedprompt import ChatMessage, ContentPart

from evenkeel_simulator.server.answers import MakeFormat
from evenkeel_simulator.server.ask import Ask, checked_top
from evenkeel_simulator.server.bodies import BadRequest, decode
from evenkeel_simulator.server.chat import check_role
from evenkeel_simulator.server.conversation import Conversation, Tool, media_part
from evenkeel_simulator.server.responses_format import Responses
from evenkeel_simulator.server.sampling import RangedFields, Sampling, checked, stops
from evenkeel_simulator.server.structured import ANY_OBJECT, Schema

_TEXTS: Final = ("input_text", "output_text", "text")
_CALLS: Final = ("function_call", "custom_tool_call")
_RESULTS: Final = ("function_call_output", "custom_tool_call_output")
_LOGPROBS: Final = "message.output_text.logprobs"


class _Part(msgspec.Struct):
    type: str
    text: str | None = None
    image_url: Any = None
    input_audio: Any = None


class _Item(msgspec.Struct):
    type: str = "message"
    role: str = "user"
    content: str | list[_Part] | None = None
    output: str | list[_Part] | None = None


class _Format(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"] = "text"
    schema: Schema | None = None


class _Text(msgspec.Struct):
    format: _Format | None = None


class _Tool(msgspec.Struct):
    type: str
    name: str | None = None
    parameters: Schema | None = None


class _Responses(RangedFields, kw_only=True):
    input: str | list[_Item]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: list[_Tool] | None = None
    tool_choice: Literal["auto", "required", "none"] | dict[str, Any] = "auto"
    parallel_tool_calls: bool | None = True
    text: _Text | None = None
    stop: str | list[str] | None = None
    stream: bool | None = False
    include: list[str] | None = None
    top_logprobs: int | None = None
    previous_response_id: str | None = None
    background: bool | None = False
    request_id: str | None = None


_responses: Final = msgspec.json.Decoder(_Responses)
_fields: Final = msgspec.json.Decoder(dict[str, Any])
_ECHOED: Final[dict[str, Any]] = {
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "instructions": None,
    "max_output_tokens": None,
    "previous_response_id": None,
    "store": True,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "top_p": None,
    "truncation": "disabled",
    "user": None,
    "metadata": {},
}
"""Fields of the body that the answer repeats, with their defaults."""


def read_responses(body: bytes, context_length: int) -> tuple[Ask, MakeFormat]:
    """Body of `/v1/responses`; raises `BadRequest`."""
    fields = decode(_responses, body)
    for name in ("previous_response_id", "background"):
        if getattr(fields, name):
            raise BadRequest(f"{name}: Response store is disabled; send the whole conversation")
    conversation = _conversation(fields)
    logprobs = _LOGPROBS in (fields.include or ())
    ask = Ask(
        model=fields.model or "default",
        prompts=conversation.prompts(context_length),
        sampling=checked(
            fields, Sampling(max_tokens=fields.max_output_tokens, stop=stops(fields.stop))
        ),
        write=conversation.writer(),
        top_logprobs=checked_top(fields.top_logprobs or 0, "top_logprobs") if logprobs else None,
        stream=bool(fields.stream),
        rid=fields.request_id,
    )
    given = _fields.decode(body)
    echoed = {
        name: default if given.get(name) is None else given[name]
        for name, default in _ECHOED.items()
    }
    return ask, partial(Responses, ask, echoed)


def _conversation(fields: _Responses) -> Conversation:
    choice = fields.tool_choice
    format_ = (fields.text and fields.text.format) or _Format()
    if format_.type == "json_schema" and format_.schema is None:
        raise BadRequest("text.format: json_schema has no schema")
    return Conversation(
        messages=_messages(fields),
        tools=[
            Tool.of(tool.name, tool.parameters)
            for tool in fields.tools or ()
            if tool.type == "function" and tool.name is not None
        ],
        choice="auto" if isinstance(choice, dict) else choice,
        named=_named(choice) if isinstance(choice, dict) else None,
        parallel=fields.parallel_tool_calls is not False,
        schema=ANY_OBJECT if format_.type == "json_object" else format_.schema,
    )


def _named(choice: dict[str, Any]) -> str | None:
    """The function that the answer must call; other tools cannot be forced, as with SGLang."""
    name = choice.get("name")
    return name if choice.get("type") == "function" and isinstance(name, str) else None


def _messages(fields: _Responses) -> list[ChatMessage]:
    """The messages of a chat that say the same: what one answer says and calls is one message."""
    messages = [ChatMessage("system", fields.instructions)] if fields.instructions else []
    if isinstance(fields.input, str):
        return [*messages, ChatMessage("user", fields.input)]
    for index, item in enumerate(fields.input):
        made = _message(f"input[{index}]", item)
        if made is None:
            continue
        if made.role == "assistant" and messages and messages[-1].role == "assistant":
            both = [*_parts_of(messages.pop()), *_parts_of(made)]
            made = ChatMessage("assistant", both)
        messages.append(made)
    return messages


def _message(field: str, item: _Item) -> ChatMessage | None:
    if item.type == "message":
        check_role(f"{field}.role", item.role)
        return ChatMessage(item.role, _content(f"{field}.content", item.content))
    if item.type in _CALLS:
        return ChatMessage("assistant", None)
    if item.type in _RESULTS:
        return ChatMessage("tool", _joined(_content(f"{field}.output", item.output)))
    if item.type == "reasoning":
        return None
    raise BadRequest(f"{field}: Unsupported Responses API input item type: {item.type!r}")


def _content(field: str, content: str | list[_Part] | None) -> str | list[ContentPart] | None:
    if not isinstance(content, list):
        return content
    return [_part(field, part) for part in content]


def _joined(content: str | list[ContentPart] | None) -> str | None:
    """The output of a tool. Unlike in a message, SGLang puts no blanks between its parts."""
    if not isinstance(content, list):
        return content
    return "".join(part.text or "" for part in content)


def _part(field: str, part: _Part) -> ContentPart:
    if part.type in _TEXTS and part.text is not None:
        return ContentPart("text", part.text)
    if part.type == "input_image" and part.image_url is not None:
        return media_part("image", part.image_url)
    if part.type == "input_audio" and part.input_audio is not None:
        return media_part("audio", part.input_audio)
    raise BadRequest(f"{field}: a part of type {part.type!r} is not supported, or is empty")


def _parts_of(message: ChatMessage) -> list[ContentPart]:
    if isinstance(message.content, list):
        return message.content
    return [ContentPart("text", message.content)] if message.content else []
