"""Anthropic's `/v1/messages`: its body, and its answers, as SGLang 0.5.23 translates them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import msgspec
from evenkeel_contract.simulatedprompt import ChatMessage, ContentPart

from evenkeel_simulator.server import wire
from evenkeel_simulator.server.ask import Ask
from evenkeel_simulator.server.bodies import BadRequest, decode
from evenkeel_simulator.server.conversation import Conversation, Tool, media_part
from evenkeel_simulator.server.sampling import RangedFields, Sampling, checked, stops
from evenkeel_simulator.server.served import ServedRequest
from evenkeel_simulator.server.structured import Schema

_THOUGHTS: Final = ("thinking", "redacted_thinking")  # no part of the prompt
_STOP_REASONS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class _Block(msgspec.Struct):
    type: str
    text: str | None = None
    source: Any = None
    content: str | list[_Block] | None = None


class _Message(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[_Block]


class _Tool(msgspec.Struct):
    name: str
    input_schema: Schema | None = None
    """Schema of the arguments. None: a tool of Anthropic's servers, which SGLang leaves out too."""


class _Choice(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class _Format(msgspec.Struct):
    schema: Schema


class _OutputConfig(msgspec.Struct):
    format: _Format | None = None


class _Counted(RangedFields, kw_only=True):
    model: str
    messages: list[_Message]
    system: str | list[_Block] | None = None
    tools: list[_Tool] | None = None
    tool_choice: _Choice | None = None
    output_config: _OutputConfig | None = None


class _Messages(_Counted, kw_only=True):
    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = False


_counted: Final = msgspec.json.Decoder(_Counted)
_messages: Final = msgspec.json.Decoder(_Messages)


def parse_messages(body: bytes, *, context_length: int) -> Ask:
    """Body of `/v1/messages`; raises `BadRequest`."""
    fields = decode(_messages, body)
    if fields.max_tokens <= 0:
        raise BadRequest("max_tokens must be positive", by_schema=True)
    conversation = _conversation(fields)
    return Ask(
        model=fields.model,
        prompts=conversation.prompts(context_length),
        sampling=checked(
            fields, Sampling(max_tokens=fields.max_tokens, stop=stops(fields.stop_sequences))
        ),
        write=conversation.writer(),
        stream=bool(fields.stream),
    )


def count_tokens(body: bytes, *, context_length: int) -> bytes:
    """Body of `/v1/messages/count_tokens` → its answer; raises `BadRequest`."""
    (prompt,) = _conversation(decode(_counted, body)).prompts(context_length)
    return wire.encode({"input_tokens": len(prompt)})


def _conversation(fields: _Counted) -> Conversation:
    choice = fields.tool_choice or _Choice("auto")
    output = fields.output_config
    return Conversation(
        messages=[
            *_system(fields.system),
            *(made for message in fields.messages for made in _chat_messages(message)),
        ],
        tools=[
            Tool.of(tool.name, tool.input_schema)
            for tool in fields.tools or ()
            if tool.input_schema is not None
        ],
        choice="required" if choice.type == "any" else "none" if choice.type == "none" else "auto",
        named=choice.name if choice.type == "tool" else None,
        parallel=not choice.disable_parallel_tool_use,
        schema=output.format.schema if output and output.format else None,
    )


def _system(system: str | list[_Block] | None) -> list[ChatMessage]:
    if isinstance(system, list):
        system = "\n".join(block.text for block in system if block.text)
    return [ChatMessage("system", system)] if system else []


def _chat_messages(message: _Message) -> Iterator[ChatMessage]:
    """The messages of a chat that say the same: each result of a tool is one of its own."""
    if isinstance(message.content, str):
        yield ChatMessage(message.role, message.content)
        return
    parts: list[ContentPart] = []
    results = False
    for block in message.content:
        if block.type == "tool_result" and message.role == "user":
            if parts:
                yield ChatMessage(message.role, parts)
                parts = []
            results = True
            inner = block.content
            yield ChatMessage("tool", _parts(inner) if isinstance(inner, list) else inner)
        else:
            parts += _parts([block])
    if parts or not results:
        yield ChatMessage(message.role, parts)


def _parts(blocks: Sequence[_Block]) -> list[ContentPart]:
    parts = []
    for block in blocks:
        if block.type == "text" and block.text is not None:
            parts.append(ContentPart("text", block.text))
        elif block.type == "image" and block.source:
            parts.append(media_part("image", block.source))
        elif block.type not in (*_THOUGHTS, "tool_use"):
            raise BadRequest(f"messages: a block of type {block.type!r} is not supported")
    return parts


class Messages:
    """Answers of `/v1/messages`. There is one choice."""

    opens_early = False

    def __init__(self, ask: Ask, head: wire.Head) -> None:
        self._ask = ask
        self._head = head
        self._begun = False
        self._open: int | None = None  # number of the open block

    def body(self, requests: Sequence[ServedRequest]) -> bytes:
        (request,) = requests
        calls = request.tool_calls()
        blocks = [
            _tool_use(request, number, name, _arguments(arguments))
            for number, (name, arguments) in enumerate(calls)
        ]
        return wire.encode(
            self._message(
                request,
                content=blocks or [{"type": "text", "text": request.text()}],
                stop_reason=_stop_reason(request),
                output_tokens=request.output_tokens,
            )
        )

    def news(self, request: ServedRequest, start: int) -> bytes:
        events = []
        if not self._begun:
            self._begun = True
            message = self._message(request, content=[], output_tokens=0)
            events.append(_event("message_start", message=message))
        for delta in request.speech.deltas(start, request.output_tokens):
            block = delta.call or 0
            if block != self._open:
                events.append(self._close())
                self._open = block
                opened: dict[str, Any] = {"type": "text", "text": ""}
                if delta.call is not None:
                    opened = _tool_use(request, delta.call, delta.name or "", {})
                events.append(_event("content_block_start", index=block, content_block=opened))
            change = {"type": "text_delta", "text": delta.text}
            if delta.call is not None:
                change = {"type": "input_json_delta", "partial_json": delta.text}
            if delta.text:
                events.append(_event("content_block_delta", index=block, delta=change))
        return b"".join(events)

    def closing(self, requests: Sequence[ServedRequest]) -> bytes:
        (request,) = requests
        return b"".join(
            (
                self._close(),
                _event(
                    "message_delta",
                    delta={"stop_reason": _stop_reason(request)},
                    usage={"output_tokens": request.output_tokens},
                ),
                _event("message_stop"),
            )
        )

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        closed, self._open = self._open, None
        return _event("content_block_stop", index=closed)

    def _message(
        self,
        request: ServedRequest,
        *,
        content: list[dict[str, Any]],
        output_tokens: int,
        stop_reason: str | None = None,
    ) -> dict[str, Any]:
        """Anthropic counts cached input apart; what is unknown is left out, as SGLang does."""
        cached = request.cached_tokens if self._head.cache_report else 0
        usage = {"input_tokens": request.input_tokens - cached, "output_tokens": output_tokens}
        if cached:
            usage["cache_read_input_tokens"] = cached
        message = {
            "id": f"msg_{request.id}",
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._head.model,
            "usage": usage,
        }
        return message if stop_reason is None else message | {"stop_reason": stop_reason}


def _stop_reason(request: ServedRequest) -> str:
    return _STOP_REASONS.get(request.finish_reason or "stop", "end_turn")


def _tool_use(
    request: ServedRequest, number: int, name: str, arguments: dict[str, Any]
) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": request.call_id(number),
        "name": name,
        "input": arguments,
    }


def _arguments(text: str) -> dict[str, Any]:
    """What a call's arguments say; nothing where `max_tokens` cut them."""
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _event(name: str, /, **fields: Any) -> bytes:
    return wire.named_event(name, {"type": name, **fields})
