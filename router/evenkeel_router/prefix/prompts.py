"""The part of a request that an engine would tokenise: prompts, or a conversation for the chat template. Pure.

Follows SGLang 0.5.21 to 0.5.23 (`entrypoints/openai/protocol.py`, `serving_chat.py`,
`parser/jinja_template_utils.py`): what a message and a tool look like to the template, down to the order of their keys,
since templates print them as JSON. A conversation that ends with the assistant is rewritten: with
`continue_final_message` its last message goes behind the template's text; without, SGLang turns it into a message of the
user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from evenkeel_contract.messages import UNREADABLE
from msgspec import UNSET, Raw, UnsetType

from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.prefix.conversations import (
    Adapted,
    Call,
    ChatFields,
    Choice,
    TemplateMessage,
    TemplatePart,
    Tool,
    of_messages,
    of_responses,
)
from evenkeel_router.prefix.tokenised import Reason, UntokenisedError

_TEXT: Final = ("text", "input_text")
_THOUGHTS: Final = ("thinking", "reasoning")  # SGLang drops them
_MEDIA: Final = ("image", "video", "audio", "input_audio")  # how their types begin
_OF_THE_CALL: Final = frozenset(  # parameters of `apply_chat_template` itself
    {"add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents",
     "messages", "padding", "return_dict", "tokenize", "tools", "truncation"}
)  # fmt: skip
Template = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Prompts:
    """Texts, which get the tokenizer's special tokens, and prompts that are token ids already."""

    inputs: tuple[str | list[int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A conversation as the template gets it."""

    messages: list[Template]
    """Messages, whose content is a text, or a list of parts, all of them text."""
    tools: list[Template] | None
    options: Template = field(default_factory=dict)
    """Further variables of the template."""
    answer_begins: str = ""
    """What follows the template's text (`continue_final_message`)."""
    size_bytes: int = 0
    """Size of the request's body: a template may take longer for a larger one."""

    source: str = ""
    """The API that it was converted from; empty for a chat."""

    @property
    def kind(self) -> str:
        """The kind of the request, for the check of token counts."""
        return f"{self.source} {'chat' if self.tools is None else 'tools'}".strip()


class _Completions(Adapted, kw_only=True):
    prompt: str | list[str | int | list[int]]


class _Generate(Adapted, kw_only=True):
    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None


_COMPLETIONS: Final = msgspec.json.Decoder(_Completions)
_GENERATE: Final = msgspec.json.Decoder(_Generate)
_CHAT: Final = msgspec.json.Decoder(ChatFields)


def is_read(endpoint: Endpoint) -> bool:
    """Whether the prompts of this endpoint are tokenised. Those of other endpoints use no cached prefix."""
    return endpoint in _READERS


def read(endpoint: Endpoint, body: bytes) -> Prompts | Chat:
    """What the engine will tokenise; `body` was parsed before. Raises `UntokenisedError`."""
    reader = _READERS.get(endpoint)
    if reader is None:
        raise UntokenisedError(Reason.EMBEDDINGS)
    try:
        return reader(body)
    except UNREADABLE as error:
        raise UntokenisedError(Reason.TEMPLATE) from error  # the engine will refuse it


def _completion(body: bytes) -> Prompts:
    fields = _COMPLETIONS.decode(body)
    _refuse_adapted(fields)
    return _prompts(fields.prompt)


def _generated(body: bytes) -> Prompts:
    fields = _GENERATE.decode(body)
    _refuse_adapted(fields)
    given = fields.text if fields.text is not None else fields.input_ids
    return _prompts([] if given is None else given)


def for_template(chat: Chat, *, keeps_parts: bool) -> list[Template]:
    """The messages with their content as the template takes it: parts, or else texts joined by blanks."""
    return [_with_content(message, keeps_parts) for message in chat.messages]


def _with_content(message: Template, keeps_parts: bool) -> Template:
    content = message["content"]
    if isinstance(content, str) or (keeps_parts and message["role"] != "tool"):
        return message
    return message | {"content": " ".join(part["text"] for part in content)}


def _refuse_adapted(fields: Adapted) -> None:
    for name in ("image_data", "video_data", "audio_data"):
        if _given(getattr(fields, name)):
            raise UntokenisedError(Reason.MULTIMODAL)
    for name in ("lora_path", "session_params", "input_embeds", "suffix"):
        if _given(getattr(fields, name)):
            raise UntokenisedError(Reason.OPTIONS, f"{name} is set")


def _given(value: Raw | UnsetType) -> bool:
    return value is not UNSET and bytes(value) not in (b"null", b"[]", b'""')


def _prompts(
    given: str | list[str] | list[int | list[int]] | list[str | int | list[int]],
) -> Prompts:
    if isinstance(given, str):
        return Prompts((given,))
    if given and isinstance(given[0], int):
        return Prompts(([one for one in given if isinstance(one, int)],))
    several = tuple(one for one in given if not isinstance(one, int))
    if not several:
        raise UntokenisedError(Reason.TEMPLATE)
    return Prompts(several)


def _chat(fields: ChatFields, *, size_bytes: int, source: str = "") -> Prompts | Chat:
    _refuse_adapted(fields)
    if _given(fields.reasoning):
        raise UntokenisedError(Reason.OPTIONS, "reasoning is set")
    if fields.input_ids is not None:
        return Prompts((fields.input_ids,))
    messages = [_message(message) for message in fields.messages]
    answer_begins = ""
    last = messages[-1] if messages else {}
    if last.get("role") == "assistant" and isinstance(last["content"], str):
        if fields.continue_final_message:
            answer_begins = last["content"]
            messages.pop()
        else:
            messages[-1] = {"role": "user", "content": last["content"]}
    return Chat(
        messages=messages,
        tools=_tools(fields),
        options=_options(fields),
        answer_begins=answer_begins,
        size_bytes=size_bytes,
        source=source,
    )


def _message(given: TemplateMessage) -> Template:
    """A message as SGLang's model dumps it, without what is None."""
    if _given(given.tools) or _given(given.prefix):
        raise UntokenisedError(Reason.OPTIONS, "a message has tools or a prefix")
    content = given.content
    made: Template = {
        "role": given.role if given.role == "user" else given.role.lower(),
        "content": [_part(part) for part in content if part.type not in _THOUGHTS]
        if isinstance(content, list)
        else content or "",
    }
    if made["role"] == "user":
        return made
    for name in ("tool_call_id", "name", "phase", "reasoning_content"):
        if (value := getattr(given, name)) is not None:
            made[name] = value
    if given.tool_calls is not None:
        made["tool_calls"] = [_call(call, made["role"]) for call in given.tool_calls]
    return made


def _part(part: TemplatePart) -> Template:
    if part.type in _TEXT and part.text is not None:
        return {"type": "text", "text": part.text}
    if part.type.startswith(_MEDIA):
        raise UntokenisedError(Reason.MULTIMODAL)
    raise UntokenisedError(Reason.OPTIONS, "a part of a message is of another type than text")


def _call(call: Call, role: str) -> Template:
    arguments = call.function.arguments
    if role == "assistant" and isinstance(arguments, str):
        arguments = msgspec.json.decode(arguments, type=dict[str, Any])
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "index": call.index, "type": call.type, "function": function}


def _tools(fields: ChatFields) -> list[Template] | None:
    choice = fields.tool_choice
    if not fields.tools or choice == "none":
        return None
    name = choice.function.name if isinstance(choice, Choice) else None
    return [
        _tool(tool) for tool in fields.tools if name in (None, tool.function.get("name"))
    ] or None


def _tool(tool: Tool) -> Template:
    """A tool as SGLang 0.5.23 dumps it: the client's order of keys, and those that it left out as null."""
    given = tool.function
    if tool.defer_loading is not None or given.get("defer_loading") is not None:
        raise UntokenisedError(Reason.OPTIONS, "a tool is loaded later")
    known = {"description": None, "name": None, "parameters": None} | {
        name: value
        for name, value in given.items()
        if name in ("description", "name", "parameters") or (name == "strict" and value is not None)
    }
    left_out = [name for name in known if name not in given]
    order = [name for name in given if name in known] + left_out
    function = {name: known[name] for name in order}
    return {"type": tool.type, "function": function, "defer_loading": None}


def _options(fields: ChatFields) -> Template:
    given = dict(fields.chat_template_kwargs or {})
    if given.keys() & _OF_THE_CALL:
        raise UntokenisedError(Reason.OPTIONS, "chat_template_kwargs names an argument of the call")
    if (effort := fields.reasoning_effort) is not None:
        given.setdefault("thinking", effort != "none")
        given.setdefault("enable_thinking", effort != "none")
    inner = given.pop("reasoning_effort", None)
    effort = inner if inner is not None else effort
    return given if effort is None else {"reasoning_effort": effort} | given


_READERS: Final[Mapping[Endpoint, Callable[[bytes], Prompts | Chat]]] = {
    Endpoint.COMPLETIONS: _completion,
    Endpoint.GENERATE: _generated,
    Endpoint.CHAT: lambda body: _chat(_CHAT.decode(body), size_bytes=len(body)),
    Endpoint.MESSAGES: lambda body: _chat(
        of_messages(body), size_bytes=len(body), source="messages"
    ),
    Endpoint.RESPONSES: lambda body: _chat(
        of_responses(body), size_bytes=len(body), source="responses"
    ),
}
