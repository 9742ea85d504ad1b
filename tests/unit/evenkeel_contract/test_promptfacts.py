"""Requests for tokenizer files and their answers."""

import msgspec
import pytest
from evenkeel_contract.promptfacts import PromptQuestion, answer, ask, decode_facts, facts_of
from evenkeel_contract.reports import ReportError
from evenkeel_contract.reportsport import decode_question

FACTS = facts_of({"tokenizer.json": b"{}", "chat_template.jinja": b"hi"}, page_tokens=16)


def test_an_answer_is_decoded_as_it_was_encoded() -> None:
    question = decode_question(ask())
    assert isinstance(question, PromptQuestion)
    assert decode_facts(answer(FACTS, question)) == FACTS


def test_files_that_are_known_are_not_sent_again() -> None:
    question = decode_question(ask(FACTS.digest))
    assert isinstance(question, PromptQuestion)
    received = decode_facts(answer(FACTS, question))
    assert (received.digest, received.files) == (FACTS.digest, {})


@pytest.mark.parametrize(
    "other",
    [
        facts_of({"tokenizer.json": b"{}", "chat_template.jinja": b"ho"}, page_tokens=16),
        facts_of({"tokenizer.json": b"{}"}, page_tokens=16),
        facts_of(FACTS.files, page_tokens=32),
        facts_of(FACTS.files, page_tokens=16, simulated=True),
        facts_of(FACTS.files, page_tokens=16, trouble="x"),
        facts_of({"tokenizer.json": b"{}chat_template.jinja", "x": b"hi"}, page_tokens=16),
    ],
)
def test_whatever_makes_other_tokens_has_another_digest(other: object) -> None:
    assert getattr(other, "digest", None) != FACTS.digest


@pytest.mark.parametrize(
    "data",
    [b"", b"\x91" * 5000, msgspec.msgpack.encode(["prompts", 2, "d", 16]), msgspec.msgpack.encode(["prompts", 1, "d", 0])],
)  # fmt: skip
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(ReportError):
        decode_facts(data)
