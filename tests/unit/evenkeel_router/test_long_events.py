"""Events that are too long to be read in one go, in every dialect."""

from __future__ import annotations

import json

import pytest
from evenkeel_fairshare.fleet.contract import Usage
from evenkeel_router.api import openai
from evenkeel_router.api.errors import Dialect
from evenkeel_router.api.openai import EventScan
from evenkeel_router.api.streams import SCANS

from tests.support.apis import DELTA, DONE, RESPONSES_USAGE, STREAMS, TEXT, generated


def fed(scanner: EventScan, stream: bytes, size: int) -> list[bytes]:
    passed = []
    for at in range(0, len(stream), size):
        passed.append(scanner.feed(stream[at : at + size]))
        if scanner.broken is not None:
            break
    scanner.close()
    return passed


FILLING = b'"filling":"%b \\"usage\\":{\\"input_tokens\\":1}",' % (b"x" * 3000)
LONG_EVENTS = {
    Dialect.SGLANG: (
        STREAMS["/generate"][:2],
        b'data: {"text":"aaa",%b"meta_info":{"prompt_tokens":9,"finish_reason":{"type":"stop"},"input_token_logprobs":[%b],'
        b'"cached_tokens":4,"completion_tokens":3}}\n\n' % (FILLING, b"[-1.5,17,null]," * 300 + b"1"),
        [DONE],
        3,
    ),
    Dialect.RESPONSES: (
        STREAMS["/v1/responses"][:-1],
        b'event: response.completed\ndata: {"response":{%b"usage":%b},"type":"response.completed"}\n\n'
        % (FILLING, json.dumps(RESPONSES_USAGE).encode()),
        [],
        3,
    ),
    Dialect.ANTHROPIC: (
        STREAMS["/v1/messages"][:2],
        b'event: content_block_delta\ndata: {%b"delta":{"type":"text_delta","text":"a"}}\n\n' % FILLING,
        STREAMS["/v1/messages"][3:],
        3,
    ),
}  # fmt: skip
"""What comes before a long event, the event, what follows it, and how many of all events have content."""


@pytest.mark.parametrize("size", [1, 7, 500, 8000])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize("dialect", LONG_EVENTS)
def test_a_long_event_of_every_dialect_is_passed_on_as_it_comes(
    monkeypatch: pytest.MonkeyPatch, dialect: Dialect, newline: bytes, size: int
) -> None:
    monkeypatch.setattr(openai, "MAX_WHOLE_EVENT_BYTES", 700)
    before, long, after, content = LONG_EVENTS[dialect]
    stream = b"".join([*before, long, *after]).replace(b"\n", newline)
    scanner = SCANS[dialect](drops_usage=False, most_events=99, left=99)
    passed = fed(scanner, stream, size)
    assert b"".join(passed) == stream
    assert max(map(len, passed)) <= 701 + 2 * size
    assert (scanner.done, scanner.broken, scanner.failure) == (True, None, None)
    assert scanner.is_within is False
    assert scanner.usage == Usage(9, 4, 3)
    assert scanner.content_events == content


@pytest.mark.parametrize("name", [b"event: response.completed\n", b""])
def test_usage_that_a_long_event_has_twice_is_not_known(
    monkeypatch: pytest.MonkeyPatch, name: bytes
) -> None:
    monkeypatch.setattr(openai, "MAX_WHOLE_EVENT_BYTES", 700)
    forged = b'{"input_tokens":1,"output_tokens":0}'
    for tools, want in ((b"[]", Usage(9, 4, 3)), (b'[{"usage":%b}]' % forged, None)):
        event = b'%bdata: {"type":"response.completed","response":{"tools":%b,%b"usage":%b}}\n\n' % (
            name, tools, FILLING, json.dumps(RESPONSES_USAGE).encode(),
        )  # fmt: skip
        scanner = SCANS[Dialect.RESPONSES](drops_usage=False)
        fed(scanner, DELTA + event, 100)
        assert (scanner.done, scanner.usage) == (True, want)


@pytest.mark.parametrize(
    ("dialect", "event"),
    [
        (Dialect.OPENAI, b'data: {"error":{"message":"%b"}}\n\n'),
        (Dialect.OPENAI, b'data: {"object":"error","message":"%b"}\n\n'),
        (Dialect.SGLANG, b'data: {"error":{"message":"%b"}}\n\n'),
        (Dialect.RESPONSES, b'event: error\ndata: {"message":"%b"}\n\n'),
        (Dialect.RESPONSES, b'event: response.failed\ndata: {"response":{"error":"%b"}}\n\n'),
        (Dialect.ANTHROPIC, b'data: {"type":"error","error":{"message":"%b"}}\n\n'),
    ],
)
def test_a_long_error_is_an_error(
    monkeypatch: pytest.MonkeyPatch, dialect: Dialect, event: bytes
) -> None:
    monkeypatch.setattr(openai, "MAX_WHOLE_EVENT_BYTES", 700)
    scanner = SCANS[dialect](drops_usage=False)
    passed = fed(scanner, event % (b"x" * 3000), 100)
    assert b"".join(passed) == event % (b"x" * 3000)
    assert scanner.failed
    assert (scanner.begun, scanner.broken, scanner.content_events) == (False, None, 0)


@pytest.mark.parametrize("dialect", [Dialect.RESPONSES, Dialect.ANTHROPIC, Dialect.SGLANG])
def test_a_long_event_of_every_dialect_is_cut_beyond_the_bound_of_the_output(
    monkeypatch: pytest.MonkeyPatch, dialect: Dialect
) -> None:
    monkeypatch.setattr(openai, "MAX_WHOLE_EVENT_BYTES", 700)
    piece = {Dialect.RESPONSES: DELTA, Dialect.ANTHROPIC: TEXT, Dialect.SGLANG: generated(1)}[
        dialect
    ]
    long = piece.replace(b'"a"', b'"%b"' % (b"a" * 3000))
    scanner = SCANS[dialect](drops_usage=False, most_events=1, left=1)
    passed = fed(scanner, piece + long, 100)
    assert b"aaa" not in b"".join(passed)
    assert (scanner.cut, scanner.content_events) == (True, 1)


@pytest.mark.parametrize("begin", [b": ", b"id: ", b"error: ", b"event: "])
def test_a_long_line_without_data_breaks_the_stream(
    monkeypatch: pytest.MonkeyPatch, begin: bytes
) -> None:
    monkeypatch.setattr(openai, "MAX_WHOLE_EVENT_BYTES", 700)
    scanner = SCANS[Dialect.OPENAI](drops_usage=False)
    assert b"".join(fed(scanner, begin + b"x" * 3000, 100)) == b""
    assert scanner.broken == "an event of the replica's stream is too long and has no data"


def test_a_long_event_of_many_lines_is_passed_on_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "MAX_WHOLE_EVENT_BYTES", 700)
    event = b'data: {"choices":\ndata: [' + b'\ndata: {"text":"a"},' * 500 + b"{}]}\n\n"
    scanner = SCANS[Dialect.OPENAI](drops_usage=False)
    passed = fed(scanner, event + DONE, 100)
    assert b"".join(passed) == event + DONE
    assert max(map(len, passed)) <= 900
    assert (scanner.done, scanner.content_events) == (True, 1)
