"""A model's folder for tests: a tokenizer trained here, and a chat template that shows what it is given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evenkeel_router.prefix.model_tokenizers import AnyTokenizer
from evenkeel_router.prefix.prompts import Chat
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|{{ message['role'] }}|>{{ message['content'] }}"
    "{% if message['tool_calls'] %}{{ message['tool_calls'] | tojson }}{% endif %}{{ '\\n' }}"
    "{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if enable_thinking %}<think>{% endif %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_ENGLISH = (
    "The engine keeps what it has computed, page by page, and a router that knows which pages lie where "
    "sends every question to the place where most of its beginning is already there. "
) * 20


def tokenizer_json() -> bytes:
    """Byte-level BPE with `<s>` in front of every prompt, as Llama's has."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_ENGLISH], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return str(tokenizer.to_str()).encode()


def model_files(template: str | None = TEMPLATE, **config: Any) -> dict[str, bytes]:
    """What a model's folder holds, by name."""
    given: Mapping[str, Any] = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"} | config
    files = {
        "tokenizer.json": tokenizer_json(),
        "tokenizer_config.json": json.dumps(given).encode(),
    }
    if template is not None:
        files["chat_template.jinja"] = template.encode()
    return files


def model_folder(folder: Path, files: Mapping[str, bytes]) -> Path:
    """The files, written."""
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


async def ids_of_chat(tokenizer: AnyTokenizer, chat: Chat) -> list[int]:
    """The token ids of a conversation, by a tokenizer that is started for it. Raises `UntokenisedError`."""
    try:
        await tokenizer.start()
        return tokenizer.chat(await tokenizer.text(chat), chat.answer_begins)
    finally:
        await tokenizer.close()
