"""Tokenizers: the model's own, from its files, and the simulator's.

As SGLang does it: a prompt gets the tokenizer's special tokens (its BOS); a chat does not, since the template writes
them; a continued last answer gets them too, and loses a BOS in front again (SGLang 0.5.21 to 0.5.23, `serving_chat.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from evenkeel_contract.promptfacts import (
    CONFIG_FILE,
    OLD_TEMPLATE_FILE,
    SPECIAL_TOKENS_FILE,
    TEMPLATE_FILE,
    TOKENIZER_FILE,
)
from evenkeel_contract.simulatedprompt import ChatMessage, encode, render
from tokenizers import Tokenizer

from evenkeel_router.prefix.chat_template import ChatTemplates, TemplateError
from evenkeel_router.prefix.prompts import Chat, for_template
from evenkeel_router.prefix.tokenised import Reason, UntokenisedError


class TokenizerError(ValueError):
    """The model's files make no tokenizer; the message says which and why."""


class AnyTokenizer(Protocol):
    """Token ids, as the engine makes them. Raises `UntokenisedError`."""

    async def start(self) -> None:
        """Make ready what renders conversations. Raises `TokenizerError`."""

    async def close(self) -> None:
        """The tokenizer is used no more."""

    async def text(self, chat: Chat) -> str:
        """The text that the chat template makes of a conversation, without `answer_begins`."""

    def prompt(self, text: str) -> list[int]:
        """The ids of a prompt. Called from threads."""

    def chat(self, text: str, answer_begins: str) -> list[int]:
        """The ids of a conversation's text and of the answer that continues it. Called from threads."""


class ModelTokenizer:
    """`tokenizer.json` and a chat template."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        """`files` by name, of `FILES`. Raises `TokenizerError`."""
        if TOKENIZER_FILE not in files:
            raise TokenizerError(f"the model has no {TOKENIZER_FILE}")
        try:
            self._tokenizer = Tokenizer.from_buffer(files[TOKENIZER_FILE])
        except Exception as error:  # the library raises nothing narrower
            raise TokenizerError(f"{TOKENIZER_FILE}: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        config = {**_json(files, SPECIAL_TOKENS_FILE), **_json(files, CONFIG_FILE)}
        special = _special_tokens(config)
        bos = special.get("bos_token")
        self._bos = None if bos is None else self._tokenizer.token_to_id(bos)
        self._templates = _templates(files, config, special)

    async def start(self) -> None:
        try:
            await self._templates.start()
        except TemplateError as error:
            raise TokenizerError(f"the chat template is invalid: {error}") from error

    async def close(self) -> None:
        await self._templates.close()

    async def text(self, chat: Chat) -> str:
        names = ("tool_use", "default") if chat.tools else ("default",)
        name = next((name for name in names if name in self._templates.names), None)
        if name is None:
            raise UntokenisedError(Reason.NO_TEMPLATE)
        return await self._templates.render(name, chat)

    def prompt(self, text: str) -> list[int]:
        return self._encode(text, special=True)

    def _encode(self, text: str, *, special: bool) -> list[int]:
        # A batch of one: `encode` keeps the interpreter to itself, and counts offsets that are not needed.
        (found,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)
        ids: list[int] = found.ids
        return ids

    def chat(self, text: str, answer_begins: str) -> list[int]:
        ids = self._encode(text, special=False)
        if answer_begins:
            rest = self.prompt(answer_begins)
            ids += rest[1:] if rest and rest[0] == self._bos else rest
        return ids


class SimulatedTokenizer:
    """The simulator's tokenizer."""

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def text(self, chat: Chat) -> str:
        messages = for_template(chat, keeps_parts=False)
        return render([ChatMessage(role=one["role"], content=one["content"]) for one in messages])

    def prompt(self, text: str) -> list[int]:
        return encode(text).tolist()

    def chat(self, text: str, answer_begins: str) -> list[int]:
        return self.prompt(text)


def _json(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    if name not in files:
        return {}
    try:
        found = json.loads(files[name])
    except ValueError as error:
        raise TokenizerError(f"{name} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise TokenizerError(f"{name} is not a JSON object")
    return found


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and its like: a text, or an object with one."""
    found = {}
    for name, value in config.items():
        token = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(token, str):
            found[name] = token
    return found


def _templates(
    files: Mapping[str, bytes], config: Mapping[str, Any], special: Mapping[str, str]
) -> ChatTemplates:
    """A model has one template, `default`, or several. The file of its own goes before the configuration's."""
    given = config.get("chat_template")
    if TEMPLATE_FILE in files:
        given = files[TEMPLATE_FILE].decode(errors="replace")
    elif given is None:
        given = _json(files, OLD_TEMPLATE_FILE).get("chat_template")
    if isinstance(given, str):
        sources = {"default": given}
    elif isinstance(given, list):
        sources = {one["name"]: one["template"] for one in given if isinstance(one, dict)}
    else:
        sources = {}
    return ChatTemplates(sources, special)
