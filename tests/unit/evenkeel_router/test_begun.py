"""When an answer has begun, in each dialect: with its first content, not with what comes before (R19)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from evenkeel_router.api.errors import Dialect
from evenkeel_router.api.openai import EventScan
from evenkeel_router.api.streams import SCANS

DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"


def data(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def named(name: str, **fields: Any) -> bytes:
    return b"event: " + name.encode() + b"\n" + data(type=name, **fields)


def chat(**delta: Any) -> bytes:
    return data(choices=[{"index": 0, "delta": delta, "finish_reason": None}], usage=None)


def text(given: str) -> bytes:
    return data(choices=[{"index": 0, "text": given}], usage=None)


def generated(given: str, **more: Any) -> bytes:
    return data(text=given, meta_info={"finish_reason": None, "completion_tokens": 0}, **more)


OPENINGS = [
    (Dialect.OPENAI, COMMENT),
    (Dialect.OPENAI, chat(role="assistant", content="")),
    (Dialect.OPENAI, chat(content="")),
    (Dialect.OPENAI, chat(content=None, reasoning_content=None, tool_calls=None)),
    (Dialect.OPENAI, chat(tool_calls=[])),
    (Dialect.OPENAI, text("")),
    (Dialect.OPENAI, data(choices=[], prompt_filter_results=[{"index": 0}])),
    (Dialect.OPENAI, data(object="chat.completion.chunk")),
    (Dialect.OPENAI, data(choices=[{"delta": {"role": "assistant"}}], usage={"prompt_tokens": 5})),
    (Dialect.SGLANG, COMMENT),
    (Dialect.SGLANG, generated("")),
    (Dialect.SGLANG, generated("", output_ids=[])),
    (Dialect.RESPONSES, COMMENT),
    (Dialect.RESPONSES, named("response.created", response={"id": "r", "status": "in_progress"})),
    (Dialect.RESPONSES, named("response.in_progress", response={"output": []})),
    (Dialect.RESPONSES, named("response.output_item.added", item={"type": "message", "content": []})),
    (Dialect.RESPONSES, named("response.content_part.added", part={"type": "output_text", "text": ""})),
    (Dialect.RESPONSES, named("response.output_text.delta", delta="")),
    (Dialect.ANTHROPIC, COMMENT),
    (Dialect.ANTHROPIC, named("message_start", message={"usage": {"input_tokens": 5, "output_tokens": 1}})),
    (Dialect.ANTHROPIC, named("ping")),
    (Dialect.ANTHROPIC, named("content_block_start", content_block={"type": "text", "text": ""})),
    (Dialect.ANTHROPIC, named("content_block_start", content_block={"type": "thinking", "thinking": "", "signature": ""})),
    (Dialect.ANTHROPIC, named("content_block_delta", delta={"type": "text_delta", "text": ""})),
    (Dialect.AUDIO, data(choices=[{"delta": {"content": ""}}])),
]  # fmt: skip
CONTENTS = [
    (Dialect.OPENAI, chat(content="a")),
    (Dialect.OPENAI, chat(role="assistant", content="a")),
    (Dialect.OPENAI, chat(reasoning_content="a")),
    (Dialect.OPENAI, chat(reasoning="a")),
    (Dialect.OPENAI, chat(tool_calls=[{"index": 0, "function": {"name": "f"}}])),
    (Dialect.OPENAI, chat(refusal="no")),
    (Dialect.OPENAI, text(" ")),
    (Dialect.OPENAI, data(choices=[{"text": ""}, {"text": "b"}])),
    (Dialect.SGLANG, generated("a")),
    (Dialect.SGLANG, generated("", output_ids=[5])),
    (Dialect.RESPONSES, named("response.output_text.delta", delta="a")),
    (Dialect.RESPONSES, named("response.reasoning_text.delta", delta="a")),
    (Dialect.RESPONSES, named("response.function_call_arguments.delta", delta="{")),
    (Dialect.RESPONSES, named("response.output_item.added", item={"type": "function_call", "name": "f"})),
    (Dialect.ANTHROPIC, named("content_block_delta", delta={"type": "text_delta", "text": "a"})),
    (Dialect.ANTHROPIC, named("content_block_delta", delta={"type": "thinking_delta", "thinking": "a"})),
    (Dialect.ANTHROPIC, named("content_block_delta", delta={"type": "input_json_delta", "partial_json": "{"})),
    (Dialect.ANTHROPIC, named("content_block_start", content_block={"type": "tool_use", "id": "t", "name": "f", "input": {}})),
    (Dialect.AUDIO, data(type="transcript.text.delta", delta="a")),
    (Dialect.AUDIO, data(choices=[{"delta": {"content": "a"}}])),
]  # fmt: skip


def scan(dialect: Dialect) -> EventScan:
    return SCANS[dialect](drops_usage=False)


@pytest.mark.parametrize(("dialect", "event"), OPENINGS)
def test_what_has_no_content_begins_no_answer(dialect: Dialect, event: bytes) -> None:
    scanner = scan(dialect)
    assert scanner.feed(event) == event
    assert scanner.feed(event * 2) == event * 2
    assert (scanner.begun, scanner.output_tokens, scanner.broken) == (False, 0, None)


@pytest.mark.parametrize(("dialect", "event"), CONTENTS)
def test_the_first_content_begins_the_answer(dialect: Dialect, event: bytes) -> None:
    for opening in [b"", *(given for of, given in OPENINGS if of is dialect)]:
        scanner = scan(dialect)
        scanner.feed(opening + event)
        assert scanner.begun


ENDS = [
    (Dialect.OPENAI, data(choices=[{"delta": {}, "finish_reason": "stop"}]) + DONE),
    (Dialect.OPENAI, data(choices=[], usage={"prompt_tokens": 5, "completion_tokens": 0}) + DONE),
    (Dialect.OPENAI, data(choices=[{"text": "", "finish_reason": "length"}]) + DONE),
    (Dialect.SGLANG, data(text="", meta_info={"finish_reason": {"type": "length"}}) + DONE),
    (Dialect.RESPONSES, named("response.completed", response={"output": []})),
    (Dialect.RESPONSES, named("response.incomplete", response={"output": []})),
    (Dialect.ANTHROPIC, named("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 0})
     + named("message_stop")),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "end"), ENDS)
def test_an_answer_without_content_begins_with_its_end(dialect: Dialect, end: bytes) -> None:
    scanner = scan(dialect)
    assert scanner.feed(COMMENT + end) == COMMENT + end
    scanner.close()
    assert (scanner.begun, scanner.done, scanner.broken, scanner.failed) == (
        True,
        True,
        None,
        False,
    )


@pytest.mark.parametrize("dialect", [Dialect.OPENAI, Dialect.SGLANG, Dialect.ANTHROPIC])
def test_an_empty_stream_never_begins(dialect: Dialect) -> None:
    end = named("message_stop") if dialect is Dialect.ANTHROPIC else DONE
    scanner = scan(dialect)
    scanner.feed(b"".join(given for of, given in OPENINGS if of is dialect) + end)
    scanner.close()
    assert (scanner.begun, scanner.done, scanner.broken) == (False, True, None)


FAILURES = [
    (Dialect.OPENAI, data(error={"message": "no"})),
    (Dialect.OPENAI, data(id="x", error={"message": "no"})),
    (Dialect.OPENAI, b'data: { "error" : {"message": "no"}}\n\n'),
    (Dialect.OPENAI, data(error="no", error_type="overloaded")),
    (Dialect.OPENAI, data(object="error", message="no", code=400)),
    (Dialect.OPENAI, b'event: error\ndata: {"message":"no"}\n\n'),
    (Dialect.OPENAI, b'error: {"message":"no","code":500}\n\n'),
    (Dialect.OPENAI, data(detail="no")),
    (Dialect.SGLANG, data(error={"message": "no"})),
    (Dialect.RESPONSES, named("error", message="no")),
    (Dialect.RESPONSES, data(error={"message": "no"})),
    (Dialect.RESPONSES, named("response.failed", response={"error": {"message": "no"}})),
    (Dialect.ANTHROPIC, named("error", error={"type": "api_error", "message": "no"})),
    (Dialect.ANTHROPIC, data(error={"message": "no"})),
]


@pytest.mark.parametrize(("dialect", "event"), FAILURES)
@pytest.mark.parametrize("begun", [True, False])
def test_an_error_is_found_in_every_shape_that_engines_use(
    dialect: Dialect, event: bytes, begun: bool
) -> None:
    scanner = scan(dialect)
    content = next(given for of, given in CONTENTS if of is dialect) if begun else b""
    scanner.feed(content + event)
    scanner.close()
    assert scanner.failure is not None
    assert (scanner.failure.message, scanner.begun, scanner.broken) == ("no", begun, None)


def test_an_aborted_answer_of_generate_is_an_error() -> None:
    reason = {"type": "abort", "message": "no", "status_code": 503}
    scanner = scan(Dialect.SGLANG)
    scanner.feed(data(text="", meta_info={"finish_reason": reason}) + DONE)
    assert scanner.failure is not None
    assert (scanner.failure.status, scanner.failure.message) == (503, "no")


@pytest.mark.parametrize("reason", [7, ["abort"], {"type": ["abort"]}, {"type": {}}])
def test_a_reason_of_an_unknown_shape_is_no_failure(reason: object) -> None:
    scanner = scan(Dialect.SGLANG)
    scanner.feed(data(text="a", meta_info={"finish_reason": reason}) + DONE)
    scanner.close()
    assert (scanner.begun, scanner.failure, scanner.broken) == (True, None, None)


def test_usage_in_every_event_ends_no_answer() -> None:
    """As engines send it with `continuous_usage_stats`."""
    last = {"choices": [{"text": "", "finish_reason": "stop"}], "usage": {"prompt_tokens": 5}}
    for events in ([], [data(choices=[{"text": "a"}], usage={"prompt_tokens": 5}), data(**last)]):
        scanner = EventScan(drops_usage=True, continuous=True)
        scanner.feed(OPENINGS[-1][1] + b"".join(events))
        scanner.close()
        assert scanner.broken == "the replica's stream ended before its last event"


def test_an_answer_of_generate_ends_with_all_its_sequences() -> None:
    def of(index: int, reason: object) -> bytes:
        return data(text="a", index=index, meta_info={"finish_reason": reason})

    for reason, broken in ((None, True), ({"type": "length"}, False)):
        scanner = scan(Dialect.SGLANG)
        scanner.feed(of(0, {"type": "stop"}) + of(1, reason))
        scanner.close()
        assert (scanner.broken is not None) == broken


@pytest.mark.parametrize(
    ("dialect", "opening", "content"),
    [
        (Dialect.OPENAI, text(""), text("a")),
        (Dialect.SGLANG, generated(""), generated("a")),
        (
            Dialect.RESPONSES,
            named("response.output_text.delta", delta=""),
            named("response.output_text.delta", delta="a"),
        ),
    ],
)
def test_what_comes_before_the_first_content_uses_up_no_output(
    dialect: Dialect, opening: bytes, content: bytes
) -> None:
    scanner = SCANS[dialect](drops_usage=True, most_events=1, left=1)
    assert scanner.feed(opening * 9 + content) == opening * 9 + content
    assert (scanner.output_tokens, scanner.cut) == (1, False)
    assert content not in scanner.feed(content)
    assert (scanner.output_tokens, scanner.cut) == (1, True)
