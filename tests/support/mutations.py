"""Hostile requests: valid bodies of every API, forms among them, broken in one to four places."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from random import Random
from typing import Any, Final

BODIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "max_tokens": 2, "n": 1, "stop": ["x"], "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": "auto", "response_format": {"type": "json_object"}, "logprobs": True,
    },
    "/v1/completions": {"prompt": "hi", "max_tokens": 2, "n": 1, "stop": "x", "echo": False},
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "5"},
        ],
        "max_output_tokens": 2, "instructions": "be kind", "store": False,
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "text": {"format": {"type": "text"}},
    },
    "/v1/messages": {
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": "5"}]},
        ],
        "max_tokens": 2, "system": [{"type": "text", "text": "be kind"}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}], "stop_sequences": ["x"],
    },
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/embeddings": {"input": ["hi", "there"]},
    "/v1/rerank": {"query": "hi", "documents": ["a", "b"], "top_n": 1},
    "/v1/score": {"query": "hi", "items": ["a", "b"], "label_token_ids": [1, 2]},
    "/v1/classify": {"input": "hi"},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [1, 2]},
    "/generate": {"text": "hi", "sampling_params": {"max_new_tokens": 2}},
}  # fmt: skip
FORMS: Final[Mapping[str, Mapping[str, Any]]] = {
    "/v1/audio/transcriptions": {
        "file": "RIFF", "language": "en", "response_format": "json", "temperature": "0",
        "timestamp_granularities": ["word"],
    },
}  # fmt: skip
FORM_TYPES: Final = (
    *["multipart/form-data; boundary=b"] * 6, 'multipart/form-data; boundary="b"', "multipart/form-data",
    "multipart/form-data; boundary=", 'multipart/form-data; boundary="b', "multipart/form-data; boundary=other",
    "multipart/form-data; charset=x; boundary=b; x=y", "application/json", "",
)  # fmt: skip
MODEL_FREE: Final = frozenset({"/generate"})
HOSTILE: Final[tuple[Any, ...]] = (
    None, True, -1, 0, 1, 2**31, 2**63, -(2**63), 2**200, 1e308, -0.0, "", "x", "\x00", "\ud800",
    "é" * 50, "a" * 5000, "../../etc/passwd", "data: [DONE]\n\n", "\r\nx-evenkeel-client: ns/a/b",
    [], [[]], [None], [{}], {}, {"": None}, {"type": "item_reference", "id": "x"},
    {"type": "image_url", "image_url": {"url": "data:,"}}, ["a"] * 300, [1] * 300,
    {"$ref": "#"}, {"type": "object", "required": ["a"]}, {"pattern": "(a+)+$", "type": "string"},
)  # fmt: skip
FIELDS: Final = (
    "stream", "n", "model", "rid", "priority", "extra_key", "routing_key", "cache_salt",
    "request_id", "custom_params", "temperature", "top_p", "seed", "user", "metadata", "store",
    "previous_response_id", "background", "stream_options", "logprobs", "top_logprobs", "lora_path",
)  # fmt: skip


def requests(rng: Random, model: str, number: int) -> Iterator[tuple[str, str, bytes]]:
    """(path, content type, body) of each request."""
    valid = {**BODIES, **FORMS}
    paths = list(valid)
    for _ in range(number):
        path = rng.choice(paths)
        body = json.loads(json.dumps(valid[path]))
        if path not in MODEL_FREE:
            body["model"] = model
        if rng.random() < 0.3:
            body["stream"] = True
        for _ in range(rng.randint(1, 4)):
            rng.choice(_CHANGES)(rng, body)
        if path in FORMS:
            yield path, rng.choice(FORM_TYPES), _spoil(rng, _encode_form(body))
        else:
            yield path, "application/json", _spoil(rng, _encode(body))


def _encode(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _encode_form(body: Mapping[str, Any]) -> bytes:
    """With the boundary `b`; a list is a field that repeats (RFC 7578, section 4.3)."""
    parts = [
        (name, value if isinstance(value, str) else json.dumps(value))
        for name, values in body.items()
        for value in (values if isinstance(values, list) else [values])
    ]
    form = "".join(
        f'--b\r\ncontent-disposition: form-data; name="{name}"'
        f"{'; filename=a.wav' * (name == 'file')}\r\n\r\n{value}\r\n"
        for name, value in parts
    )
    return f"{form}--b--\r\n".encode("utf-8", "surrogatepass")


def _replace(rng: Random, body: dict[str, Any]) -> None:
    """Some value, at any depth."""
    holder: Any = body
    while holder:
        key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        if not isinstance(holder[key], (dict, list)) or rng.random() < 0.4:
            holder[key] = deepcopy(rng.choice(HOSTILE))
            return
        holder = holder[key]


def _remove(rng: Random, body: dict[str, Any]) -> None:
    if body:
        del body[rng.choice(list(body))]


def _add(rng: Random, body: dict[str, Any]) -> None:
    body[rng.choice(FIELDS)] = deepcopy(rng.choice(HOSTILE))


def _repeat(rng: Random, body: dict[str, Any]) -> None:
    for value in body.values():
        if isinstance(value, list):
            value.extend(value * rng.randint(1, 20))


def _nest(rng: Random, body: dict[str, Any]) -> None:
    nested: Any = "x"
    for _ in range(rng.choice((5, 100, 700))):
        nested = [nested] if rng.random() < 0.5 else {"type": nested}
    body[rng.choice([*body, *FIELDS])] = nested


_CHANGES: Final[tuple[Callable[[Random, dict[str, Any]], None], ...]] = (
    _replace, _replace, _replace, _remove, _add, _add, _repeat, _nest,
)  # fmt: skip


def _spoil(rng: Random, body: bytes) -> bytes:
    """Now and then bytes that are no JSON."""
    kind = rng.randrange(12)
    place = rng.randrange(len(body) + 1)
    if kind == 0:
        return body[:place]
    if kind == 1:
        return body[:place] + rng.randbytes(rng.randint(1, 8)) + body[place:]
    if kind == 2:
        return body + body
    return body
