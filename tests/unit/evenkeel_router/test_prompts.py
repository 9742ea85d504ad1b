"""What of a request an engine would tokenise."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.prefix.prompts import Chat, Prompts, for_template, read
from evenkeel_router.prefix.tokenised import Reason, UntokenisedError


def chat(**fields: Any) -> Chat:
    found = read(Endpoint.CHAT, msgspec.json.encode(fields))
    assert isinstance(found, Chat)
    return found


def reason(endpoint: Endpoint, **fields: Any) -> Reason:
    with pytest.raises(UntokenisedError) as caught:
        read(endpoint, msgspec.json.encode(fields))
    return caught.value.reason


def user(content: Any = "hi") -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("prompt", "want"),
    [
        ("hi", ("hi",)),
        (["one", "two"], ("one", "two")),
        ([1, 2, 3], ([1, 2, 3],)),
        ([[1], [2, 3]], ([1], [2, 3])),
    ],
)
def test_prompts_are_texts_or_token_ids(prompt: Any, want: Any) -> None:
    body = msgspec.json.encode({"model": "m", "prompt": prompt})
    assert read(Endpoint.COMPLETIONS, body) == Prompts(want)


def test_generate_names_its_prompts_otherwise() -> None:
    assert read(Endpoint.GENERATE, b'{"text": "hi", "lora_path": null}') == Prompts(("hi",))
    assert read(Endpoint.GENERATE, b'{"input_ids": [[1, 2]]}') == Prompts(([1, 2],))


def test_a_message_is_what_the_engine_makes_of_it() -> None:
    call = {"id": "c1", "function": {"name": "add", "arguments": '{"b": 1, "a": [2]}'}}
    found = chat(
        messages=[
            {"role": "System", "content": None, "name": "boss", "colour": "red"},
            user() | {"name": "dropped"},
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
            {"role": "tool", "content": [{"type": "text", "text": "3"}], "tool_call_id": "c1"},
        ]
    )
    function = {"name": "add", "arguments": {"b": 1, "a": [2]}}
    assert found.messages == [
        {"role": "system", "content": "", "name": "boss"},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "c1", "index": None, "type": "function", "function": function}],
        },
        {"role": "tool", "content": [{"type": "text", "text": "3"}], "tool_call_id": "c1"},
    ]
    assert found.kind == "chat"


def test_parts_are_joined_by_blanks_unless_the_template_reads_them() -> None:
    parts = [
        {"type": "text", "text": "a"},
        {"type": "thinking", "text": "x"},
        {"type": "text", "text": "b"},
    ]
    found = chat(messages=[user(parts), {"role": "tool", "content": parts, "tool_call_id": "1"}])
    kept = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert [m["content"] for m in for_template(found, keeps_parts=False)] == ["a b", "a b"]
    assert [m["content"] for m in for_template(found, keeps_parts=True)] == [kept, "a b"]


def test_a_continued_answer_follows_the_template_and_others_become_the_users() -> None:
    messages = [user(), {"role": "assistant", "content": "Once upon"}]
    continued = chat(messages=messages, continue_final_message=True)
    assert (continued.messages, continued.answer_begins) == ([user()], "Once upon")
    turned = chat(messages=messages)
    assert (turned.messages, turned.answer_begins) == ([user(), user("Once upon")], "")


def test_a_tool_keeps_the_clients_order_and_names_what_it_left_out() -> None:
    tools = [
        {"type": "function", "function": {"parameters": {"z": 1, "a": 2}, "name": "f", "x": 1}}
    ]
    found = chat(messages=[user()], tools=tools)
    assert found.tools is not None
    assert msgspec.json.encode(found.tools) == (
        b'[{"type":"function","function":{"parameters":{"z":1,"a":2},"name":"f","description":null},'
        b'"defer_loading":null}]'
    )
    assert found.kind == "tools"
    strict = {"function": {"name": "f", "strict": True, "description": "d"}}
    (tool,) = chat(messages=[user()], tools=[strict]).tools or []
    assert list(tool["function"]) == ["name", "strict", "description", "parameters"]


@pytest.mark.parametrize(
    ("choice", "want"),
    [
        ("auto", ["f", "g"]),
        ("none", None),
        (None, ["f", "g"]),
        ({"type": "function", "function": {"name": "g"}}, ["g"]),
        ({"type": "function", "function": {"name": "h"}}, None),
    ],
)
def test_the_choice_of_tools_says_which_are_shown(choice: Any, want: list[str] | None) -> None:
    tools = [{"function": {"name": "f"}}, {"function": {"name": "g"}}]
    found = chat(messages=[user()], tools=tools, tool_choice=choice).tools
    assert want == (None if found is None else [tool["function"]["name"] for tool in found])


def test_options_of_the_template_and_the_effort_of_reasoning_reach_it() -> None:
    assert chat(messages=[user()]).options == {}
    given = chat(messages=[user()], chat_template_kwargs={"enable_thinking": False, "x": 1})
    assert given.options == {"enable_thinking": False, "x": 1}
    effort = chat(messages=[user()], reasoning_effort="none", chat_template_kwargs={"thinking": 1})
    assert effort.options == {"reasoning_effort": "none", "thinking": 1, "enable_thinking": False}


@pytest.mark.parametrize(
    ("want", "fields"),
    [
        (Reason.MULTIMODAL, {"messages": [user([{"type": "image_url", "image_url": {"url": "x"}}])]}),
        (Reason.OPTIONS, {"messages": [user([{"type": "tool_reference", "name": "x"}])]}),
        (Reason.OPTIONS, {"messages": [user()], "lora_path": "french"}),
        (Reason.OPTIONS, {"messages": [user()], "reasoning": {"effort": "high"}}),
        (Reason.OPTIONS, {"messages": [user()], "chat_template_kwargs": {"chat_template": "x"}}),
        (Reason.OPTIONS, {"messages": [{"role": "system", "content": "", "tools": [1]}]}),
        (Reason.OPTIONS, {"messages": [user()], "tools": [{"function": {"name": "f", "defer_loading": True}}]}),
        (Reason.TEMPLATE, {"messages": [{"role": "assistant", "content": "", "tool_calls": [
            {"function": {"name": "f", "arguments": "[1"}}]}]}),
    ],
)  # fmt: skip
def test_what_is_not_modelled_is_left_to_its_text(want: Reason, fields: dict[str, Any]) -> None:
    assert reason(Endpoint.CHAT, **fields) is want


def test_other_endpoints_say_why_too() -> None:
    assert reason(Endpoint.EMBEDDINGS, input="x") is Reason.EMBEDDINGS
    assert reason(Endpoint.COMPLETIONS, prompt="x", suffix="y") is Reason.OPTIONS
    assert reason(Endpoint.GENERATE, text="x", image_data="http://y") is Reason.MULTIMODAL
    assert reason(Endpoint.GENERATE, text=[]) is Reason.TEMPLATE
    assert reason(Endpoint.GENERATE, text=5) is Reason.TEMPLATE
