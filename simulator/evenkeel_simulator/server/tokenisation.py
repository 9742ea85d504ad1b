"""`/tokenize` and `/detokenize`, as SGLang 0.5.23 answers them. Pure: bodies in, bodies out."""

from __future__ import annotations

from typing import Final

import msgspec

from evenkeel_simulator.server import tokens, wire
from evenkeel_simulator.server.ask import encode_all, token_prompts
from evenkeel_simulator.server.bodies import BadRequest, decode
from evenkeel_simulator.server.chat import Message, chat_messages
from evenkeel_simulator.server.conversation import Conversation


class _Tokenize(msgspec.Struct):
    prompt: str | list[str] | None = None
    messages: list[Message] | None = None


class _Detokenize(msgspec.Struct):
    tokens: list[int | list[int]]


_tokenize: Final = msgspec.json.Decoder(_Tokenize)
_detokenize: Final = msgspec.json.Decoder(_Detokenize)


def tokenize(body: bytes, *, context_length: int) -> bytes:
    """Body of `/tokenize` → its answer; raises `BadRequest`."""
    fields = decode(_tokenize, body)
    if (fields.prompt is None) == (fields.messages is None):
        message = "Exactly one of 'prompt' or 'messages' must be provided."
        raise BadRequest(message, by_schema=True)
    if fields.messages is not None:
        conversation = Conversation(messages=chat_messages(fields.messages))
        found = conversation.prompts(context_length)
    else:
        texts = [fields.prompt] if isinstance(fields.prompt, str) else fields.prompt or []
        found = encode_all(texts, context_length)
    many = isinstance(fields.prompt, list)
    ids = [prompt.tolist() for prompt in found]
    return wire.encode(
        {
            "tokens": ids if many else ids[0],
            "count": [len(prompt) for prompt in ids] if many else len(ids[0]),
            "max_model_len": context_length,
        }
    )


def detokenize(body: bytes, *, context_length: int) -> bytes:
    """Body of `/detokenize` → its answer; raises `BadRequest`."""
    fields = decode(_detokenize, body)
    texts = [tokens.decode(ids) for ids in token_prompts("tokens", fields.tokens)]
    many = bool(fields.tokens) and isinstance(fields.tokens[0], list)
    return wire.encode({"text": texts if many else "".join(texts)})
