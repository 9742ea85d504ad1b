"""OpenAI's Python client: chat completions, responses, and completions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import openai
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

ERRORS = {
    "timeout": openai.APITimeoutError,
    "400": openai.BadRequestError,
    "401": openai.AuthenticationError,
    "404": openai.NotFoundError,
    "413": openai.APIStatusError,  # it has no class for this status
    "429": openai.RateLimitError,
}


class _OpenAI(Client):
    name = "openai (Python)"
    package = "openai"
    errors = ERRORS

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self.client = openai.OpenAI(
            base_url=f"{URL}/v1",
            api_key=access.key,
            max_retries=access.retries,
            timeout=access.timeout_s,
        )


class Chat(_OpenAI):
    api = "chat completions"

    def ask(self, prompt: str, **options: Any) -> Answer:
        made = self.client.chat.completions.create(**self._body(prompt, options))
        texts = [choice.message.content or "" for choice in made.choices]
        return Answer(texts, made.usage.prompt_tokens, made.usage.completion_tokens)

    def stream(self, prompt: str, usage: list[Answer], **options: Any) -> Iterator[str]:
        body = self._body(prompt, options)
        with self.client.chat.completions.create(
            **body, stream=True, stream_options={"include_usage": True}
        ) as chunks:
            for chunk in chunks:
                if chunk.choices and chunk.choices[0].delta.content:
                    yield chunk.choices[0].delta.content
                if chunk.usage:
                    used = chunk.usage
                    usage.append(Answer([], used.prompt_tokens, used.completion_tokens))

    def _body(self, prompt: str, options: dict[str, Any]) -> dict[str, Any]:
        schema = options.pop("schema", None)
        if schema:
            form = {"name": "place", "schema": schema, "strict": True}
            options["response_format"] = {"type": "json_schema", "json_schema": form}
        messages = [{"role": "user", "content": prompt}]
        return {"model": self.access.model, "messages": messages} | options

    def converse(self, turns: Sequence[str], tool: Weather) -> list[str]:
        function = {"name": TOOL_NAME, "description": TOOL_HELP, "parameters": TOOL, "strict": True}
        messages: list[Any] = []
        texts = []
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            choice: Any = FIRST_CHOICE
            while True:
                made = self.client.chat.completions.create(
                    model=self.access.model,
                    messages=messages,
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


class Responses(_OpenAI):
    api = "responses"
    lacks = {"stop": "the API has no stop strings", "n": "the API has no n"}

    def ask(self, prompt: str, **options: Any) -> Answer:
        made = self.client.responses.create(**self._body(prompt, options))
        return Answer([made.output_text], made.usage.input_tokens, made.usage.output_tokens)

    def stream(self, prompt: str, usage: list[Answer], **options: Any) -> Iterator[str]:
        with self.client.responses.create(**self._body(prompt, options), stream=True) as events:
            for event in events:
                if event.type == "response.output_text.delta":
                    yield event.delta
                elif event.type in ("response.completed", "response.incomplete"):
                    used = event.response.usage
                    usage.append(Answer([], used.input_tokens, used.output_tokens))

    def _body(self, prompt: str, options: dict[str, Any]) -> dict[str, Any]:
        if "max_tokens" in options:
            options["max_output_tokens"] = options.pop("max_tokens")
        schema = options.pop("schema", None)
        if schema:
            form = {"type": "json_schema", "name": "place", "schema": schema, "strict": True}
            options["text"] = {"format": form}
        return {"model": self.access.model, "input": prompt} | options

    def converse(self, turns: Sequence[str], tool: Weather) -> list[str]:
        function: Any = {
            "type": "function",
            "name": TOOL_NAME,
            "description": TOOL_HELP,
            "parameters": TOOL,
            "strict": True,
        }
        items: list[Any] = []
        texts = []
        for turn in turns:
            items.append({"role": "user", "content": turn})
            choice: Any = FIRST_CHOICE
            while True:
                made = self.client.responses.create(
                    model=self.access.model,
                    input=items,
                    tools=[function],
                    tool_choice=choice,
                    max_output_tokens=TURN_TOKENS,
                )
                choice = "auto"
                items += [one.model_dump(exclude_none=True) for one in made.output]
                calls = [one for one in made.output if one.type == "function_call"]
                if not calls:
                    break
                for call in calls:
                    output = tool(**json.loads(call.arguments))
                    items.append(
                        {
                            "type": "function_call_output",
                            "call_id": call.call_id,
                            "output": output,
                        }
                    )
            texts.append(made.output_text)
        return texts


class Completions(_OpenAI):
    api = "completions"
    lacks = {
        "tools": "the API has no tools",
        "JSON": "the API has no schemas",
    }

    def ask(self, prompt: str, **options: Any) -> Answer:
        made = self.client.completions.create(model=self.access.model, prompt=prompt, **options)
        texts = [choice.text for choice in made.choices]
        return Answer(texts, made.usage.prompt_tokens, made.usage.completion_tokens)

    def stream(self, prompt: str, usage: list[Answer], **options: Any) -> Iterator[str]:
        with self.client.completions.create(
            model=self.access.model,
            prompt=prompt,
            stream=True,
            stream_options={"include_usage": True},
            **options,
        ) as chunks:
            for chunk in chunks:
                if chunk.choices and chunk.choices[0].text:
                    yield chunk.choices[0].text
                if chunk.usage:
                    used = chunk.usage
                    usage.append(Answer([], used.prompt_tokens, used.completion_tokens))


if __name__ == "__main__":
    run(Chat, Responses, Completions)
