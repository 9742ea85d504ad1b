"""The fields of a chat that a template may print, as a client writes them. Pure.

Conversations of other APIs become the same structures (`conversations`), as SGLang converts them into chats.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType


class Adapted(msgspec.Struct, kw_only=True):
    """Whose presence says that the prompt, or its cache, is not what it seems."""

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


class Part(msgspec.Struct):
    type: str
    text: str | None = None


class Message(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None
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
    messages: list[Message]
    tools: list[Tool] | None = None
    tool_choice: str | Choice | None = None
    reasoning_effort: str | float | None = None
    reasoning: Raw | UnsetType = UNSET
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool = False
    input_ids: list[int] | None = None
