"""`/v1/chat/completions`: its body, and its answers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from evenkeel_contract.simulatedprompt import ChatMessage, ContentPart

from evenkeel_simulator.server import wire
from evenkeel_simulator.server.ask import Ask, checked_top
from evenkeel_simulator.server.bodies import BadRequest, decode
from evenkeel_simulator.server.completions import OpenAIFields, common, sampling
from evenkeel_simulator.server.conversation import Conversation, Media, Tool, media_part
from evenkeel_simulator.server.served import ServedRequest
from evenkeel_simulator.server.structured import Schema

_ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
_THOUGHTS: Final = ("thinking", "reasoning")  # SGLang drops them
_MEDIA: Final[dict[str, Media]] = {
    "image_url": "image",
    "video_url": "video",
    "audio_url": "audio",
    "input_audio": "audio",
}


class Part(msgspec.Struct):
    """A part of a message's content."""

    type: str
    text: str | None = None
    image_url: Any = None
    video_url: Any = None
    audio_url: Any = None
    input_audio: Any = None


class Message(msgspec.Struct):
    """A message. Its tool calls are no part of the prompt."""

    role: str
    content: str | list[Part] | None = None


class _Function(msgspec.Struct):
    name: str
    parameters: Schema | None = None


class _Tool(msgspec.Struct):
    function: _Function


class _Named(msgspec.Struct):
    name: str


class _Choice(msgspec.Struct):
    function: _Named


class _Chat(OpenAIFields, kw_only=True):
    messages: list[Message]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    tools: list[_Tool] | None = None
    tool_choice: Literal["auto", "required", "none"] | _Choice | None = None
    parallel_tool_calls: bool | None = True
    continue_final_message: bool = False


_chat: Final = msgspec.json.Decoder(_Chat, strict=False)


def parse_chat(body: bytes, *, context_length: int) -> Ask:
    """Body of `/v1/chat/completions`; raises `BadRequest`."""
    fields = decode(_chat, body)
    limit = fields.max_completion_tokens or fields.max_tokens
    if limit == 0:
        raise BadRequest("max_tokens is 0, must be at least 1: the simulator always generates")
    choice = fields.tool_choice
    conversation = Conversation(
        messages=chat_messages(fields.messages),
        tools=[
            Tool.of(tool.function.name, tool.function.parameters) for tool in fields.tools or ()
        ],
        choice="auto" if choice is None or isinstance(choice, _Choice) else choice,
        named=choice.function.name if isinstance(choice, _Choice) else None,
        parallel=fields.parallel_tool_calls is not False,
        schema=fields.schema(),
        continues_last=fields.continue_final_message,
    )
    if fields.top_logprobs is not None and not fields.logprobs:
        raise BadRequest("top_logprobs requires logprobs to be true")
    return Ask(
        prompts=conversation.prompts(context_length),
        sampling=sampling(fields, max_tokens=limit),
        write=conversation.writer(),
        top_logprobs=checked_top(fields.top_logprobs or 0, "top_logprobs")
        if fields.logprobs
        else None,
        **common(fields),
    )


def chat_messages(messages: Sequence[Message]) -> list[ChatMessage]:
    """Messages in the form of the prompt. Raises `BadRequest` naming a role or a part that has no such form."""
    for index, message in enumerate(messages):
        check_role(f"messages[{index}].role", message.role.lower())
    return [
        ChatMessage(message.role.lower(), _content(index, message))
        for index, message in enumerate(messages)
    ]


def check_role(field: str, role: str) -> None:
    """Raises `BadRequest` for a role that no chat template has."""
    if role not in _ROLES:
        raise BadRequest(f"{field} is {role[:40]!r}, must be one of {', '.join(_ROLES)}")


def _content(index: int, message: Message) -> str | list[ContentPart] | None:
    if not isinstance(message.content, list):
        return message.content
    parts = [part for part in message.content if part.type not in _THOUGHTS]
    return [_part(f"messages[{index}].content", part) for part in parts]


def _part(field: str, part: Part) -> ContentPart:
    if part.type == "text" and part.text is not None:
        return ContentPart("text", part.text)
    source = getattr(part, part.type, None) if part.type in _MEDIA else None
    if source is None:
        raise BadRequest(f"{field}: a part of type {part.type!r} is not supported, or is empty")
    return media_part(_MEDIA[part.type], source)


class Chat:
    """Answers of `/v1/chat/completions`."""

    opens_early = False

    def __init__(self, ask: Ask, head: wire.Head) -> None:
        self._ask = ask
        self._head = head
        self._begun: set[int] = set()

    def body(self, requests: Sequence[ServedRequest]) -> bytes:
        return wire.chat_body(self._head, requests, self._ask)

    def news(self, request: ServedRequest, start: int) -> bytes:
        events = []
        if request.index not in self._begun:
            self._begun.add(request.index)
            events.append(wire.chat_role_event(self._head, request))
        probabilities = wire.chat_logprobs(request, self._ask.top_logprobs, start)
        for delta in request.speech.deltas(start, request.output_tokens):
            events.append(wire.chat_event(self._head, request, delta, probabilities))
            probabilities = None  # with the first event of a step, as in SGLang
        return b"".join(events)

    def closing(self, requests: Sequence[ServedRequest]) -> bytes:
        events = [wire.chat_finish_event(self._head, request) for request in requests]
        if self._ask.include_usage:
            n = self._ask.sampling.n
            events.append(wire.chat_usage_event(self._head, requests, n=n))
        return b"".join((*events, wire.DONE))
