"""Whatever body a router takes, tokens mode makes tokens of it or says why not; it never fails a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import pytest
from evenkeel_fairshare.prefix.index import sglang_blocks
from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.api.errors import Dialect, Refusal
from evenkeel_router.api.fields import TRANSCRIPTIONS
from evenkeel_router.api.inference import Limits
from evenkeel_router.api.streams import SCANS
from evenkeel_router.prefix.model_tokenizers import AnyTokenizer, ModelTokenizer, SimulatedTokenizer
from evenkeel_router.prefix.prompts import Chat, read
from evenkeel_router.prefix.tokenised import UntokenisedError
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.tokenizers import model_files

_WITH_FIELDS = (
    Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.GENERATE, Endpoint.MESSAGES, Endpoint.COUNT_TOKENS,
    Endpoint.RESPONSES, Endpoint.TRANSCRIPTIONS,
)  # fmt: skip
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
blocks = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_use", "tool_result", "thinking", "image", "input_text"])},
    optional={"text": texts | anything, "input": anything, "content": texts | anything, "name": anything, "id": anything},
)  # fmt: skip
turns = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system"]) | texts,
        "content": texts | st.lists(blocks, max_size=3) | anything,
    },
)
conversations = st.fixed_dictionaries(
    {"messages": st.lists(turns, max_size=4), "max_tokens": st.integers(-1, 10) | anything},
    optional={
        "system": texts | st.lists(blocks, max_size=2) | anything,
        "tools": st.lists(st.dictionaries(st.sampled_from(["name", "type", "input_schema"]), anything)) | anything,
        "tool_choice": anything,
        "thinking": anything,
        "stream": anything,
        "request_id": anything,
    },
)  # fmt: skip
items = turns | st.fixed_dictionaries(
    {"type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning"])},
    optional={"arguments": arguments, "output": texts | anything, "call_id": texts, "name": texts | anything},
)  # fmt: skip
responses = st.fixed_dictionaries(
    {"input": texts | st.lists(items, max_size=4) | anything},
    optional={
        "instructions": texts | anything,
        "tools": st.lists(st.fixed_dictionaries({"type": st.sampled_from(["function", "custom"])}, optional={"name": texts, "parameters": anything})) | anything,
        "tool_choice": st.sampled_from(["auto", "none"]) | anything,
        "reasoning": anything,
        "text": anything,
        "store": anything,
        "max_output_tokens": anything,
    },
)  # fmt: skip
scored = st.dictionaries(
    st.sampled_from(["query", "documents", "items", "text_1", "text_2", "input", "tokens", "prompt", "messages"]),
    texts | st.lists(texts, max_size=3) | anything,
)  # fmt: skip
bodies = st.one_of(
    st.tuples(st.just(Endpoint.CHAT), chats),
    st.tuples(st.sampled_from([Endpoint.COMPLETIONS, Endpoint.GENERATE]), prompts),
    st.tuples(st.sampled_from([Endpoint.MESSAGES, Endpoint.COUNT_TOKENS]), conversations),
    st.tuples(st.just(Endpoint.RESPONSES), responses),
    st.tuples(st.sampled_from([one for one in Endpoint if one not in _WITH_FIELDS]), scored),
)


Ids = Callable[[Chat], list[int]]


@pytest.fixture(scope="module")
def tokenizers() -> Iterator[list[tuple[AnyTokenizer, Ids]]]:
    """Both tokenizers, each with what makes the ids of a conversation."""
    with asyncio.Runner() as runner:
        model = ModelTokenizer(model_files())
        runner.run(model.start())

        def ids(tokenizer: AnyTokenizer, chat: Chat) -> list[int]:
            return tokenizer.chat(runner.run(tokenizer.text(chat)), chat.answer_begins)

        yield [(one, partial(ids, one)) for one in (model, SimulatedTokenizer())]
        runner.run(model.close())


@examples(100)
@given(given_body=bodies)
def test_every_body_that_is_taken_has_tokens_or_a_reason(
    tokenizers: list[tuple[AnyTokenizer, Ids]],
    given_body: tuple[Endpoint, dict[str, Any]],
) -> None:
    endpoint, fields = given_body
    with suppress(Refusal, UntokenisedError):
        inference = endpoint.api.parse(
            msgspec.json.encode({"model": "m"} | fields), Limits("m", 9), ""
        )
        assert inference.max_output_tokens is None or inference.max_output_tokens >= 0
        body = inference.body
        msgspec.json.decode(body)
        asked = read(endpoint, body)
        for tokenizer, ids_of in tokenizers:
            with suppress(UntokenisedError):
                if isinstance(asked, Chat):
                    assert sglang_blocks(ids_of(asked), page_tokens=1)
                else:
                    for one in asked.inputs:
                        ids = tokenizer.prompt(one) if isinstance(one, str) else one
                        assert all(isinstance(token, int) for token in ids)


@examples(100)
@given(
    st.lists(st.tuples(texts, st.binary(max_size=20)), max_size=3),
    st.binary(max_size=8),
    st.sampled_from(["--b--\r\n", "", "--b\r\n"]),
)
def test_every_form_is_taken_or_refused(
    fields: list[tuple[str, bytes]], before: bytes, end: str
) -> None:
    parts = [
        f'--b\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n'.encode() + value + b"\r\n"
        for name, value in [("file", b"RIFF"), *fields]
    ]
    body = before + b"".join(parts) + end.encode()
    parse = partial(
        Endpoint.TRANSCRIPTIONS.api.parse,
        limits=Limits("m", 9),
        content_type="multipart/form-data; boundary=b",
    )
    try:
        taken = parse(body)
    except Refusal:
        return
    assert (taken.body == body) == (not taken.stripped)
    assert set(taken.stripped).isdisjoint(TRANSCRIPTIONS)
    again = parse(taken.body)
    assert (again.body, again.stripped) == (taken.body, ())


@examples(100)
@given(st.sampled_from([Dialect.ANTHROPIC, Dialect.RESPONSES]), st.data())
def test_a_named_stream_comes_out_the_same_however_it_is_cut(
    dialect: Dialect, data: st.DataObject
) -> None:
    names = st.sampled_from(
        ["message_start", "message_delta", "content_block_delta", "ping", "error", "a.delta",
         "response.created"]
    )  # fmt: skip
    events = data.draw(st.lists(st.tuples(names, anything), max_size=6))
    stream = b"".join(
        b"event: %b\ndata: %b\n\n"
        % (name.encode(), msgspec.json.encode({"type": name, "usage": fields, "message": fields}))
        for name, fields in events
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    whole, pieces = (SCANS[dialect](drops_usage=False) for _ in range(2))
    assert whole.feed(stream) == stream
    passed = b"".join(
        pieces.feed(stream[start:end])
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
    )
    assert (passed, pieces.usage, pieces.events, pieces.failed) == (
        stream,
        whole.usage,
        whole.events,
        whole.failed,
    )
