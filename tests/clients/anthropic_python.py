"""Anthropic's Python client: messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import anthropic
from flows import (
    FIRST_CHOICE,
    TOOL,
    TOOL_HELP,
    TOOL_NAME,
    TURN_TOKENS,
    URL,
    Access,
    Answer,
    Client,
    Weather,
    run,
)

_CHOICES = {"auto": {"type": "auto"}, "required": {"type": "any"}}


class Messages(Client):
    name = "anthropic (Python)"
    package = "anthropic"
    api = "messages"
    lacks = {"n": "the API has no n"}
    errors = {
        "timeout": anthropic.APITimeoutError,
        "400": anthropic.BadRequestError,
        "401": anthropic.AuthenticationError,
        "404": anthropic.NotFoundError,
        "413": anthropic.RequestTooLargeError,
        "429": anthropic.RateLimitError,
    }

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self.client = anthropic.Anthropic(
            base_url=URL,
            api_key=access.key,
            max_retries=access.retries,
            timeout=access.timeout_s,
        )

    def ask(self, prompt: str, **options: Any) -> Answer:
        made = self.client.messages.create(**self._body(prompt, options))
        text = "".join(block.text for block in made.content if block.type == "text")
        return Answer([text], _input(made.usage), made.usage.output_tokens)

    def stream(self, prompt: str, usage: list[Answer], **options: Any) -> Iterator[str]:
        with self.client.messages.stream(**self._body(prompt, options)) as stream:
            yield from stream.text_stream
            used = stream.get_final_message().usage
            usage.append(Answer([], _input(used), used.output_tokens))

    def _body(self, prompt: str, options: dict[str, Any]) -> dict[str, Any]:
        if "stop" in options:
            options["stop_sequences"] = options.pop("stop")
        schema = options.pop("schema", None)
        if schema:
            options["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        messages = [{"role": "user", "content": prompt}]
        # The client has no arguments for these. Only this `top_p` is invalid for every engine.
        extra = {name: options.pop(name) for name in ("top_p", "temperature") if name in options}
        return {"model": self.access.model, "messages": messages, "extra_body": extra} | options

    def converse(self, turns: Sequence[str], tool: Weather) -> list[str]:
        function: Any = {"name": TOOL_NAME, "description": TOOL_HELP, "input_schema": TOOL}
        messages: list[Any] = []
        texts = []
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            choice: Any = _CHOICES[FIRST_CHOICE]
            while True:
                made = self.client.messages.create(
                    model=self.access.model,
                    messages=messages,
                    tools=[function],
                    tool_choice=choice,
                    max_tokens=TURN_TOKENS,
                )
                choice = _CHOICES["auto"]
                messages.append({"role": "assistant", "content": made.content})
                if made.stop_reason != "tool_use":
                    break
                results = [
                    {
                        "type": "tool_result",
                        "tool_use_id": block.id,
                        "content": tool(**block.input),
                    }
                    for block in made.content
                    if block.type == "tool_use"
                ]
                messages.append({"role": "user", "content": results})
            texts.append("".join(block.text for block in made.content if block.type == "text"))
        return texts


def _input(usage: anthropic.types.Usage) -> int:
    """Anthropic counts cached input apart."""
    return usage.input_tokens + (usage.cache_read_input_tokens or 0)


if __name__ == "__main__":
    run(Messages)
