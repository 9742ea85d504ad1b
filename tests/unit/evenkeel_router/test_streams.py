"""Streams of named events, cut anywhere: OpenAI's responses and Anthropic's messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from evenkeel_fairshare.fleet.contract import Usage
from evenkeel_router.api.errors import Dialect, Outcome, Refusal
from evenkeel_router.api.openai import EventScan
from evenkeel_router.api.streams import SCANS

REFUSAL = Refusal(Outcome.REPLICA_FAILED, "It broke.", code="replica_failed")


def event(name: str, **fields: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name} | fields)}\n\n".encode()


STARTED = event(
    "message_start", message={"usage": {"input_tokens": 5, "cache_read_input_tokens": 4, "output_tokens": 0}}
)  # fmt: skip
BLOCK = event("content_block_start", index=0, content_block={"type": "text", "text": ""})
TEXT = event("content_block_delta", index=0, delta={"type": "text_delta", "text": 'event: "x"'})
CLOSED = event("content_block_stop", index=0)
COUNTED = event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 7})
STOPPED = event("message_stop")
MESSAGES = STARTED + BLOCK + event("ping") + TEXT + TEXT + CLOSED + COUNTED + STOPPED

CREATED = event("response.created", sequence_number=0, response={"usage": None})
DELTA = event("response.output_text.delta", sequence_number=1, delta='"usage": 3')
REPORTED = {"input_tokens": 9, "output_tokens": 7, "input_tokens_details": {"cached_tokens": 4}}
COMPLETED = event("response.completed", sequence_number=3, response={"usage": REPORTED})
RESPONSES = CREATED + DELTA + DELTA + COMPLETED

STREAMS = [(Dialect.ANTHROPIC, MESSAGES), (Dialect.RESPONSES, RESPONSES)]


def scan(dialect: Dialect) -> EventScan:
    return SCANS[dialect](drops_usage=False)


@pytest.mark.parametrize(("dialect", "stream"), STREAMS)
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_a_stream_cut_at_every_byte_comes_out_the_same(
    dialect: Dialect, stream: bytes, newline: bytes
) -> None:
    stream = stream.replace(b"\n", newline)
    for cut in range(len(stream) + 1):
        scanner = scan(dialect)
        passed = scanner.feed(stream[:cut]) + scanner.feed(stream[cut:])
        scanner.close()
        assert passed == stream
        assert (scanner.done, scanner.broken, scanner.failed) == (True, None, False)
        assert (scanner.usage, scanner.events) == (Usage(9, 4, 7), 2)


@pytest.mark.parametrize(("dialect", "stream"), STREAMS)
def test_an_event_without_its_line_is_known_by_its_type(dialect: Dialect, stream: bytes) -> None:
    lines = stream.split(b"\n")
    nameless = b"\n".join(line for line in lines if not line.startswith(b"event:"))
    scanner = scan(dialect)
    assert scanner.feed(nameless) == nameless
    assert (scanner.done, scanner.usage, scanner.events) == (True, Usage(9, 4, 7), 2)


@pytest.mark.parametrize(("dialect", "stream"), STREAMS)
def test_no_chunk_of_named_events_passes_unread(dialect: Dialect, stream: bytes) -> None:
    chunk = b'data: {"type":"x","usage":null}\n\n'
    framed = b"%x\r\n%b\r\n" % (len(chunk), chunk)
    assert SCANS[Dialect.OPENAI](drops_usage=False).passes(framed)
    assert not scan(dialect).passes(framed)


@pytest.mark.parametrize(("dialect", "stream"), STREAMS)
def test_what_follows_the_last_event_is_dropped(dialect: Dialect, stream: bytes) -> None:
    scanner = scan(dialect)
    assert scanner.feed(stream + b"data: [DONE]\n\n") == stream
    early = scan(dialect)
    early.feed(b"data: [DONE]\n\n")
    assert early.done


@pytest.mark.parametrize(("dialect", "stream"), STREAMS)
def test_a_stream_without_its_last_event_is_broken(dialect: Dialect, stream: bytes) -> None:
    counted = stream.find(COUNTED)
    scanner = scan(dialect)
    scanner.feed(stream[: counted if counted > 0 else stream.rindex(b"event:")])
    scanner.close()
    assert scanner.broken == "the replica's stream ended before its last event"


def test_a_message_that_has_a_reason_of_its_end_needs_no_last_event() -> None:
    scanner = scan(Dialect.ANTHROPIC)
    scanner.feed(MESSAGES.removesuffix(STOPPED))
    scanner.close()
    assert (scanner.ended, scanner.done, scanner.broken) == (True, False, None)
    assert scanner.last_event() == b'event: message_stop\ndata: {"type":"message_stop"}\n\n'


@pytest.mark.parametrize("dialect", [Dialect.ANTHROPIC, Dialect.RESPONSES])
@pytest.mark.parametrize(
    "garbage", [b"event: x\ndata: [1]\n\n", b"event: x\nnonsense\n\n", b"<html>"]
)
def test_garbage_breaks_the_stream(dialect: Dialect, garbage: bytes) -> None:
    scanner = scan(dialect)
    assert scanner.feed(garbage) == b""
    assert scanner.broken


@pytest.mark.parametrize("dialect", [Dialect.ANTHROPIC, Dialect.RESPONSES])
def test_comments_pass(dialect: Dialect) -> None:
    scanner = scan(dialect)
    assert scanner.feed(b": ping\n\n") == b": ping\n\n"
    assert (scanner.events, scanner.broken) == (0, None)


def test_a_message_that_is_cut_off_has_its_input_and_the_events_so_far() -> None:
    scanner = scan(Dialect.ANTHROPIC)
    assert scanner.usage is None
    scanner.feed(STARTED + BLOCK + TEXT)
    assert scanner.usage == Usage(9, 4, 1)


def test_the_input_may_come_with_the_output() -> None:
    scanner = scan(Dialect.ANTHROPIC)
    unknown = event("message_start", message={"usage": {"input_tokens": 0}})
    later = event("message_delta", usage={"input_tokens": 6, "output_tokens": 2})
    scanner.feed(unknown + TEXT)
    assert scanner.usage is None
    scanner.feed(later)
    assert scanner.usage == Usage(6, 0, 2)


def test_the_input_that_is_reported_last_counts() -> None:
    scanner = scan(Dialect.ANTHROPIC)
    last = {"input_tokens": 20, "cache_read_input_tokens": 5, "output_tokens": 2}
    scanner.feed(STARTED + TEXT + event("message_delta", usage=last))
    assert scanner.usage == Usage(25, 5, 2)


@pytest.mark.parametrize("usage", ["many", {"input_tokens": "many"}, None])
def test_usage_that_cannot_be_read_is_left_to_the_client(usage: Any) -> None:
    for dialect, given in (
        (Dialect.ANTHROPIC, event("message_start", message={"usage": usage})),
        (Dialect.RESPONSES, event("response.completed", response={"usage": usage})),
    ):
        scanner = scan(dialect)
        assert scanner.feed(given) == given
        assert scanner.usage is None
    broken = b"event: response.completed\ndata: {]}\n\n"
    scanner = scan(Dialect.RESPONSES)
    assert scanner.feed(broken) == broken
    assert scanner.done
    nameless = scan(Dialect.ANTHROPIC)
    assert nameless.feed(b"data: {]}\n\n")
    assert not nameless.done


@pytest.mark.parametrize(
    ("dialect", "failure"),
    [
        (Dialect.ANTHROPIC, event("error", error={"type": "overloaded_error"}) + STOPPED),
        (Dialect.ANTHROPIC, event("error", error={"type": "overloaded_error"})),
        (Dialect.RESPONSES, event("response.failed", response={"usage": None})),
        (Dialect.RESPONSES, event("error", code="server_error")),
    ],
)
def test_an_error_of_the_replica_passes_and_is_noticed(dialect: Dialect, failure: bytes) -> None:
    scanner = scan(dialect)
    assert scanner.feed(failure) == failure
    scanner.close()
    assert (scanner.failed, scanner.broken, scanner.events) == (True, None, 0)


def test_a_response_that_stops_early_is_complete() -> None:
    scanner = scan(Dialect.RESPONSES)
    scanner.feed(event("response.incomplete", response={"usage": REPORTED}))
    assert (scanner.done, scanner.failed, scanner.usage) == (True, False, Usage(9, 4, 7))


def test_a_broken_message_ends_with_anthropics_error_event() -> None:
    name, data = scan(Dialect.ANTHROPIC).error_event(REFUSAL).rstrip().split(b"\n")
    assert name == b"event: error"
    want = {"type": "error", "error": {"type": "api_error", "message": "It broke."}}
    assert json.loads(data.removeprefix(b"data: ")) == want


def test_a_broken_response_ends_with_a_numbered_error_event() -> None:
    scanner = scan(Dialect.RESPONSES)
    scanner.feed(CREATED + DELTA)
    name, data = scanner.error_event(REFUSAL).rstrip().split(b"\n")
    assert name == b"event: error"
    assert json.loads(data.removeprefix(b"data: ")) == {
        "type": "error",
        "code": "replica_failed",
        "message": "It broke.",
        "param": None,
        "sequence_number": 2,
    }
