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
from jinja2 import TemplateError
from tokenizers import Tokenizer

from evenkeel_router.prefix.chat_template import ChatTemplate
from evenkeel_router.prefix.prompts import Chat, for_template
from evenkeel_router.prefix.tokenised import Reason, UntokenisedError


class TokenizerError(ValueError):
    """The model's files make no tokenizer; the message says which and why."""


class AnyTokenizer(Protocol):
    """Token ids, as the engine makes them. Called from threads; raises `UntokenisedError`."""

    def prompt(self, text: str) -> list[int]:
        """Of a prompt."""

    def chat(self, chat: Chat) -> list[int]:
        """Of a conversation."""


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

    def prompt(self, text: str) -> list[int]:
        return self._encode(text, special=True)

    def _encode(self, text: str, *, special: bool) -> list[int]:
        # A batch of one: `encode` keeps the interpreter to itself, and counts offsets that are not needed.
        (found,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)
        ids: list[int] = found.ids
        return ids

    def chat(self, chat: Chat) -> list[int]:
        template = self._templates.get("tool_use") if chat.tools else None
        template = template or self._templates.get("default")
        if template is None:
            raise UntokenisedError(Reason.NO_TEMPLATE)
        ids = self._encode(template.render(chat), special=False)
        if chat.answer_begins:
            rest = self.prompt(chat.answer_begins)
            ids += rest[1:] if rest and rest[0] == self._bos else rest
        return ids


class SimulatedTokenizer:
    """The simulator's."""

    def prompt(self, text: str) -> list[int]:
        return encode(text).tolist()

    def chat(self, chat: Chat) -> list[int]:
        messages = [
            ChatMessage(role=message["role"], content=message["content"])
            for message in for_template(chat, keeps_parts=False)
        ]
        return self.prompt(render(messages))


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
) -> dict[str, ChatTemplate]:
    """By name; a model has one, `default`, or several. The file of its own goes before the configuration's."""
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
    try:
        return {name: ChatTemplate(source, special) for name, source in sources.items()}
    except TemplateError as error:
        raise TokenizerError(f"the chat template is invalid: {error}") from error
