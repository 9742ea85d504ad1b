"""LiteLLM: OpenAI's chat completions, and Anthropic's messages behind the same function."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import litellm
from flows import (
    FIRST_CHOICE,
    TOOL,
    TOOL_HELP,
    TOOL_NAME,
    TURN_TOKENS,
    URL,
    Answer,
    Client,
    Weather,
    run,
)

litellm.telemetry = False


class Chat(Client):
    name = "litellm"
    package = "litellm"
    api = "chat completions"
    errors = {
        "timeout": litellm.Timeout,
        "400": litellm.BadRequestError,
        "401": litellm.AuthenticationError,
        "404": litellm.NotFoundError,
        "413": litellm.BadRequestError,  # it has no class for this status
        "429": litellm.RateLimitError,
    }
    provider: ClassVar[str] = "openai"
    base: ClassVar[str] = f"{URL}/v1"

    def ask(self, prompt: str, **options: Any) -> Answer:
        made = self._complete([{"role": "user", "content": prompt}], **options)
        texts = [choice.message.content or "" for choice in made.choices]
        return Answer(texts, made.usage.prompt_tokens, made.usage.completion_tokens)

    def stream(self, prompt: str, usage: list[Answer], **options: Any) -> Iterator[str]:
        """Asynchronous: only such a stream can be closed."""

        async def following() -> Any:
            return await anext(chunks, None)

        options |= {"stream": True, "stream_options": {"include_usage": True}}
        messages = [{"role": "user", "content": prompt}]
        with asyncio.Runner() as runner:
            chunks = runner.run(litellm.acompletion(**self._body(messages, options)))
            try:
                while chunk := runner.run(following()):
                    if chunk.choices and chunk.choices[0].delta.content:
                        yield chunk.choices[0].delta.content
                    used = getattr(chunk, "usage", None)
                    if used:
                        usage.append(Answer([], used.prompt_tokens, used.completion_tokens))
            finally:
                runner.run(chunks.aclose())

    def _complete(self, messages: list[Any], **options: Any) -> Any:
        return litellm.completion(**self._body(messages, options))

    def _body(self, messages: list[Any], options: dict[str, Any]) -> dict[str, Any]:
        schema = options.pop("schema", None)
        if schema:
            form = {"name": "place", "schema": schema, "strict": True}
            options["response_format"] = {"type": "json_schema", "json_schema": form}
        return {
            "model": f"{self.provider}/{self.access.model}",
            "api_base": self.base,
            "api_key": self.access.key,
            "timeout": self.access.timeout_s,
            "max_retries": self.access.retries,
            "messages": messages,
        } | options

    def converse(self, turns: Sequence[str], tool: Weather) -> list[str]:
        function = {"name": TOOL_NAME, "description": TOOL_HELP, "parameters": TOOL}
        messages: list[Any] = []
        texts = []
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            choice = FIRST_CHOICE
            while True:
                made = self._complete(
                    messages,
                    tools=[{"type": "function", "function": function}],
                    tool_choice=choice,
                    max_tokens=TURN_TOKENS,
                )
                choice = "auto"
                message = made.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                if not message.tool_calls:
                    break
                for call in message.tool_calls:
                    result = tool(**json.loads(call.function.arguments))
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
            texts.append(message.content or "")
        return texts


class Messages(Chat):
    api = "messages"
    lacks = {"n": "the API has no n"}
    statuses = {"413": 400}
    provider = "anthropic"
    base = URL

    def _complete(self, messages: list[Any], **options: Any) -> Any:
        if not self.access.retries:
            return super()._complete(messages, **options)
        # `max_retries` of the function has no effect for this API; its router retries.
        body = self._body(messages, options)
        parameters = {name: body.pop(name) for name in ("model", "api_base", "api_key")}
        router = litellm.Router(
            [{"model_name": "fair", "litellm_params": parameters}],
            num_retries=self.access.retries,
        )
        return router.completion(model="fair", **body)


if __name__ == "__main__":
    run(Chat, Messages)
