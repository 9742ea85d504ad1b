"""Conversations over three APIs: one prompt, tools that are called and then not, answers in pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from evenkeel_contract.simulatedprompt import encode
from evenkeel_simulator.server.ask import Ask
from evenkeel_simulator.server.bodies import BadRequest
from evenkeel_simulator.server.chat import parse_chat
from evenkeel_simulator.server.conversation import AUDIO_TOKENS, IMAGE_TOKENS
from evenkeel_simulator.server.messages import count_tokens, parse_messages
from evenkeel_simulator.server.responses import read_responses
from evenkeel_simulator.server.speech import AnswerLimits, Speech, WrittenAnswer, speak_written
from evenkeel_simulator.server.tokens import END_TOKEN
from hypothesis import given
from hypothesis import strategies as st

CONTEXT = 10_000
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = {
    "chat": [{"type": "function", "function": {"name": "look", "parameters": PARAMETERS}}],
    "responses": [{"type": "function", "name": "look", "parameters": PARAMETERS}],
    "messages": [{"name": "look", "input_schema": PARAMETERS}],
}
IMAGE = "data:image/png;base64,aGVsbG8="

# The same conversation in the words of each API.
CHAT = [
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": [{"type": "text", "text": "what is"},
                                 {"type": "image_url", "image_url": {"url": IMAGE}}]},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
    {"role": "assistant", "content": " The cat"},
    {"role": "user", "content": "and now?"},
]  # fmt: skip
RESPONSES = [
    {"role": "user", "content": [{"type": "input_text", "text": "what is"},
                                 {"type": "input_image", "image_url": IMAGE}]},
    {"type": "reasoning", "id": "r", "summary": []},
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "a cat"},
    {"type": "message", "role": "assistant", "id": "m",
     "content": [{"type": "output_text", "text": " The cat", "annotations": []}]},
    {"role": "user", "content": "and now?"},
]  # fmt: skip
MESSAGES = [
    {"role": "user", "content": [{"type": "text", "text": "what is"},
                                 {"type": "image", "source": {
                                     "type": "base64", "media_type": "image/png", "data": "aGVsbG8="}}]},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "tool_use", "id": "c1", "name": "look", "input": {}}]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "a cat"}]}]},
    {"role": "assistant", "content": [{"type": "text", "text": " The cat"}]},
    {"role": "user", "content": "and now?"},
]  # fmt: skip


def chat(messages: Any = CHAT, **fields: Any) -> Ask:
    body = json.dumps({"messages": messages, **fields})
    return parse_chat(body.encode(), context_length=CONTEXT)


def responses(items: Any = RESPONSES, instructions: str | None = "be kind", **fields: Any) -> Ask:
    body = json.dumps({"input": items, "instructions": instructions, **fields})
    return read_responses(body.encode(), CONTEXT)[0]


def messages(some: Any = MESSAGES, system: Any = "be kind", **fields: Any) -> Ask:
    body = {"model": "m", "max_tokens": 50, "messages": some, "system": system, **fields}
    return parse_messages(json.dumps(body).encode(), context_length=CONTEXT)


def calls(ask: Ask, seed: int = 1) -> list[str]:
    """Names of the tools that an answer calls; none where it is text."""
    return [] if ask.write is None else [name for name, _ in ask.write(seed).calls]


def test_a_conversation_has_the_same_prompt_over_every_api() -> None:
    assert responses().prompts == chat().prompts
    assert messages().prompts == chat().prompts
    blocks = [{"type": "text", "text": "be kind"}]
    assert messages(system=blocks).prompts == chat().prompts


def test_the_prompt_of_each_turn_extends_the_one_before() -> None:
    for whole, ask in ((CHAT, chat), (RESPONSES, responses), (MESSAGES, messages)):
        before = ask(whole[:-2]).prompts[0]
        after = ask(whole).prompts[0]
        answer = encode(" The cat")
        assert after[: len(before) + len(answer)] == before + answer


def test_a_last_message_of_the_assistant_is_handled_as_in_sglang() -> None:
    turns = [{"role": "USER", "content": "hi"}, {"role": "assistant", "content": " The"}]
    as_user = [{"role": "User", "content": "hi"}, {"role": "user", "content": " The"}]
    assert chat(turns).prompts == chat(as_user).prompts
    continued = chat(turns, continue_final_message=True).prompts[0]
    assert continued == chat(turns[:1]).prompts[0] + encode(" The")


def test_parts_of_a_tools_output_are_joined_as_in_sglang() -> None:
    parts = [{"type": "input_text", "text": text} for text in ("a ", "cat")]
    result = {"type": "function_call_output", "call_id": "c1", "output": parts}
    assert responses([*RESPONSES[:3], result]).prompts == responses(RESPONSES[:4]).prompts


def test_tools_and_tool_calls_are_no_part_of_the_prompt() -> None:
    assert chat(tools=TOOLS["chat"]).prompts == chat().prompts


def test_an_image_and_a_sound_have_a_fixed_number_of_tokens() -> None:
    def prompt(part: dict[str, Any]) -> list[int]:
        return chat([{"role": "user", "content": [part]}]).prompts[0].tolist()

    bare = len(prompt({"type": "text", "text": ""}))
    image = prompt({"type": "image_url", "image_url": {"url": IMAGE, "detail": "low"}})
    assert len(image) == bare + IMAGE_TOKENS
    assert prompt({"type": "image_url", "image_url": IMAGE}) == image
    other = prompt({"type": "image_url", "image_url": {"url": "https://example.com/b.png"}})
    assert len(other) == len(image) and other != image
    sound = {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}
    assert len(prompt(sound)) == bare + AUDIO_TOKENS


def test_tokens_are_counted_as_the_prompt_has_them() -> None:
    body = {"model": "m", "messages": MESSAGES, "system": "be kind", "tools": TOOLS["messages"]}
    answer = json.loads(count_tokens(json.dumps(body).encode(), context_length=CONTEXT))
    assert answer == {"input_tokens": len(chat().prompts[0])}


USER_LAST = [{"role": "user", "content": "go"}]


def test_tools_are_called_while_the_newest_turn_has_no_result() -> None:
    for ask, tools in ((chat, "chat"), (responses, "responses"), (messages, "messages")):
        assert calls(ask(USER_LAST, tools=TOOLS[tools])) == ["look"]
    result_last = CHAT[:4]
    assert calls(chat(result_last, tools=TOOLS["chat"])) == []
    assert calls(responses(RESPONSES[:4], tools=TOOLS["responses"])) == []
    assert calls(messages(MESSAGES[:3], tools=TOOLS["messages"])) == []
    reminder = [*result_last, {"role": "user", "content": "keep on"}]
    assert calls(chat(reminder, tools=TOOLS["chat"])) == []
    assert calls(chat(tools=TOOLS["chat"])) == ["look"]  # a new question after an answer


def test_tool_choice_decides() -> None:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": PARAMETERS}}
        for name in ("look", "ask")
    ]
    named = {"type": "function", "function": {"name": "ask"}}
    assert calls(chat(CHAT[:4], tools=tools, tool_choice="required"))
    assert calls(chat(tools=tools, tool_choice="none")) == []
    assert calls(chat(CHAT[:4], tools=tools, tool_choice=named)) == ["ask"]
    assert calls(
        messages(tools=TOOLS["messages"], tool_choice={"type": "tool", "name": "look"})
    ) == ["look"]
    assert calls(messages(tools=TOOLS["messages"], tool_choice={"type": "none"})) == []
    named = {"type": "function", "name": "look"}
    assert calls(responses(RESPONSES[:4], tools=TOOLS["responses"], tool_choice=named)) == ["look"]
    by_seed = [calls(chat(tools=tools), seed) for seed in range(40)]
    assert {len(some) for some in by_seed} == {1, 2}
    alone = [calls(chat(tools=tools, parallel_tool_calls=False), seed) for seed in range(40)]
    assert {len(some) for some in alone} == {1}


def test_a_schema_for_the_answer_waits_until_tools_were_called() -> None:
    format_ = {"type": "json_schema", "name": "a", "schema": {"const": 5}}
    ask = responses(USER_LAST, tools=TOOLS["responses"], text={"format": format_})
    assert calls(ask) == ["look"]
    ask = responses(RESPONSES[:4], tools=TOOLS["responses"], text={"format": format_})
    assert ask.write is not None and ask.write(1).text == "5"
    ask = messages(output_config={"format": {"type": "json_schema", "schema": {"const": 6}}})
    assert ask.write is not None and ask.write(1).text == "6"


REFUSED = [
    (lambda: chat([]), "Messages cannot be empty."),
    (lambda: messages(max_tokens=0), "max_tokens must be positive"),
    (lambda: messages(tool_choice={"type": "any"}), "there are no tools"),
    (
        lambda: messages([{"role": "user", "content": [{"type": "document", "source": {}}]}]),
        "a block of type 'document' is not supported",
    ),
    (lambda: responses(previous_response_id="resp_1"), "previous_response_id"),
    (lambda: responses(background=True), "background"),
    (lambda: responses([{"type": "computer_call"}]), "input[0]: Unsupported Responses API input"),
    (
        lambda: responses([{"role": "user", "content": [{"type": "input_file"}]}]),
        "input[0].content: a part of type 'input_file' is not supported",
    ),
    (lambda: responses(text={"format": {"type": "json_schema"}}), "text.format"),
]


@pytest.mark.parametrize(("ask", "sentence"), REFUSED)
def test_what_cannot_be_served_is_refused_with_a_sentence(ask: Any, sentence: str) -> None:
    with pytest.raises(BadRequest) as refused:
        ask()
    assert sentence in str(refused.value)


# Answers in pieces

CALLED = WrittenAnswer(calls=(("look", '{"city": "Köln"}'), ("ask", "{}")))


def pieces(speech: Speech, steps: list[int]) -> tuple[str, dict[int, tuple[str, str]]]:
    """Text, and (name, arguments) by call, from deltas over `steps` tokens each."""
    text, found = "", {}
    start = 0
    for step in [*steps, speech.tokens]:
        end = min(start + step, speech.tokens)
        for delta in speech.deltas(start, end):
            if delta.call is None:
                text += delta.text
                continue
            name, arguments = found.get(delta.call, (delta.name, ""))
            found[delta.call] = (name, arguments + delta.text)
        start = end
    return text, found


@given(st.lists(st.integers(1, 5), max_size=20))
def test_an_answer_has_the_same_parts_however_its_tokens_are_cut(steps: list[int]) -> None:
    speech = speak_written(1, AnswerLimits(max_tokens=1000), CALLED)
    assert pieces(speech, steps) == ("", {0: CALLED.calls[0], 1: CALLED.calls[1]})
    assert speech.ids()[-1] == END_TOKEN and len(speech.ids()) == speech.tokens
    written = WrittenAnswer(text='{"a": "ü and 1234567"}')
    assert pieces(speak_written(1, AnswerLimits(max_tokens=1000), written), steps) == (
        written.text,
        {},
    )


@given(st.integers(1, 40))
def test_max_tokens_cut_an_answer_at_that_token(limit: int) -> None:
    whole = speak_written(1, AnswerLimits(max_tokens=1000), CALLED)
    cut = speak_written(1, AnswerLimits(max_tokens=limit), CALLED)
    assert cut.tokens == min(limit, whole.tokens)
    assert cut.ids() == whole.ids()[:limit]
    assert (cut.matched == END_TOKEN) == (limit >= whole.tokens)
    assert list(cut.deltas()) == list(whole.deltas(0, cut.tokens))


def test_a_stop_string_cuts_json() -> None:
    speech = speak_written(
        1, AnswerLimits(max_tokens=99, stop=('"b"',)), WrittenAnswer(text='{"a": 1, "b": 2}')
    )
    assert (speech.text(), speech.matched) == ('{"a": 1, ', '"b"')
    assert len(speech.ids()) == speech.tokens
