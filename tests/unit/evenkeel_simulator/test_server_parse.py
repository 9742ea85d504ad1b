"""Request bodies: what is read out of them, and the sentence with which the others are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from evenkeel_contract.simulatedprompt import encode
from evenkeel_simulator.server.ask import Ask
from evenkeel_simulator.server.bodies import BadRequest
from evenkeel_simulator.server.chat import parse_chat
from evenkeel_simulator.server.completions import parse_completion
from evenkeel_simulator.server.messages import parse_messages
from evenkeel_simulator.server.native import parse_generate
from evenkeel_simulator.server.responses import read_responses
from evenkeel_simulator.server.speech import WrittenAnswer
from hypothesis import given
from hypothesis import strategies as st


def completion(context_length: int = 1000, **fields: Any) -> Ask:
    return parse_completion(json.dumps(fields).encode(), context_length=context_length)


def chat(**fields: Any) -> Ask:
    return parse_chat(json.dumps(fields).encode(), context_length=1000)


def native(**fields: Any) -> Ask:
    return parse_generate(json.dumps(fields).encode(), context_length=1000)


def written(ask: Ask, seed: int = 1) -> WrittenAnswer:
    assert ask.write is not None
    return ask.write(seed)


def test_a_completion_has_sglangs_defaults() -> None:
    ask = completion(prompt="hello")
    assert ask.prompts == (encode("hello"),)
    assert ask.model == "default"
    assert (ask.sampling.max_tokens, ask.sampling.n, ask.stream) == (16, 1, False)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        (["a", "b"], [encode("a").tolist(), encode("b").tolist()]),
    ],
)
def test_a_prompt_may_be_texts_or_token_ids(prompt: Any, prompts: list[list[int]]) -> None:
    assert [ids.tolist() for ids in completion(prompt=prompt).prompts] == prompts


def test_echo_repeats_the_prompt_and_decodes_token_ids() -> None:
    assert completion(prompt=["a", "b"], echo=True).echoes == ("a", "b")
    assert completion(prompt=list(encode("hello you")), echo=True).echoes == ("hello you",)


def test_a_chat_is_rendered_by_the_fixed_template() -> None:
    ask = chat(
        messages=[
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        ]
    )
    text = "<|system|>\nbe kind\n<|user|>\nhi\n<|assistant|>\n"
    assert ask.prompts == (encode(text),)
    assert ask.sampling.max_tokens is None


def test_a_conversation_that_goes_on_extends_its_tokens() -> None:
    first = [{"role": "user", "content": "hi"}]
    answer = " The sea ran out"
    second = [*first, {"role": "assistant", "content": answer}, {"role": "user", "content": "?"}]
    before = chat(messages=first).prompts[0] + encode(answer)
    assert chat(messages=second).prompts[0][: len(before)] == before


def test_max_completion_tokens_comes_before_max_tokens() -> None:
    messages = [{"role": "user", "content": "hi"}]
    ask = chat(messages=messages, max_tokens=3, max_completion_tokens=5)
    assert ask.sampling.max_tokens == 5
    ask = chat(messages=messages, max_tokens=3, max_completion_tokens=0)
    assert ask.sampling.max_tokens == 3


def test_generate_takes_its_key_from_the_body_and_openai_endpoints_do_not() -> None:
    assert native(text="a", routing_key="k").routing_key == "k"
    assert completion(prompt="a", routing_key="k").routing_key is None


def test_generate_has_a_default_of_its_own_and_reads_sampling_params() -> None:
    assert native(text="a").sampling.max_tokens == 128
    params = {"max_new_tokens": 7, "stop": ["x", ""], "ignore_eos": True, "n": 2}
    sampling = native(input_ids=[1, 2], sampling_params=params).sampling
    assert (sampling.max_tokens, sampling.stop, sampling.n) == (7, ("x",), 2)
    assert sampling.ignore_eos


REFUSED_COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({}, "missing required field `prompt`"),
    ({"prompt": 1}, "`$.prompt`"),
    ({"prompt": None}, "`$.prompt`"),
    ({"prompt": ""}, "Prompt cannot be empty"),
    ({"prompt": []}, "Prompt cannot be empty"),
    ({"prompt": [[]]}, "Prompt cannot be empty"),
    ({"prompt": ["a", ""]}, "Prompt cannot be empty"),
    ({"prompt": ["a", 1]}, "prompt mixes"),
    ({"prompt": [[1], 2]}, "prompt mixes"),
    ({"prompt": [-1]}, "a token id is a whole number from 0 to"),
    ({"prompt": [2**40]}, "a token id is a whole number from 0 to"),
    ({"prompt": "a" * 4001}, "The input (at least 1000 tokens) is longer"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens must be positive"),
    ({"prompt": "a", "max_tokens": -5}, "max_tokens must be positive"),
    ({"prompt": "a", "max_tokens": "many"}, "`$.max_tokens`"),
    ({"prompt": "a", "max_tokens": 1.5}, "`$.max_tokens`"),
    ({"prompt": "a", "max_tokens": 3, "min_tokens": 4}, "min_new_tokens must be in"),
    ({"prompt": "a", "min_tokens": -1}, "min_new_tokens must be in"),
    ({"prompt": "a", "n": 0}, "n must be from 1 to 128"),
    ({"prompt": "a", "n": 129}, "n must be from 1 to 128"),
    ({"prompt": ["a"] * 65, "n": 2}, "at most 128 answers"),
    ({"prompt": "a", "temperature": -0.1}, "temperature must be in [0.0, inf]"),
    ({"prompt": "a", "top_p": 0}, "top_p must be in (0.0, 1.0]"),
    ({"prompt": "a", "top_p": 1.1}, "top_p must be in (0.0, 1.0]"),
    ({"prompt": "a", "top_k": 0}, "top_k must be -1"),
    ({"prompt": "a", "presence_penalty": 3}, "presence_penalty must be in"),
    ({"prompt": "a", "stop": ["x"] * 33}, "at most 32 strings"),
    ({"prompt": "a", "stop": 5}, "`$.stop`"),
    ({"prompt": "a", "stream": "perhaps"}, "`$.stream`"),
    ({"prompt": "a", "logprobs": 21}, "logprobs must be from 0 to 20"),
    ({"prompt": "a", "best_of": 3}, "best_of"),
    ({"prompt": "a", "rid": ["x"]}, "rid: a list"),
    ({"prompt": "a", "response_format": {"type": "structural_tag"}}, "`$.response_format.type`"),
    ({"prompt": "a", "response_format": {"type": "json_schema"}}, "json_schema has no schema"),
    ({"prompt": "a", "json_schema": "{"}, "JSON decode error"),
    ({"prompt": "a", "json_schema": "5"}, "Expected"),
    ({"prompt": "a", "regex": "a+"}, "by no other grammar"),
]


@pytest.mark.parametrize(("fields", "sentence"), REFUSED_COMPLETIONS)
def test_a_completion_that_cannot_be_served_names_its_fault(
    fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        completion(**fields)
    assert sentence in str(refused.value)


REFUSED_CHATS: list[tuple[dict[str, Any], str]] = [
    ({}, "missing required field `messages`"),
    ({"messages": []}, "Messages cannot be empty."),
    ({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 0}, "max_tokens is 0"),
    ({"messages": "hi"}, "`$.messages`"),
    ({"messages": [{"content": "hi"}]}, "missing required field `role`"),
    ({"messages": [{"role": "foo", "content": "hi"}]}, "messages[0].role is 'foo'"),
    ({"messages": [{"role": "user", "content": 5}]}, "`$.messages[0].content`"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content: a part of type 'image_url' is not supported, or is empty",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "smell", "text": "a"}]}]},
        "messages[0].content: a part of type 'smell' is not supported",
    ),
    ({"messages": [{"role": "user", "content": "a"}], "max_tokens": -1}, "max_new_tokens must be"),
    ({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2}, "requires logprobs"),
    ({"messages": [{"role": "user", "content": "a"}], "tool_choice": "required"}, "tool_choice"),
    ({"messages": [{"role": "user", "content": "a"}], "tool_choice": "some"}, "`$.tool_choice`"),
    (
        {
            "messages": [{"role": "user", "content": "a"}],
            "tools": [{"type": "function", "function": {"name": "a"}}],
            "tool_choice": {"type": "function", "function": {"name": "b"}},
        },
        "tool_choice names 'b', which is not among the tools",
    ),
]


@pytest.mark.parametrize(("fields", "sentence"), REFUSED_CHATS)
def test_a_chat_that_cannot_be_served_names_its_fault(
    fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        chat(**fields)
    assert sentence in str(refused.value)


REFUSED_NATIVES: list[tuple[dict[str, Any], str]] = [
    ({}, "Either text, input_ids or input_embeds should be provided."),
    ({"input_ids": []}, "input_ids cannot be empty."),
    ({"input_ids": [1, [2]]}, "input_ids mixes"),
    ({"text": "a", "sampling_params": {"max_new_tokens": 0}}, "max_new_tokens must be at least 1"),
    ({"text": "a", "sampling_params": [{}]}, "sampling_params: a list"),
    ({"text": "a", "sampling_params": {"ebnf": "a"}}, "by no other grammar"),
    ({"text": "a", "return_logprob": True}, "on OpenAI endpoints only"),
]


@pytest.mark.parametrize(("fields", "sentence"), REFUSED_NATIVES)
def test_a_native_request_that_cannot_be_served_names_its_fault(
    fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        native(**fields)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"json_schema": '{"const": 5}'}, "5"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"const": 1}}}},
            "1",
        ),
    ],
)
def test_a_completion_may_be_json(fields: dict[str, Any], answer: str | None) -> None:
    ask = completion(prompt="a", **fields)
    assert (None if ask.write is None else ask.write(1).text) == answer


def test_generate_takes_a_json_schema() -> None:
    ask = native(text="a", sampling_params={"json_schema": '{"enum": [[]]}'})
    assert written(ask).text == "[]"


def test_json_object_is_an_object() -> None:
    ask = completion(prompt="a", response_format={"type": "json_object"})
    assert isinstance(json.loads(written(ask).text), dict)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": ' + b"[" * 100_000,
        b'{"unknown": ' + b"[" * 100_000,
        b'{"prompt": "a"} {}',
    ],
)
def test_what_is_no_json_object_is_refused_by_its_schema(body: bytes) -> None:
    for parse in (parse_completion, parse_chat, parse_generate):
        with pytest.raises(BadRequest) as refused:
            parse(body, context_length=1000)
        assert refused.value.by_schema or parse is parse_generate


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for parse in (parse_completion, parse_chat, parse_generate, parse_messages):
        with pytest.raises(BadRequest, match="."):
            parse(body, context_length=1000)
    with pytest.raises(BadRequest, match="."):
        read_responses(body, 1000)
