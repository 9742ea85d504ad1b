"""Response bytes of each endpoint, during the answer and at its end. Pure: requests in, bytes out.

The driver wakes the handler, which sends the new output of every choice. The caller
remembers how many tokens of each choice it has sent; `start` is that number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from evenkeel_simulator.server import wire
from evenkeel_simulator.server.parse import Ask
from evenkeel_simulator.server.served import ServedRequest


class AnswerFormat(Protocol):
    """Response format of one endpoint."""

    opens_early: bool
    """Whether a stream's status and headers go out before its first event."""

    def body(self, requests: Sequence[ServedRequest]) -> bytes:
        """The whole answer, not streamed."""

    def news(self, request: ServedRequest, start: int) -> bytes:
        """Events for the output tokens from `start` on, and for the end if it came with them."""

    def closing(self, requests: Sequence[ServedRequest]) -> bytes:
        """Events after the last choice's end."""


MakeFormat = Callable[[Ask, wire.Head], AnswerFormat]


class Completion:
    """`/v1/completions`."""

    opens_early = False

    def __init__(self, ask: Ask, head: wire.Head) -> None:
        self._ask = ask
        self._head = head
        self._begun: set[int] = set()

    def body(self, requests: Sequence[ServedRequest]) -> bytes:
        n = self._ask.sampling.n
        return wire.completion_body(self._head, requests, n=n, echoes=self._ask.echoes)

    def news(self, request: ServedRequest, start: int) -> bytes:
        text = request.speech.text(start, request.output_tokens)
        if self._ask.echoes is not None and request.index not in self._begun:
            text = self._ask.echoes[request.index // self._ask.sampling.n] + text
        self._begun.add(request.index)
        return wire.completion_event(self._head, request, text)

    def closing(self, requests: Sequence[ServedRequest]) -> bytes:
        usage = b""
        if self._ask.include_usage:
            usage = wire.completion_usage_event(self._head, requests, n=self._ask.sampling.n)
        return usage + wire.DONE


class Chat:
    """`/v1/chat/completions`."""

    opens_early = False

    def __init__(self, ask: Ask, head: wire.Head) -> None:
        self._ask = ask
        self._head = head
        self._begun: set[int] = set()

    def body(self, requests: Sequence[ServedRequest]) -> bytes:
        return wire.chat_body(self._head, requests, n=self._ask.sampling.n)

    def news(self, request: ServedRequest, start: int) -> bytes:
        role = b""
        if request.index not in self._begun:
            self._begun.add(request.index)
            role = wire.chat_role_event(self._head, request)
        text = request.speech.text(start, request.output_tokens)
        return role + (wire.chat_event(self._head, request, text) if text else b"")

    def closing(self, requests: Sequence[ServedRequest]) -> bytes:
        events = [wire.chat_finish_event(self._head, request) for request in requests]
        if self._ask.include_usage:
            n = self._ask.sampling.n
            events.append(wire.chat_usage_event(self._head, requests, n=n))
        return b"".join((*events, wire.DONE))


class Native:
    """`/generate`. Every event repeats the text so far, as SGLang does by default."""

    opens_early = True

    def __init__(self, ask: Ask, head: wire.Head) -> None:
        self._many = ask.batched or ask.sampling.n > 1
        self._texts: dict[int, str] = {}

    def body(self, requests: Sequence[ServedRequest]) -> bytes:
        answers = [self._answer(request, wire.answer_text(request)) for request in requests]
        return wire.native_body(answers, batched=self._many)

    def news(self, request: ServedRequest, start: int) -> bytes:
        fresh = request.speech.text(start, request.output_tokens)
        text = self._texts[request.index] = self._texts.get(request.index, "") + fresh
        answer = self._answer(request, text)
        return wire.native_event(answer, index=request.index if self._many else None)

    def closing(self, requests: Sequence[ServedRequest]) -> bytes:
        return wire.DONE

    def _answer(self, request: ServedRequest, text: str) -> dict[str, object]:
        ended = request.finish is not None
        e2e_s = time.monotonic() - request.received_s if ended else None
        return wire.native_answer(request, text, e2e_s=e2e_s)
