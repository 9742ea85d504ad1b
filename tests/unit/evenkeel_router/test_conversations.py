"""Messages and responses as chats: what the template gets, as SGLang 0.5.23 converts them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.prefix.prompts import Chat, read
from evenkeel_router.prefix.tokenised import Reason, UntokenisedError

TEXT = {"type": "text", "text": "Hi"}
MORE = {"type": "text", "text": "there"}
USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {"b": 1, "a": 2}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "42"}
CALL = {"type": "function_call", "call_id": "t1", "name": "f", "arguments": '{"b": 1, "a": 2}'}
OUTPUT = {"type": "function_call_output", "call_id": "t1", "output": "42"}
CALLED = {
    "id": "t1", "index": None, "type": "function",
    "function": {"name": "f", "arguments": {"b": 1, "a": 2}},
}  # fmt: skip
SYSTEM, USER = {"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}
SAID = {"role": "assistant", "content": "Yes"}
TOOL = {"role": "tool", "content": "42", "tool_call_id": "t1"}
SCHEMA = {"properties": {}, "type": "object"}


def chat(endpoint: Endpoint, **fields: Any) -> Chat:
    found = read(endpoint, msgspec.json.encode(fields))
    assert isinstance(found, Chat)
    return found


def reason(endpoint: Endpoint, **fields: Any) -> Reason:
    with pytest.raises(UntokenisedError) as caught:
        read(endpoint, msgspec.json.encode(fields))
    return caught.value.reason


@pytest.mark.parametrize(
    ("turns", "want"),
    [
        ([{"role": "user", "content": "Hi"}], [USER]),
        ([{"role": "user", "content": [TEXT]}], [USER]),
        ([{"role": "user", "content": [TEXT, MORE]}], [{"role": "user", "content": [TEXT, MORE]}]),
        (  # the result of a tool is a message of its own, in its place
            [USER, {"role": "assistant", "content": [TEXT, USE]}, {"role": "user", "content": [TEXT, RESULT, MORE]}],
            [USER, {"role": "assistant", "content": "Hi", "tool_calls": [CALLED]}, USER, TOOL,
             {"role": "user", "content": "there"}],
        ),
        (
            [USER, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [RESULT | {"content": [TEXT]}]}],
            [USER, {"role": "assistant", "content": "", "tool_calls": [CALLED]}, TOOL | {"content": "Hi"}],
        ),
        (
            [{"role": "user", "content": [RESULT | {"content": [TEXT, MORE]}, RESULT | {"content": []}]}],
            [TOOL | {"content": [TEXT, MORE]}, TOOL | {"content": ""}],
        ),
        ([USER, {"role": "assistant", "content": []}, USER], [USER, {"role": "assistant", "content": ""}, USER]),
        ([USER, SAID], [USER, {"role": "user", "content": "Yes"}]),
    ],
)  # fmt: skip
def test_turns_of_messages_become_messages_of_a_chat(
    turns: list[dict[str, Any]], want: list[dict[str, Any]]
) -> None:
    assert chat(Endpoint.MESSAGES, messages=turns).messages == want


@pytest.mark.parametrize(
    ("system", "want"),
    [
        ("S", [SYSTEM, USER]),
        ([TEXT, MORE], [{"role": "system", "content": "Hi\nthere"}, USER]),
        (" ", [USER]),
        ([], [USER]),
        (None, [USER]),
    ],
)
def test_a_system_prompt_comes_first(system: Any, want: list[dict[str, Any]]) -> None:
    assert chat(Endpoint.MESSAGES, messages=[USER], system=system).messages == want


def test_tools_of_messages_are_printed_as_functions() -> None:
    tools = [
        {"name": "f", "input_schema": {"properties": {}}},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "custom", "name": "g", "description": "D", "input_schema": SCHEMA, "strict": True},
    ]
    found = chat(Endpoint.MESSAGES, messages=[USER], tools=tools)
    assert found.tools == [
        {
            "type": "function",
            "function": {"name": "f", "description": "", "parameters": SCHEMA, "strict": False},
            "defer_loading": None,
        },
        {
            "type": "function",
            "function": {"name": "g", "description": "D", "parameters": SCHEMA, "strict": True},
            "defer_loading": None,
        },
    ]
    assert found.kind == "messages tools"
    one = chat(
        Endpoint.MESSAGES, messages=[USER], tools=tools, tool_choice={"type": "tool", "name": "g"}
    )
    assert [tool["function"]["name"] for tool in one.tools or ()] == ["g"]
    none = chat(Endpoint.MESSAGES, messages=[USER], tools=tools, tool_choice={"type": "none"})
    assert (none.tools, none.kind) == (None, "messages chat")


@pytest.mark.parametrize(
    ("want", "fields"),
    [
        (Reason.OPTIONS, {"thinking": {"type": "disabled"}}),
        (Reason.OPTIONS, {"output_config": {"effort": "low"}}),
        (Reason.OPTIONS, {"messages": [USER, SYSTEM]}),
        (Reason.OPTIONS, {"messages": [{"role": "assistant", "content": [{"type": "thinking"}]}]}),
        (Reason.OPTIONS, {"messages": [{"role": "assistant", "content": [RESULT]}]}),
        (Reason.OPTIONS, {"tools": [{"name": "f", "input_schema": {}, "defer_loading": True}]}),
        (Reason.MULTIMODAL, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
        (Reason.MULTIMODAL, {"messages": [{"role": "user", "content": [RESULT | {"content": [{"type": "image"}]}]}]}),
        (Reason.TEMPLATE, {"messages": 5}),
    ],
)  # fmt: skip
def test_what_depends_on_the_engine_is_matched_by_text(
    want: Reason, fields: dict[str, Any]
) -> None:
    assert reason(Endpoint.MESSAGES, **({"messages": [USER]} | fields)) is want


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ("Hi", [USER]),
        ([USER, SAID | {"id": "m1"}, USER], [USER, SAID, USER]),
        (
            [{"role": "user", "type": "message", "content": [{"type": "input_text", "text": "Hi"}]}],
            [{"role": "user", "content": [TEXT]}],
        ),
        (  # an answer and its calls are one message
            [USER, SAID, CALL, OUTPUT],
            [USER, SAID | {"tool_calls": [CALLED]}, TOOL],
        ),
        (
            [USER, CALL, SAID, OUTPUT | {"output": [{"type": "output_text", "text": "4"}, {"type": "input_text", "text": "2"}]}],
            [USER, SAID | {"tool_calls": [CALLED]}, TOOL],
        ),
        ([USER, SAID, SAID, USER], [USER, SAID | {"content": "Yes\n\nYes"}, USER]),
        (
            [USER, SAID, SAID | {"content": [{"type": "output_text", "text": "Hi"}]}, USER],
            [USER, SAID | {"content": [{"type": "text", "text": "Yes"}, TEXT]}, USER],
        ),
        (
            [CALL | {"arguments": "{"}],
            [{"role": "assistant", "content": "", "tool_calls": [CALLED | {"function": {"name": "f", "arguments": {}}}]}],
        ),
    ],
)  # fmt: skip
def test_items_of_a_response_become_messages_of_a_chat(
    given: Any, want: list[dict[str, Any]]
) -> None:
    last = {"role": "user", "content": "Hi"}
    if isinstance(given, list):  # else an answer at the end would become the user's
        given, want = [*given, last], [*want, last]
    assert chat(Endpoint.RESPONSES, input=given).messages == want
    with_system = chat(Endpoint.RESPONSES, input=given, instructions="S").messages
    assert with_system == [SYSTEM, *want]


def test_tools_of_a_response_are_printed_as_functions() -> None:
    tools = [
        {"type": "function", "parameters": SCHEMA, "name": "f"},
        {"type": "web_search"},
        {"type": "function", "name": "g", "strict": True},
    ]
    found = chat(Endpoint.RESPONSES, input="Hi", tools=tools)
    assert [tool["function"] for tool in found.tools or ()] == [
        {"name": "f", "description": None, "parameters": SCHEMA, "strict": False},
        {"name": "g", "description": None, "parameters": None, "strict": True},
    ]
    assert found.kind == "responses tools"
    for choice, want in (
        ({"type": "function", "name": "g"}, ["g"]),
        ({"type": "web_search"}, ["f", "g"]),
        ("none", []),
        ("required", ["f", "g"]),
    ):
        one = chat(Endpoint.RESPONSES, input="Hi", tools=tools, tool_choice=choice)
        assert [tool["function"]["name"] for tool in one.tools or ()] == want


def test_reasoning_of_a_response_is_the_templates_option() -> None:
    assert chat(Endpoint.RESPONSES, input="Hi").options == {}
    for reasoning, want in (({"effort": "none"}, "none"), ({}, "medium")):
        options = chat(Endpoint.RESPONSES, input="Hi", reasoning=reasoning).options
        assert options["reasoning_effort"] == want
        assert options["enable_thinking"] is (want != "none")


@pytest.mark.parametrize(
    ("want", "fields"),
    [
        (Reason.OPTIONS, {"input": [{"role": "developer", "content": "x"}]}),
        (Reason.OPTIONS, {"input": [USER, SYSTEM]}),
        (Reason.OPTIONS, {"input": [SYSTEM], "instructions": "S"}),
        (Reason.OPTIONS, {"input": [{"type": "reasoning", "summary": []}]}),
        (Reason.OPTIONS, {"tools": [{"type": "custom", "name": "f"}]}),
        (Reason.OPTIONS, {"text": {"format": {"type": "json_object"}}}),
        (Reason.MULTIMODAL, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
        (Reason.TEMPLATE, {"input": 5}),
    ],
)
def test_what_a_response_needs_of_the_engine_is_matched_by_text(
    want: Reason, fields: dict[str, Any]
) -> None:
    assert reason(Endpoint.RESPONSES, **({"input": "Hi"} | fields)) is want


@pytest.mark.parametrize(
    "endpoint", [Endpoint.RERANK, Endpoint.SCORE, Endpoint.CLASSIFY, Endpoint.TRANSCRIPTIONS]
)
def test_endpoints_without_a_prefix_cache_are_not_read(endpoint: Endpoint) -> None:
    assert reason(endpoint) is Reason.EMBEDDINGS
