"""LangChain's OpenAI package: chat completions and responses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

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
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from openai_python import ERRORS


class Chat(Client):
    name = "langchain-openai"
    package = "langchain-openai"
    api = "chat completions"
    errors = ERRORS  # those of LangChain derive from OpenAI's
    responses: ClassVar[bool] = False

    def model(self, **options: Any) -> ChatOpenAI:
        return ChatOpenAI(
            model=self.access.model,
            base_url=f"{URL}/v1",
            api_key=self.access.key,
            max_retries=self.access.retries,
            timeout=self.access.timeout_s,
            use_responses_api=self.responses,
            stream_usage=True,
            **options,
        )

    def ask(self, prompt: str, **options: Any) -> Answer:
        schema = options.pop("schema", None)
        if schema:
            form = {"title": "place", "description": "Where it is."} | schema
            chain = self.model(**options).with_structured_output(form, method="json_schema")
            return Answer([json.dumps(chain.invoke(prompt))])
        made = self.model(**options).generate([[HumanMessage(prompt)]])
        [generations] = made.generations
        used = generations[0].message.usage_metadata or {}
        texts = [one.message.text for one in generations]
        return Answer(texts, used.get("input_tokens", 0), used.get("output_tokens", 0))

    def stream(self, prompt: str, usage: list[Answer], **options: Any) -> Iterator[str]:
        whole = None
        chunks = self.model(**options).stream(prompt)
        try:
            for chunk in chunks:
                whole = chunk if whole is None else whole + chunk
                if chunk.text:
                    yield chunk.text
        finally:
            chunks.close()
        used = whole.usage_metadata
        usage.append(Answer([], used["input_tokens"], used["output_tokens"]))

    def converse(self, turns: Sequence[str], tool: Weather) -> list[str]:
        function = {"name": TOOL_NAME, "description": TOOL_HELP, "parameters": TOOL}
        tools = [{"type": "function", "function": function}]
        model = self.model(max_tokens=TURN_TOKENS)
        messages: list[Any] = []
        texts = []
        for turn in turns:
            messages.append(HumanMessage(turn))
            choice = FIRST_CHOICE
            while True:
                made = model.bind_tools(tools, tool_choice=choice).invoke(messages)
                choice = "auto"
                messages.append(made)
                if not made.tool_calls:
                    break
                messages += [
                    ToolMessage(tool(**call["args"]), tool_call_id=call["id"])
                    for call in made.tool_calls
                ]
            texts.append(made.text)
        return texts


class Responses(Chat):
    api = "responses"
    lacks = {"stop": "the API has no stop strings", "n": "the API has no n"}
    responses = True


if __name__ == "__main__":
    run(Chat, Responses)
