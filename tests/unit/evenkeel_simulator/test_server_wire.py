"""Bodies and events byte by byte.

The expected texts have the shape that SGLang 0.5.23's own response models give: the same fields in the same
order, null where they write null, absent where they leave out.
"""

from __future__ import annotations

import asyncio
from array import array

import pytest
from evenkeel_simulator.server import error_bodies, wire
from evenkeel_simulator.server.ask import Ask
from evenkeel_simulator.server.bodies import BadRequest
from evenkeel_simulator.server.native import native_answer
from evenkeel_simulator.server.sampling import Sampling
from evenkeel_simulator.server.served import Finish, FinishType, ServedRequest
from evenkeel_simulator.server.speech import (
    AnswerLimits,
    Delta,
    WrittenAnswer,
    speak,
    speak_written,
)

HEAD = wire.Head(model="sim", created=17)
ASK = Ask(model="sim", prompts=(array("I", [1]),), sampling=Sampling(max_tokens=None))
STOP = Finish(FinishType.STOP, matched=2)
LENGTH = Finish(FinishType.LENGTH)
ABORT = Finish(FinishType.ABORT, message="gone")


def request(index: int = 0, *, finish: Finish | None = None, tokens: int = 2) -> ServedRequest:
    speech = speak(index, AnswerLimits(max_tokens=tokens, ignore_eos=True))
    return ServedRequest(
        id=f"r{index}",
        client="c",
        tenant="t",
        arrival_s=0,
        input_tokens=10,
        max_output_tokens=tokens,
        output_tokens=tokens,
        cached_tokens=8,
        prompt_ids=array("I", range(10)),
        speech=speech,
        index=index,
        page_size=4,
        news=asyncio.Event(),
        received_s=0,
        finish=finish,
    )


def data(event: bytes) -> str:
    text = event.decode()
    assert text.startswith("data: ") and text.endswith("\n\n")
    return text[6:-2]


def test_the_body_of_a_completion() -> None:
    text = request().speech.text()
    body = wire.completion_body(HEAD, [request(finish=STOP)], ASK)
    assert body.decode() == (
        '{"id":"r0","object":"text_completion","created":17,"model":"sim","choices":[{"index":0,'
        f'"text":"{text}","logprobs":null,"finish_reason":"stop","matched_stop":2}}],'
        '"usage":{"prompt_tokens":10,"total_tokens":12,"completion_tokens":2,'
        '"prompt_tokens_details":{"cached_tokens":8},"reasoning_tokens":0,'
        '"completion_tokens_details":null},"metadata":{"weight_version":"default"}}'
    )


def test_the_body_of_a_chat() -> None:
    text = request().speech.text()
    body = wire.chat_body(HEAD, [request(finish=LENGTH)], ASK)
    assert body.decode() == (
        '{"id":"r0","object":"chat.completion","created":17,"model":"sim","choices":[{"index":0,'
        f'"message":{{"role":"assistant","content":"{text}","reasoning_content":null}},'
        '"logprobs":null,"finish_reason":"length","matched_stop":null}],'
        '"usage":{"prompt_tokens":10,"total_tokens":12,"completion_tokens":2,'
        '"prompt_tokens_details":{"cached_tokens":8},"reasoning_tokens":0,'
        '"completion_tokens_details":null},"metadata":{"weight_version":"default"}}'
    )


def test_events_of_a_completion() -> None:
    text = request().speech.text(1)
    assert data(wire.completion_event(HEAD, request(), ASK, 1, begins=False)) == (
        '{"id":"r0","object":"text_completion","created":17,"model":"sim","choices":[{"index":0,'
        f'"text":"{text}",'
        '"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}'
    )
    assert data(wire.completion_usage_event(HEAD, [request()], n=1)) == (
        '{"id":"r0","object":"text_completion","created":17,"model":"sim","choices":[],'
        '"usage":{"prompt_tokens":10,"total_tokens":12,"completion_tokens":2,'
        '"prompt_tokens_details":{"cached_tokens":8},"reasoning_tokens":0}}'
    )


def test_events_of_a_chat() -> None:
    start = '{"id":"r0","object":"chat.completion.chunk","created":17,"model":"sim","choices":['
    plain = '"logprobs":null,"finish_reason":null,"matched_stop":null}]}'
    assert data(wire.chat_role_event(HEAD, request())) == (
        start
        + '{"index":0,"delta":{"reasoning_content":null,"role":"assistant","content":""},'
        + plain
    )
    assert data(wire.chat_event(HEAD, request(), Delta(" hi"))) == (
        start + '{"index":0,"delta":{"reasoning_content":null,"content":" hi"},' + plain
    )
    assert data(wire.chat_finish_event(HEAD, request(finish=STOP))) == (
        start + '{"index":0,"delta":{"reasoning_content":null},"logprobs":null,'
        '"finish_reason":"stop","matched_stop":2}]}'
    )
    assert data(wire.chat_usage_event(HEAD, [request()], n=1)) == (
        start + '],"usage":{"prompt_tokens":10,"total_tokens":12,"completion_tokens":2,'
        '"prompt_tokens_details":{"cached_tokens":8},"reasoning_tokens":0,'
        '"completion_tokens_details":null}}'
    )


def test_usage_counts_every_answer_and_every_prompt_once() -> None:
    requests = [request(index) for index in range(4)]
    assert wire.usage(requests, n=2, cache_report=True).prompt_tokens == 20
    assert wire.usage(requests, n=2, cache_report=True).completion_tokens == 8
    assert wire.usage(requests, n=4, cache_report=True).prompt_tokens == 10


def test_without_the_cache_report_cached_tokens_are_null() -> None:
    head = wire.Head(model="sim", created=17, cache_report=False)
    body = wire.completion_body(head, [request(finish=LENGTH)], ASK)
    assert '"prompt_tokens_details":null' in body.decode()
    assert "details" not in data(wire.completion_usage_event(head, [request()], n=1))


def test_usage_in_every_event_has_no_details() -> None:
    head = wire.Head(model="sim", created=17, continuous_usage=True)
    for event in (
        wire.completion_event(head, request(), ASK, 0, begins=True),
        wire.chat_event(head, request(), Delta("")),
    ):
        assert '"usage":{"prompt_tokens":10,"total_tokens":12,"completion_tokens":2,' in data(event)
        assert '"prompt_tokens_details":null' in data(event)


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        (None, None),
        (STOP, {"type": "stop", "matched": 2}),
        (LENGTH, {"type": "length", "length": 2}),
        (ABORT, {"type": "abort", "message": "gone"}),
    ],
)
def test_an_answer_of_generate(finish: Finish | None, reason: object) -> None:
    one = request(finish=finish)
    answer = native_answer(one, one.speech.text(), e2e_s=1.5 if finish else None)
    assert answer == {
        "text": one.speech.text(),
        "output_ids": one.speech.ids(),
        "meta_info": {
            "id": "r0",
            "finish_reason": reason,
            "prompt_tokens": 10,
            "weight_version": "default",
            "num_retractions": 0,
            "reasoning_tokens": 0,
            "completion_tokens": 2,
            "cached_tokens": 8,
            "dp_rank": 0,
            **({"e2e_latency": 1.5} if finish else {}),
        },
    }


def test_errors() -> None:
    assert error_bodies.openai_error(BadRequest("no"), 400) == (
        b'{"object":"error","message":"no","type":"BadRequestError","param":null,"code":400}'
    )
    by_schema = BadRequest("no", by_schema=True)
    for error_body in (error_bodies.openai_error, error_bodies.native_error):
        assert error_body(by_schema, 400) == (
            b'{"object":"error","message":"no","type":"Bad Request","param":null,"code":400}'
        )
    assert error_bodies.native_error(BadRequest("no"), 400) == b'{"error":{"message":"no"}}'
    assert error_bodies.anthropic_error(BadRequest("no"), 400) == (
        b'{"type":"error","error":{"type":"invalid_request_error","message":"no"}}'
    )
    assert error_bodies.responses_error(BadRequest("no"), 400) == (
        b'{"error":{"message":"no","type":"invalid_request_error","param":null,"code":400}}'
    )


def test_a_tool_call_of_a_chat() -> None:
    one = request(finish=STOP)
    one.speech = speak_written(
        1, AnswerLimits(max_tokens=99), WrittenAnswer(calls=(("look", '{"a": 1}'),))
    )
    one.output_tokens = one.speech.tokens
    call_id = one.call_id(0)
    body = wire.chat_body(HEAD, [one], ASK).decode()
    assert (
        '"message":{"role":"assistant","content":null,"reasoning_content":null,"tool_calls":'
        f'[{{"id":"{call_id}","index":0,"type":"function","function":{{"name":"look",'
        '"arguments":"{\\"a\\": 1}"}}]},"logprobs":null,"finish_reason":"tool_calls",'
        '"matched_stop":null}'
    ) in body
    first = data(wire.chat_event(HEAD, one, Delta("", 0, "look")))
    assert f'"tool_calls":[{{"id":"{call_id}","index":0,"type":"function"' in first
    more = data(wire.chat_event(HEAD, one, Delta('{"a"', 0)))
    assert (
        '"tool_calls":[{"id":null,"index":0,"type":"function","function":{"name":null,'
        '"arguments":"{\\"a\\""}}]'
    ) in more


def test_what_stays_in_the_cache_is_prompt_and_answer_but_for_the_last_token() -> None:
    one = request(tokens=7)  # 10 + 6 tokens are four pages
    pages = one.retained()
    assert [page.tokens for page in pages] == [4, 4, 4, 4]
    one.output_tokens = 6
    assert len(one.retained()) == 3
    one.output_tokens = 0
    assert len(one.retained()) == 2
