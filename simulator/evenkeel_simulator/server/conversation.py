"""A conversation as every API passes it on: messages, tools, and the form of the answer.

`/v1/chat/completions`, `/v1/responses` and `/v1/messages` differ in their bodies only. The same conversation has the same
prompt over each of them (`evenkeel_contract.simulatedprompt`), so it finds its earlier turns in the cache. As in that form,
tools and tool calls are no part of the prompt; the results of tools are.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Literal

import msgspec
import xxhash
from evenkeel_contract.simulatedprompt import ChatMessage, ContentPart, render

from evenkeel_simulator.server.ask import encode_all
from evenkeel_simulator.server.bodies import BadRequest
from evenkeel_simulator.server.speech import WriteAnswer, WrittenAnswer
from evenkeel_simulator.server.structured import Schema, write_json

IMAGE_TOKENS: Final = 256
AUDIO_TOKENS: Final = 128
VIDEO_TOKENS: Final = 1024
_MEDIA: Final = {"image": IMAGE_TOKENS, "audio": AUDIO_TOKENS, "video": VIDEO_TOKENS}
_SECOND_CALL_SHARE: Final = 0.25
"""How often an answer calls a second tool, where the request allows several."""

Media = Literal["image", "audio", "video"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the answer may call."""

    name: str
    parameters: Mapping[str, Any]
    """JSON Schema of its arguments, which are an object."""

    @classmethod
    def of(cls, name: str, parameters: Schema | None) -> Tool:
        """A tool with the schema that a body gives, if it does."""
        given = parameters if isinstance(parameters, Mapping) else {}
        return cls(name, {"type": "object", **given})


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What an answer continues, and what it must be."""

    messages: Sequence[ChatMessage]
    tools: Sequence[Tool] = ()
    choice: Literal["auto", "required", "none"] = "auto"
    named: str | None = None
    """The one tool to call."""
    parallel: bool = True
    """Allow several tool calls in one answer."""
    schema: Schema | None = None
    """Schema of an answer in JSON; None: the answer is words."""
    continues_last: bool = False
    """The answer continues the last message, which is an assistant's."""

    def prompts(self, context_length: int) -> tuple[array[int], ...]:
        """The one prompt, as token ids. Raises `BadRequest`."""
        if not self.messages:
            raise BadRequest("Messages cannot be empty.")
        try:
            return encode_all([self._text()], context_length)
        except ValueError as error:
            raise BadRequest(str(error)) from error

    def _text(self) -> str:
        """The prompt. A last message of the assistant is handled as in SGLang, which a router in tokens mode follows too."""
        *before, last = self.messages
        if last.role != "assistant" or isinstance(last.content, list):
            return render(self.messages)
        if self.continues_last:
            return render(before) + (last.content or "")
        return render([*before, ChatMessage("user", last.content)])

    def writer(self) -> WriteAnswer | None:
        """Writes the answer, where it is not words. Raises `BadRequest`."""
        callable_tools = self._tools_to_call()
        if callable_tools:
            return lambda seed: _calls(callable_tools, Random(seed), parallel=self.parallel)
        return json_writer(self.schema)

    def _tools_to_call(self) -> list[Tool]:
        """The tools of which the answer calls some; none where it is text."""
        if self.named is not None:
            chosen = [tool for tool in self.tools if tool.name == self.named]
            if not chosen:
                raise BadRequest(f"tool_choice names {self.named!r}, which is not among the tools")
            return chosen[:1]
        if self.choice == "required" and not self.tools:
            raise BadRequest("tool_choice is required, but there are no tools")
        if self.choice == "none" or (self.choice == "auto" and not self._has_new_question()):
            return []
        return list(self.tools)

    def _has_new_question(self) -> bool:
        """The newest turn is the user's and has no result of a tool. So a loop of tool calls ends."""
        for message in reversed(self.messages):
            if message.role == "assistant":
                break
            if message.role in ("tool", "function"):
                return False
        return self.messages[-1].role == "user"


def json_writer(schema: Schema | None) -> WriteAnswer | None:
    """Writes JSON by `schema`; None where there is none."""
    if schema is None:
        return None
    return lambda seed: WrittenAnswer(text=write_json(schema, Random(seed)))


def _calls(tools: Sequence[Tool], rng: Random, *, parallel: bool) -> WrittenAnswer:
    several = parallel and len(tools) > 1 and rng.random() < _SECOND_CALL_SHARE
    chosen = rng.sample(list(tools), 2 if several else 1)
    return WrittenAnswer(calls=tuple((t.name, write_json(t.parameters, rng)) for t in chosen))


def media_part(kind: Media, source: object) -> ContentPart:
    """An image, audio or video in the prompt: a fixed number of tokens, which depend on its address or data only.

    `source` is what an API's body holds; the same image has the same tokens over every API.
    """
    rng = Random(xxhash.xxh3_64_intdigest(msgspec.json.encode(_address(source))))
    # A word of three letters is one token, with or without a blank before it.
    words = ["".join(rng.choices("bcdfghjklmnpqrstvwxz", k=3)) for _ in range(_MEDIA[kind])]
    return ContentPart("text", " ".join(words))


def _address(source: object) -> object:
    if not isinstance(source, dict):
        return source
    if source.get("type") == "base64":  # Anthropic's form of a data URL
        return f"data:{source.get('media_type', 'image/png')};base64,{source.get('data')}"
    return source.get("url", source)
