"""Event streams, cut anywhere."""

import json

import pytest
from evenkeel_fairshare.fleet.contract import Usage
from evenkeel_router.api import openai as sse
from evenkeel_router.api.framing import usual_events
from evenkeel_router.api.openai import EventScan
from evenkeel_router.api.streams import GeneratedScan

CHUNK = b'data: {"choices":[{"text":" a \\"usage\\":{ "}],"usage":null}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
)
DONE = b"data: [DONE]\n\n"
STREAM = CHUNK + CHUNK + USAGE + DONE


def scan(*, drops_usage: bool = True) -> EventScan:
    return EventScan(drops_usage=drops_usage)


@pytest.mark.parametrize("drops_usage", [True, False])
def test_a_stream_cut_at_every_byte_comes_out_the_same(drops_usage: bool) -> None:
    want = CHUNK + CHUNK + (b"" if drops_usage else USAGE) + DONE
    for cut in range(len(STREAM) + 1):
        scanner = scan(drops_usage=drops_usage)
        passed = scanner.feed(STREAM[:cut]) + scanner.feed(STREAM[cut:])
        scanner.close()
        assert passed == want
        assert (scanner.done, scanner.broken, scanner.failed) == (True, None, False)
        assert scanner.usage == Usage(9, 4, 2)
        assert scanner.events == 2


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_a_stream_fed_byte_by_byte_comes_out_the_same_with_every_newline(newline: bytes) -> None:
    stream = STREAM.replace(b"\n", newline)
    scanner = scan(drops_usage=False)
    passed = b"".join(scanner.feed(stream[i : i + 1]) for i in range(len(stream)))
    assert passed == stream
    assert scanner.done
    assert scanner.broken is None
    assert scanner.usage == Usage(9, 4, 2)


def test_only_whole_events_are_handed_out() -> None:
    scanner = scan()
    for cut in range(1, len(CHUNK)):
        scanner = scan()
        assert scanner.feed(CHUNK[:cut]) == b""
        assert scanner.feed(CHUNK[cut:]) == CHUNK


def test_several_events_in_one_piece_pass_together() -> None:
    assert scan().feed(CHUNK * 3) == CHUNK * 3


LONG = CHUNK.replace(b" a ", b" word" * 40)
OTHERS = [
    LONG,
    b": ping\n\n",
    CHUNK.replace(b"\n", b"\r\n"),
    CHUNK[:-1] + b"id: 7\n\n",
    b'data: {"choices":[{"text":"a"}],"usage":{"prompt_tokens":3}}\n\n',
    b'data: {"choices":[],"usage":null}x\n\n',
    b': a comment with "usage":null}\n\n',
    b'data: {"choices":[]}\nerror: {"usage":null}\n\n',
    b'data: {"error":{"message":"aborted"}}\n\n',
    USAGE,
    DONE,
]


def _fed(scanner: EventScan, parts: list[bytes]) -> bytes:
    passed = b""
    for part in parts:
        if scanner.broken is None and not scanner.cut:
            passed += scanner.feed(part)
    return passed


@pytest.mark.parametrize("other", [CHUNK, *OTHERS])
@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("most", [3, 4, 100])
def test_events_that_come_together_count_as_those_that_come_one_by_one(
    other: bytes, before: int, most: int
) -> None:
    events = [*[CHUNK] * before, other, *[CHUNK] * (3 - before)]
    for first in range(2):  # events that come before the others, alone
        together, alone = (
            EventScan(drops_usage=True, most_events=most, left=most) for _ in range(2)
        )
        passed = _fed(together, [b"".join(events[:first]), b"".join(events[first:])])
        assert passed == _fed(alone, events)
        for name in ("usage", "done", "failed", "broken", "cut", "begun", "packed", "left"):
            assert getattr(together, name) == getattr(alone, name), name


def test_usual_events_are_whole() -> None:
    assert usual_events(CHUNK * 2, len(CHUNK)) == 2
    assert usual_events(CHUNK * 2 + CHUNK[:9], len(CHUNK)) == 0
    assert usual_events(CHUNK, len(CHUNK) - len(b"data: \n\n")) == 1
    assert usual_events(CHUNK, len(CHUNK) - len(b"data: \n\n") - 1) == 0


def test_a_further_line_behind_the_data_is_no_part_of_them() -> None:
    stream = CHUNK + CHUNK[:-1] + b"id: 7\n\n" + CHUNK
    scanner = scan()
    assert scanner.feed(stream) == stream
    assert (scanner.events, scanner.broken) == (3, None)


def test_usage_beside_content_stays_where_it_is() -> None:
    event = b'data: {"choices":[{"text":"a"}], "usage": {"prompt_tokens":3}}\n\n'
    scanner = scan()
    assert scanner.feed(event) == event
    assert scanner.usage == Usage(3, 0, 0)


def test_a_usage_event_that_cannot_be_read_is_left_to_the_client() -> None:
    event = b'data: {"choices":[],"usage":{"prompt_tokens":"many"}}\n\n'
    scanner = scan()
    assert scanner.feed(event) == event
    assert scanner.usage is None


def test_events_of_generate_count_up_and_the_last_one_counts() -> None:
    scanner = GeneratedScan(drops_usage=True)
    for n in (1, 2):
        meta = {"prompt_tokens": 7, "cached_tokens": 3, "completion_tokens": n}
        event = b"data: " + json.dumps({"text": "x" * n, "meta_info": meta}).encode() + b"\n\n"
        assert scanner.feed(event) == event
    assert scanner.usage == Usage(7, 3, 2)
    slow = GeneratedScan(drops_usage=True)
    assert slow.feed(event + DONE) == event + DONE  # two at once: the slower path
    assert slow.usage == Usage(7, 3, 2)
    garbled = GeneratedScan(drops_usage=True)
    garbled.feed(b'data: {"text":}\n\n')
    assert garbled.usage is None


def test_events_of_generate_that_come_together_are_all_read() -> None:
    """Also if an engine ends them as OpenAI's usual events end."""
    scanner = GeneratedScan(drops_usage=True)
    for n in (1, 2):
        meta = {"prompt_tokens": 7, "cached_tokens": 3, "completion_tokens": n}
        text = json.dumps({"text": "x", "meta_info": meta, "usage": None}, separators=(",", ":"))
        events = n * (b"data: %b\n\n" % text.encode())
        assert scanner.feed(events) == events
    assert scanner.usage == Usage(7, 3, 2)


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 200 OK\n\n",
        b"<html>",
        b"\x00\x01\x02",
        b"data: hello\n\n",
        b'data: {"cut":\n\n',
        b'data: {"a":1}\nnonsense\n\n',
        b'data: {"a":1}\n\nnonsense',
    ],
)
def test_garbage_breaks_the_stream_at_once(garbage: bytes) -> None:
    scanner = scan()
    passed = scanner.feed(garbage)
    assert scanner.broken
    assert b"nonsense" not in passed
    scanner.close()  # says no more


def test_what_comes_before_the_garbage_is_passed_on() -> None:
    scanner = scan()
    assert scanner.feed(CHUNK + b"data: hello\n\n" + CHUNK) == CHUNK
    assert scanner.broken == "an event of the replica's stream is not JSON"


def test_comments_and_other_fields_pass() -> None:
    stream = b": ping\n\nevent: x\nid: 7\nretry: 5\n\n"
    scanner = scan()
    assert scanner.feed(stream) == stream
    assert scanner.broken is None
    assert scanner.events == 0


def test_an_error_event_of_the_replica_passes_and_is_noticed() -> None:
    event = b'data: {"error":{"message":"aborted"}}\n\n'
    for data in (event, event + DONE):
        scanner = scan()
        assert scanner.feed(data) == data
        scanner.close()
        assert scanner.failed
        assert scanner.broken is None


@pytest.mark.parametrize(
    ("sent", "want"),
    [
        (b"", "before its last event"),
        (CHUNK, "before its last event"),
        (CHUNK + CHUNK[:20], "in the middle of an event"),
    ],
)
def test_a_stream_that_ends_early_is_broken(sent: bytes, want: str) -> None:
    scanner = scan()
    scanner.feed(sent)
    scanner.close()
    assert scanner.broken is not None
    assert want in scanner.broken


def test_what_follows_the_end_is_dropped() -> None:
    scanner = scan()
    assert scanner.feed(DONE + CHUNK) == DONE
    assert scanner.feed(CHUNK) == b""
    assert scanner.broken is None


def test_an_endless_event_is_not_collected_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_ANSWER_BYTES", 100)
    for pieces in ([b"x" * 50], [b"x" * 25] * 2, [b"\n" + b"x" * 50]):
        scanner = scan()
        scanner.feed(b"data: " + b"x" * 50)
        assert scanner.broken is None
        for piece in pieces:
            scanner.feed(piece)
        assert scanner.broken == sse.TOO_LARGE


def test_a_long_event_in_many_pieces_comes_out_whole() -> None:
    event = b'data: {"choices":[{"text":"%b"}]}\n\n' % (b"x" * 1000)
    scanner = scan()
    passed = [scanner.feed(event[at : at + 7]) for at in range(0, len(event), 7)]
    assert (b"".join(passed), scanner.broken, scanner.begun) == (event, None, True)


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.mark.parametrize("text_bytes", [0, 1, 200, 213, 214, 1000, 4000])
def test_a_usual_event_alone_in_its_chunk_passes_without_being_taken_apart(text_bytes: int) -> None:
    event = b'data: {"text":"%b","usage":null}\n\n' % (b"x" * text_bytes)
    scanner = scan()
    assert scanner.passes(framed(event))
    assert scanner.events == 1


UNUSUAL = {
    "half of it": framed(CHUNK)[:-30],
    "an upper-case size": b"%X\r\n%b\r\n" % (len(CHUNK), CHUNK),
    "a size with a zero before it": b"0" + framed(CHUNK),
    "a size that is too small": framed(CHUNK).replace(b"%x" % len(CHUNK), b"%x" % (len(CHUNK) - 1)),
    "a size that is too large": framed(CHUNK).replace(b"%x" % len(CHUNK), b"%x" % (len(CHUNK) + 1)),
    "a size with an extension": framed(CHUNK).replace(b"\r\n", b";a=b\r\n", 1),
    "two chunks": framed(CHUNK) * 2,
    "two events in a chunk": framed(CHUNK * 2),
    "two events that look like one": framed(CHUNK.replace(b"usage\\", b"\n\ndata: {")),
    "a larger event than there are sizes": framed(b"data: {" + b" " * 4096 + CHUNK[7:]),
    "usage": framed(USAGE),
    "the end mark": framed(DONE),
    "a comment": framed(b": ping\n\n"),
    "lines that end otherwise": framed(CHUNK.replace(b"\n", b"\r\n")),
    "the last chunk": b"0\r\n\r\n",
}


@pytest.mark.parametrize("chunk", UNUSUAL.values(), ids=list(UNUSUAL))
def test_whatever_else_a_chunk_may_be_is_looked_at(chunk: bytes) -> None:
    scanner = scan()
    assert not scanner.passes(chunk)
    assert scanner.events == 0


def test_no_chunk_passes_before_half_an_event_after_the_end_or_on_generate() -> None:
    held, ended, generated = scan(), scan(), GeneratedScan(drops_usage=True)
    held.feed(CHUNK[:10])
    ended.feed(CHUNK + DONE)
    assert not any(scanner.passes(framed(CHUNK)) for scanner in (held, ended, generated))


OPENING = (
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"usage":null}\n\n'
)
CONTENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}],"usage":null}\n\n'


def test_an_event_with_a_role_only_is_no_output_token() -> None:
    scanner = scan()
    assert scanner.feed(OPENING) == OPENING
    assert not scanner.passes(framed(OPENING)), "only what follows the first content passes unread"
    assert scanner.feed(OPENING) == OPENING  # of another choice
    assert (scanner.events, scanner.output_tokens) == (2, 0)
    scanner.feed(CONTENT)
    assert scanner.passes(framed(CONTENT))
    assert (scanner.events, scanner.output_tokens) == (4, 2)


@pytest.mark.parametrize(
    "delta",
    [b'{"role":"assistant","content":"a"}', b'{"role":"assistant","tool_calls":[{"index":0}]}'],
)
def test_content_beside_a_role_counts(delta: bytes) -> None:
    scanner = scan()
    scanner.feed(b'data: {"choices":[{"index":0,"delta":%b}]}\n\n' % delta)
    assert scanner.output_tokens == 1


def test_a_role_that_cannot_be_read_counts() -> None:
    scanner = scan()
    scanner.feed(b'data: {"choices":[{"role":1}]}\n\n')
    assert scanner.output_tokens == 1


LONG = b'data: {"choices":[{"text":"%b"}],"usage":{"prompt_tokens":9,"completion_tokens":1}}\n\n'


@pytest.mark.parametrize("size", [1, 7, 64, 500, 4000])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_a_long_event_is_passed_on_as_it_comes(
    monkeypatch: pytest.MonkeyPatch, size: int, newline: bytes
) -> None:
    monkeypatch.setattr(sse, "MAX_WHOLE_EVENT_BYTES", 300)
    stream = (CHUNK + LONG % (b"x" * 3000) + CHUNK + DONE).replace(b"\n", newline)
    scanner = scan(drops_usage=False)
    passed = [scanner.feed(stream[at : at + size]) for at in range(0, len(stream), size)]
    assert b"".join(passed) == stream
    assert max(map(len, passed)) <= max(301 + size, 2 * size)
    assert (scanner.done, scanner.broken, scanner.is_within) == (True, None, False)
    assert scanner.usage == Usage(9, 0, 1)
    assert scanner.events == 3


def test_a_long_event_may_be_the_first_and_is_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_WHOLE_EVENT_BYTES", 300)
    scanner, event = scan(), LONG % (b"x" * 3000)
    assert scanner.feed(event[:200]) == b""
    assert scanner.feed(event[200:400]) == event[:400]
    assert (scanner.begun, scanner.is_within) == (True, True)
    scanner.close()
    assert scanner.broken == "the replica's stream ended in the middle of an event"


def test_a_long_event_beyond_the_bound_of_the_output_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sse, "MAX_WHOLE_EVENT_BYTES", 300)
    scanner = EventScan(drops_usage=True, most_events=1, left=1)
    assert scanner.feed(CHUNK) == CHUNK
    assert scanner.feed(b'data: {"choices":[{"text":"' + b"x" * 100) == b""
    assert scanner.feed(b"x" * 400) == DONE
    assert scanner.cut


def test_a_long_event_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_WHOLE_EVENT_BYTES", 300)
    monkeypatch.setattr(sse, "MAX_ANSWER_BYTES", 2000)
    scanner = scan()
    scanner.feed(b'data: {"choices":[{"text":"')
    for _ in range(20):
        scanner.feed(b"x" * 200)
    assert scanner.broken == sse.TOO_LARGE
