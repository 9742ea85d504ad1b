"""Whatever is asked on a reports port gets its own answer, and what is no question none."""

from __future__ import annotations

import msgspec
import pytest
from evenkeel_contract import heldpages, promptfacts
from evenkeel_contract.heldpages import HeldPages, PagesQuestion, decode_part
from evenkeel_contract.promptfacts import PromptQuestion, decode_facts, facts_of
from evenkeel_contract.reportbook import ReportBook
from evenkeel_contract.reports import (
    REPORT_VERSION,
    ReportError,
    ReportRequest,
    decode_report,
    encode,
)
from evenkeel_contract.reportsport import Answers, AtMostEvery, decode_question

REPORT = ReportRequest(REPORT_VERSION, "i", 3)
FACTS = facts_of({"tokenizer.json": b"{}"}, page_tokens=16)


def test_the_port_takes_each_kind_of_question() -> None:
    assert decode_question(encode(REPORT)) == REPORT
    assert decode_question(promptfacts.ask("d")) == PromptQuestion(1, "d")
    assert decode_question(heldpages.ask()) == PagesQuestion(1)


def test_each_kind_is_answered_in_kind() -> None:
    refreshed: list[bool] = []
    answers = Answers(
        book=ReportBook(incarnation="i", policy="DLPM"),
        refresh=lambda: refreshed.append(True),
        prompts=lambda: FACTS,
        pages=HeldPages(),
    )
    (part,) = answers.to(heldpages.ask())
    assert decode_part(part).sequence == 0
    (facts,) = answers.to(promptfacts.ask())
    assert decode_facts(facts) == FACTS
    assert not refreshed
    (report,) = answers.to(encode(REPORT))
    assert decode_report(report).incarnation == "i"
    assert refreshed
    with pytest.raises(ReportError):
        answers.to(b"\xc1")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(["prompts", 2, ""]),
        msgspec.msgpack.encode(["pages", 2]),
        msgspec.msgpack.encode([99, "", 0]),
        b"\x91" * 5000,
    ],
)
def test_what_is_no_question_is_refused(data: bytes) -> None:
    with pytest.raises(ReportError):
        decode_question(data)


def test_however_many_ask_the_engine_is_looked_at_once_in_an_interval() -> None:
    looked: list[float] = []
    now_s = [10.0]
    refresh = AtMostEvery(0.5, lambda: looked.append(now_s[0]), clock=lambda: now_s[0])
    for now_s[0] in (10.0, 10.1, 10.4, 10.5, 10.9, 12.0):
        refresh()
    assert looked == [10.0, 10.5, 12.0]
