"""Any JSON is a request or a `BadRequest`, for every endpoint that reads a body."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from evenkeel_simulator.server.bodies import BadRequest
from evenkeel_simulator.server.chat import parse_chat
from evenkeel_simulator.server.completions import parse_completion
from evenkeel_simulator.server.messages import count_tokens, parse_messages
from evenkeel_simulator.server.native import parse_generate
from evenkeel_simulator.server.pooled import (
    detokenize,
    read_classify,
    read_embeddings,
    read_rerank,
    read_score,
    tokenize,
)
from evenkeel_simulator.server.responses import read_responses
from hypothesis import given
from hypothesis import strategies as st

CONTEXT = 20_000
NAMES = st.sampled_from(
    ["arguments", "content", "data", "format", "function", "image_url", "input", "input_schema", "json_schema",
     "media_type", "name", "output", "parameters", "role", "schema", "source", "text", "tool_use_id", "type", "url"]
)  # fmt: skip
WORDS = st.sampled_from(
    ["", "a", "assistant", "auto", "base64", "function", "function_call", "function_call_output", "image",
     "image_url", "input_image", "input_text", "json_object", "json_schema", "message", "object", "required",
     "system", "text", "tool", "tool_result", "tool_use", "user", "{}", "\x00", "ü"]
)  # fmt: skip
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 300), st.floats(-1, 3), WORDS),
    lambda children: st.one_of(
        st.lists(children, max_size=3), st.dictionaries(NAMES, children, max_size=4)
    ),
    max_leaves=10,
)
MESSAGE = st.one_of(
    JSON,
    st.fixed_dictionaries(
        {"role": WORDS}, optional={"type": WORDS, "content": JSON, "output": JSON}
    ),
)
MESSAGES = st.one_of(JSON, st.lists(MESSAGE, max_size=4))
TOOLS = st.lists(
    st.fixed_dictionaries(
        {"type": st.just("function"), "name": WORDS},
        optional={"parameters": JSON, "input_schema": JSON, "function": JSON},
    ),
    max_size=3,
)
SHARED = {
    "tools": st.one_of(JSON, TOOLS),
    "tool_choice": JSON,
    "stop": JSON,
    "seed": JSON,
    "temperature": JSON,
    "response_format": JSON,
    "text": JSON,
    "output_config": JSON,
    "logprobs": JSON,
    "top_logprobs": JSON,
    "stream": JSON,
    "max_tokens": JSON,
}


def _with_keyword(parse: Callable[..., Any]) -> Callable[[bytes, int], Any]:
    return lambda body, context: parse(body, context_length=context)


READERS: dict[str, tuple[Callable[[bytes, int], Any], dict[str, Any]]] = {
    "completions": (_with_keyword(parse_completion), {"prompt": JSON}),
    "chat": (_with_keyword(parse_chat), {"messages": MESSAGES}),
    "generate": (_with_keyword(parse_generate), {"text": JSON, "sampling_params": JSON}),
    "messages": (
        _with_keyword(parse_messages),
        {"model": WORDS, "messages": MESSAGES, "system": JSON},
    ),
    "count_tokens": (_with_keyword(count_tokens), {"model": WORDS, "messages": MESSAGES}),
    "responses": (read_responses, {"input": MESSAGES}),
    "embeddings": (read_embeddings, {"input": JSON}),
    "classify": (read_classify, {"input": JSON}),
    "score": (read_score, {"query": JSON, "items": JSON, "label_token_ids": JSON}),
    "rerank": (read_rerank, {"query": WORDS, "documents": JSON}),
    "tokenize": (_with_keyword(tokenize), {"prompt": JSON}),
    "detokenize": (_with_keyword(detokenize), {"tokens": JSON}),
}


@pytest.mark.parametrize("name", READERS)
@given(st.data())
def test_any_json_is_a_request_or_refused(name: str, data: st.DataObject) -> None:
    read, fields = READERS[name]
    optional = {name: values for name, values in SHARED.items() if name not in fields}
    body = data.draw(st.fixed_dictionaries(fields, optional=optional))
    try:
        found = read(json.dumps(body).encode(), CONTEXT)
    except BadRequest as error:
        assert str(error)
        return
    ask = found[0] if isinstance(found, tuple) else found
    if not isinstance(ask, bytes):
        assert all(ask.prompts)
