"""What the load generator asks and which answers it accepts, against the fake worker's own answers."""

import json

import pytest

from bench.router.http1 import body_of, split_head
from bench.router.worker import DIALECTS, DONE, Ask
from bench.router.workload import Mode, Question, Workload, WrongAnswerError, check

CHAT = DIALECTS[b"/v1/chat/completions"]


def asked(mode: Mode) -> tuple[Question, Ask]:
    workload = Workload(mode, keys=["sk-a", "sk-b"], events=5, prompt_bytes=300, seed=1)
    question = workload.ask()
    found = split_head(question.wire)
    assert found is not None
    head, rest = found
    body = body_of(head)
    wire = body.feed(rest)
    assert body.done and json.loads(wire)["max_tokens"] == 5
    return question, Ask.read(wire)


def stream_of(ask: Ask) -> list[bytes]:
    events = [CHAT.event(ask, i, 7) for i in range(ask.events)]
    found = split_head(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + CHAT.end(ask, 7))
    assert found is not None
    return [*events, body_of(found[0]).feed(found[1]).removesuffix(DONE), DONE]


def test_the_worker_reads_what_the_workload_asks() -> None:
    question, ask = asked(Mode.STREAM)
    assert (ask.tag, ask.events, ask.stream) == (question.tag, 5, True)
    assert ask.family.startswith(b"family-")
    assert asked(Mode.UNARY)[1].stream is False


def test_questions_differ_in_their_tag_and_keep_their_length() -> None:
    workload = Workload(Mode.MIXED, keys=["sk-a"], events=5, prompt_bytes=300, seed=1)
    questions = [workload.ask() for _ in range(20)]
    assert len({q.tag for q in questions}) == 20
    assert sum(q.stream for q in questions) == 10


def test_a_right_answer_is_accepted_with_its_usage() -> None:
    question, ask = asked(Mode.STREAM)
    usage = check(question, 200, b"".join(stream_of(ask)), order=True)
    assert (usage.prompt_tokens, usage.cached_tokens) == (ask.prompt_tokens, 7)
    question, ask = asked(Mode.UNARY)
    assert check(question, 200, CHAT.whole(ask, 3), order=True).cached_tokens == 3


@pytest.mark.parametrize("spoil", ["lost", "swapped", "foreign", "cut", "no usage", "status"])
def test_a_wrong_stream_is_refused(spoil: str) -> None:
    question, ask = asked(Mode.STREAM)
    events = stream_of(ask)
    match spoil:
        case "lost":
            del events[2]
        case "swapped":
            events[1], events[2] = events[2], events[1]
        case "foreign":
            events[1] = events[1].replace(question.tag, b"request-999999")
        case "cut":
            events.pop()
        case "no usage":
            events[-2] = b'data: {"id":"%s"}\n\n' % question.tag
    with pytest.raises(WrongAnswerError):
        check(question, 500 if spoil == "status" else 200, b"".join(events), order=True)


def test_another_requests_answer_is_refused() -> None:
    question, ask = asked(Mode.UNARY)
    foreign = CHAT.whole(ask, 0).replace(question.tag, b"request-999999")
    with pytest.raises(WrongAnswerError):
        check(question, 200, foreign, order=True)


def test_every_dialect_answers_in_json() -> None:
    _, ask = asked(Mode.UNARY)
    for dialect in DIALECTS.values():
        whole = json.loads(dialect.whole(ask, 1))
        event = json.loads(dialect.event(ask, 0, 1).removeprefix(b"data: "))
        assert ask.tag.decode() in json.dumps(whole), "it is the answer to this request"
        assert ask.tag.decode() in json.dumps(event)
