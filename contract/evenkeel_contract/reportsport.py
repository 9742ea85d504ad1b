"""Requests to a replica's reports port and their answers, for SGLang's plug-in and the simulator.

A replica does not answer a request that it cannot read. Older replicas behave the same with newer kinds of requests, so
the sender needs a timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

import msgspec

from evenkeel_contract import heldpages, promptfacts
from evenkeel_contract.heldpages import PAGES_VERSION, HeldPages, PagesQuestion
from evenkeel_contract.messages import UNREADABLE, check_version
from evenkeel_contract.promptfacts import FACTS_VERSION, PromptFacts, PromptQuestion
from evenkeel_contract.reportbook import ReportBook
from evenkeel_contract.reports import ReportError, ReportRequest, decode_request, encode

MAX_QUESTION_BYTES: Final = 4096
SNAPSHOT_INTERVAL_S: Final = 0.05
"""The least time between two looks at the engine's accounts: half of the shortest time between two requests of one router."""
_VERSIONS: Final = {PromptQuestion: FACTS_VERSION, PagesQuestion: PAGES_VERSION}


class AtMostEvery:
    """Does something when it is called, but not again within a time."""

    def __init__(
        self, seconds: float, act: Callable[[], None], *, clock: Callable[[], float]
    ) -> None:
        self._seconds = seconds
        self._act = act
        self._clock = clock
        self._next_s = -inf

    def __call__(self) -> None:
        """Do it, unless it was done just now."""
        now_s = self._clock()
        if now_s >= self._next_s:
            self._act()
            self._next_s = now_s + self._seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Sources of a replica's answers."""

    book: ReportBook
    refresh: Callable[[], None]
    """Updates the book; called before each report."""
    prompts: Callable[[], PromptFacts]
    pages: HeldPages

    def to(self, question: bytes) -> Iterator[bytes]:
        """The messages that answer a request, usually one. Raises `ReportError` at once if the request is invalid."""
        asked = decode_question(question)
        if isinstance(asked, PagesQuestion):
            return heldpages.answer(self.pages)
        if isinstance(asked, PromptQuestion):
            return iter((promptfacts.answer(self.prompts(), asked),))
        self.refresh()
        return iter((encode(self.book.answer(asked)),))


def decode_question(data: bytes) -> ReportRequest | PromptQuestion | PagesQuestion:
    """Read any kind of request; raises `ReportError`."""
    try:
        question = _question.decode(data)
    except UNREADABLE:
        return decode_request(data)
    check_version(question.version, _VERSIONS[type(question)], ReportError)
    return question


_question: msgspec.msgpack.Decoder[PromptQuestion | PagesQuestion] = msgspec.msgpack.Decoder(
    PromptQuestion | PagesQuestion
)
