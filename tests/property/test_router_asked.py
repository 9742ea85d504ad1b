"""Whatever body a router takes, tokens mode makes tokens of it or says why not; it never fails a request."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

import msgspec
from evenkeel_fairshare.prefix.blocks import sglang_blocks
from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.api.errors import Refusal
from evenkeel_router.api.inference import Limits
from evenkeel_router.api.parse import parse
from evenkeel_router.prefix.model_tokenizers import AnyTokenizer, ModelTokenizer, SimulatedTokenizer
from evenkeel_router.prefix.prompts import Chat, read
from evenkeel_router.prefix.tokenised import UntokenisedError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.tokenizers import model_files

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
arguments = st.sampled_from(['{"a": 1}', "[1]", "{", "null", ""]) | anything
functions = st.fixed_dictionaries(
    {}, optional={"name": texts | anything, "arguments": arguments, "parameters": anything, "strict": anything, "description": anything}
)  # fmt: skip
calls = st.fixed_dictionaries({}, optional={"id": anything, "type": texts, "function": functions})
parts = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "thinking", "image_url", "tool_reference"])},
    optional={"text": texts | anything},
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool", "User", "x"])},
    optional={
        "content": texts | st.lists(parts, max_size=3) | anything,
        "name": anything,
        "tool_calls": st.lists(calls, max_size=2) | anything,
        "reasoning_content": anything,
        "tools": anything,
    },
)
chats = st.fixed_dictionaries(
    {"messages": st.lists(messages, max_size=4)},
    optional={
        "tools": st.lists(st.fixed_dictionaries({"function": functions}), max_size=2) | anything,
        "tool_choice": st.sampled_from(["auto", "none", "required"]) | anything,
        "chat_template_kwargs": st.dictionaries(texts, anything, max_size=2) | anything,
        "continue_final_message": st.booleans() | anything,
        "reasoning_effort": anything,
        "lora_path": anything,
        "input_ids": anything,
    },
)
prompts = st.fixed_dictionaries(
    {},
    optional={
        "prompt": texts | st.lists(texts | st.integers(-1, 2**33), max_size=3) | anything,
        "text": texts | st.lists(texts, max_size=2) | anything,
        "input_ids": st.lists(st.integers(-1, 2**33), max_size=3) | anything,
        "suffix": anything,
    },
)
bodies = st.one_of(
    st.tuples(st.just(Endpoint.CHAT), chats),
    st.tuples(st.sampled_from([Endpoint.COMPLETIONS, Endpoint.GENERATE]), prompts),
)


@cache
def tokenizers() -> tuple[AnyTokenizer, ...]:
    return ModelTokenizer(model_files()), SimulatedTokenizer()


@settings(max_examples=500, deadline=None)
@given(bodies)
def test_every_body_that_is_taken_has_tokens_or_a_reason(
    given_body: tuple[Endpoint, dict[str, Any]],
) -> None:
    endpoint, fields = given_body
    with suppress(Refusal, UntokenisedError):
        body = parse(endpoint, msgspec.json.encode({"model": "m"} | fields), Limits("m", 9)).body
        asked = read(endpoint, body)
        for tokenizer in tokenizers():
            with suppress(UntokenisedError):
                if isinstance(asked, Chat):
                    assert sglang_blocks(tokenizer.chat(asked), page_tokens=1)
                else:
                    for one in asked.inputs:
                        ids = tokenizer.prompt(one) if isinstance(one, str) else one
                        assert all(isinstance(token, int) for token in ids)
