"""`llm`: the models of its `extra-openai-models.yaml`, with chat completions."""

from __future__ import annotations

import gc
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(tempfile.mkdtemp(prefix="llm-"))
os.environ["LLM_USER_PATH"] = str(FOLDER)

import llm
from flows import SIMULATED, TOOL, TOOL_HELP, TOOL_NAME, URL, Access, Answer, Client, Weather, run
from openai_python import ERRORS


class Chat(Client):
    name = "llm"
    package = "llm"
    api = "chat completions"
    errors = ERRORS  # it passes on those of OpenAI's client
    invalid = {"max_tokens": -1}  # it checks top_p itself
    lacks = {
        "n": "it asks for one answer",
        "timeout": "it has no time limit",
        "429": "its retries cannot be switched off",
    }
    if not SIMULATED:
        lacks["tools"] = "it cannot require a tool call, and a random model makes none by itself"

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        model = {
            "model_id": "fair",
            "model_name": access.model,
            "api_base": f"{URL}/v1",
            "api_key_name": "fair",
            "supports_schema": True,
            "supports_tools": True,
        }
        (FOLDER / "extra-openai-models.yaml").write_text(json.dumps([model]))
        self.model = llm.get_model("fair")
        self.model.key = access.key

    def ask(self, prompt: str, **options: Any) -> Answer:
        made = self.model.prompt(prompt, stream=False, **_options(options))
        text = made.text()
        used = made.usage()
        return Answer([text], used.input, used.output)

    def stream(self, prompt: str, usage: list[Answer], **options: Any) -> Iterator[str]:
        made = self.model.prompt(prompt, stream=True, **_options(options))
        pieces = iter(made)
        try:
            yield from pieces
        finally:
            pieces.close()
            gc.collect()  # the stream is closed with its last reference
        used = made.usage()
        usage.append(Answer([], used.input, used.output))

    def converse(self, turns: Sequence[str], tool: Weather) -> list[str]:
        conversation = self.model.conversation(
            tools=[
                llm.Tool(
                    name=TOOL_NAME,
                    description=TOOL_HELP,
                    input_schema=TOOL,
                    implementation=tool.__call__,
                )
            ]
        )
        return [conversation.chain(turn).text() for turn in turns]


def _options(options: dict[str, Any]) -> dict[str, Any]:
    if "stop" in options:
        [options["stop"]] = options["stop"]
    return options


if __name__ == "__main__":
    run(Chat)
