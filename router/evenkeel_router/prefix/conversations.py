"""Anthropic's messages and OpenAI's responses as chats, converted as SGLang 0.5.23 does it. Pure.

Follows `entrypoints/anthropic/serving.py: _convert_to_chat_completion_request` and
`entrypoints/openai/serving_responses.py: _construct_input_messages`. What depends on the engine's flags or on its
template (reasoning, system messages inside a conversation) is left to the text match.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from evenkeel_router.prefix.tokenised import Reason, UntokenisedError


class Adapted(msgspec.Struct, kw_only=True):
    """Fields that change the prompt, or what may be cached for it, in ways that this module does not model."""

    lora_path: Raw | UnsetType = UNSET
    session_params: Raw | UnsetType = UNSET
    input_embeds: Raw | UnsetType = UNSET
    suffix: Raw | UnsetType = UNSET
    image_data: Raw | UnsetType = UNSET
    video_data: Raw | UnsetType = UNSET
    audio_data: Raw | UnsetType = UNSET


class Function(msgspec.Struct):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class Call(msgspec.Struct):
    function: Function
    id: str | None = None
    index: int | None = None
    type: str = "function"


class TemplatePart(msgspec.Struct):
    type: str
    text: str | None = None


class TemplateMessage(msgspec.Struct):
    role: str
    content: str | list[TemplatePart] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    phase: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None
    tools: Raw | UnsetType = UNSET
    prefix: Raw | UnsetType = UNSET


class Tool(msgspec.Struct):
    function: dict[str, Any]
    type: str = "function"
    defer_loading: bool | None = None


class ChosenFunction(msgspec.Struct):
    name: str | None = None


class Choice(msgspec.Struct):
    function: ChosenFunction


class ChatFields(Adapted, kw_only=True):
    messages: list[TemplateMessage]
    tools: list[Tool] | None = None
    tool_choice: str | Choice | None = None
    reasoning_effort: str | float | None = None
    reasoning: Raw | UnsetType = UNSET
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool = False
    input_ids: list[int] | None = None


_BUILT_IN: Final = ("web_search_", "computer_", "bash_", "text_editor_")
"""Beginnings of the types of Anthropic's own tools. SGLang leaves them out."""
_MEDIA: Final = ("image", "input_image", "input_file", "input_audio", "document")
_TEXTS: Final = ("text", "input_text", "output_text")


# Anthropic's messages


class _Block(msgspec.Struct):
    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[_Block] | None = None


class _Turn(msgspec.Struct):
    role: str
    content: str | list[_Block]


class _AnthropicTool(msgspec.Struct):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool = False
    defer_loading: bool | None = None


class _AnthropicChoice(msgspec.Struct):
    type: str
    name: str | None = None


class _OutputConfig(msgspec.Struct):
    effort: str | None = None


class _Messages(msgspec.Struct):
    messages: list[_Turn]
    system: str | list[_Block] | None = None
    tools: list[_AnthropicTool] | None = None
    tool_choice: _AnthropicChoice | None = None
    thinking: Raw | UnsetType = UNSET
    output_config: _OutputConfig | None = None


_MESSAGES: Final = msgspec.json.Decoder(_Messages)


def of_messages(body: bytes) -> ChatFields:
    """The chat of a body of `/v1/messages`. Raises `UntokenisedError`, `msgspec.MsgspecError`."""
    fields = _MESSAGES.decode(body)
    if fields.thinking is not UNSET and bytes(fields.thinking) != b"null":
        raise UntokenisedError(Reason.OPTIONS, "thinking is set")
    if fields.output_config is not None and fields.output_config.effort is not None:
        raise UntokenisedError(Reason.OPTIONS, "output_config.effort is set")
    messages = list(_system(fields.system))
    for turn in fields.messages:
        if turn.role == "system":
            raise _inline_system()
        messages += _turn(turn)
    own = [tool for tool in fields.tools or () if not (tool.type or "").startswith(_BUILT_IN)]
    tools = [_anthropic_tool(tool) for tool in own]
    return ChatFields(messages=messages, tools=tools, tool_choice=_choice(fields.tool_choice))


def _system(system: str | list[_Block] | None) -> Iterator[TemplateMessage]:
    if isinstance(system, list):
        system = "\n".join(block.text for block in system if block.type == "text" and block.text)
    elif system is not None and not system.strip():
        system = None
    if system:
        yield TemplateMessage(role="system", content=system)


def _turn(turn: _Turn) -> Iterator[TemplateMessage]:
    """The messages of one turn: each result of a tool is one of its own, in the order of the blocks."""
    if isinstance(turn.content, str):
        yield TemplateMessage(role=turn.role, content=turn.content)
        return
    parts: list[TemplatePart] = []
    calls: list[Call] = []
    for block in turn.content:
        if block.type == "text" and block.text is not None:
            parts.append(TemplatePart("text", block.text))
        elif block.type == "tool_use":
            calls.append(Call(Function(block.name, block.input or {}), id=block.id))
        elif block.type == "tool_result" and turn.role == "user":
            if parts:
                yield TemplateMessage(role="user", content=_content(parts))
                parts = []
            yield TemplateMessage(
                role="tool",
                content=_tool_result(block.content),
                tool_call_id=block.tool_use_id or block.id or "",
            )
        else:
            raise _unread(block.type)
    if parts or calls or turn.role != "user":
        content = _content(parts) if parts else None if calls else ""
        yield TemplateMessage(role=turn.role, content=content, tool_calls=calls or None)


def _content(parts: list[TemplatePart]) -> str | list[TemplatePart]:
    return parts[0].text or "" if len(parts) == 1 else parts


def _tool_result(content: str | list[_Block] | None) -> str | list[TemplatePart]:
    if not isinstance(content, list):
        return content or ""
    parts = []
    for block in content:
        if block.type != "text":
            raise _unread(block.type)
        if block.text:
            parts.append(TemplatePart("text", block.text))
    return _content(parts) if parts else ""


def _anthropic_tool(tool: _AnthropicTool) -> Tool:
    schema = dict(tool.input_schema or {})
    schema.setdefault("type", "object")
    return Tool(
        function={
            "name": tool.name,
            "description": tool.description or "",
            "parameters": schema,
            "strict": tool.strict,
        },
        defer_loading=tool.defer_loading,
    )


def _choice(given: _AnthropicChoice | None) -> str | Choice:
    if given is not None and given.type == "tool":
        return Choice(ChosenFunction(given.name))
    return "none" if given is not None and given.type == "none" else "auto"


# OpenAI's responses


class _Item(msgspec.Struct):
    type: str = "message"
    role: str = ""
    content: str | list[TemplatePart] | None = None
    phase: str | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: Any = None
    output: str | list[TemplatePart] | None = None


class _ResponseTool(msgspec.Struct):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _NamedChoice(msgspec.Struct):
    type: str = ""
    name: str | None = None


class _Reasoning(msgspec.Struct):
    effort: str | None = "medium"


class _Format(msgspec.Struct):
    type: str = "text"


class _Text(msgspec.Struct):
    format: _Format | None = None


class _Responses(msgspec.Struct):
    input: str | list[_Item]
    instructions: str | None = None
    tools: list[_ResponseTool] | None = None
    tool_choice: str | _NamedChoice | None = None
    reasoning: _Reasoning | None = None
    text: _Text | None = None
    chat_template_kwargs: dict[str, Any] | None = None


_RESPONSES: Final = msgspec.json.Decoder(_Responses)


def of_responses(body: bytes) -> ChatFields:
    """The chat of a body of `/v1/responses`. Raises `UntokenisedError`, `msgspec.MsgspecError`."""
    fields = _RESPONSES.decode(body)
    if (
        fields.text is not None
        and fields.text.format is not None
        and fields.text.format.type != "text"
    ):
        raise UntokenisedError(Reason.OPTIONS, "text.format is set")
    messages = (
        [TemplateMessage(role="system", content=fields.instructions)] if fields.instructions else []
    )
    if isinstance(fields.input, str):
        messages.append(TemplateMessage(role="user", content=fields.input))
    else:
        for item in fields.input:
            _append(messages, _of_item(item))
    if any(message.role == "system" for message in messages[1:]):
        raise _inline_system()
    return ChatFields(
        messages=messages,
        tools=[_response_tool(tool) for tool in fields.tools or () if _is_given(tool)],
        tool_choice=_response_choice(fields.tool_choice),
        reasoning_effort=None if fields.reasoning is None else fields.reasoning.effort,
        chat_template_kwargs=fields.chat_template_kwargs,
    )


def _of_item(item: _Item) -> TemplateMessage:
    if item.type == "message" and item.role not in ("", "developer"):
        return TemplateMessage(role=item.role, content=_texts(item.content), phase=item.phase)
    if item.type == "function_call":
        function = Function(item.name, _arguments(item.arguments))
        return TemplateMessage(
            role="assistant", tool_calls=[Call(function, id=item.call_id or item.id)]
        )
    if item.type == "function_call_output":
        texts = _texts(item.output)
        if isinstance(texts, list):
            texts = "".join(part.text or "" for part in texts)
        return TemplateMessage(role="tool", tool_call_id=item.call_id, content=texts)
    raise _unread(item.role if item.type == "message" else item.type)


def _texts(content: str | list[TemplatePart] | None) -> str | list[TemplatePart] | None:
    if not isinstance(content, list):
        return content
    for part in content:
        if part.type not in _TEXTS:
            raise _unread(part.type)
    return [TemplatePart("text", part.text or "") for part in content]


def _arguments(given: Any) -> dict[str, Any]:
    """An object, or else an empty one."""
    if isinstance(given, str):
        try:
            given = msgspec.json.decode(given)
        except (msgspec.MsgspecError, RecursionError):
            given = None
    return given if isinstance(given, dict) else {}


def _append(messages: list[TemplateMessage], message: TemplateMessage) -> None:
    """Messages of the assistant in a row are one turn."""
    last = messages[-1] if messages else None
    if last is None or not last.role == message.role == "assistant" or last.phase != message.phase:
        messages.append(message)
        return
    messages[-1] = msgspec.structs.replace(
        last,
        content=_joined(last.content, message.content),
        tool_calls=(last.tool_calls or []) + (message.tool_calls or []) or None,
    )


def _joined(first: str | list[TemplatePart] | None, second: str | list[TemplatePart] | None) -> Any:
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return _as_parts(first) + _as_parts(second)


def _as_parts(content: str | list[TemplatePart]) -> list[TemplatePart]:
    return [TemplatePart("text", content)] if isinstance(content, str) else content


def _is_given(tool: _ResponseTool) -> bool:
    """Whether the template gets it. Custom tools are rewritten in a way that is not modelled."""
    if tool.type in ("custom", "namespace"):
        raise UntokenisedError(Reason.OPTIONS, f"a tool of type {tool.type}")
    return tool.type == "function"


def _response_tool(tool: _ResponseTool) -> Tool:
    return Tool(
        function={
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "strict": bool(tool.strict),
        }
    )


def _response_choice(given: str | _NamedChoice | None) -> str | Choice:
    if isinstance(given, _NamedChoice):
        named = given.type == "function" and given.name
        return Choice(ChosenFunction(given.name)) if named else "auto"
    return given or "auto"


def _inline_system() -> UntokenisedError:
    return UntokenisedError(Reason.OPTIONS, "a system message inside the conversation")


def _unread(kind: str) -> UntokenisedError:
    if kind in _MEDIA:
        return UntokenisedError(Reason.MULTIMODAL)
    return UntokenisedError(
        Reason.OPTIONS, "a part of the conversation is of another type than text"
    )
