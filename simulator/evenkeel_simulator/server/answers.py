"""Response bytes of each endpoint, during the answer and at its end. Pure: requests in, bytes out.

The driver wakes the handler, which sends the new output of every choice. The caller remembers how many tokens of each choice it
has sent; `start` is that number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from evenkeel_simulator.server import wire
from evenkeel_simulator.server.ask import Ask
from evenkeel_simulator.server.served import ServedRequest


class AnswerFormat(Protocol):
    """Response format of one endpoint."""

    def body(self, requests: Sequence[ServedRequest]) -> bytes:
        """The whole answer, not streamed."""


@runtime_checkable
class StreamFormat(AnswerFormat, Protocol):
    """An endpoint that also streams."""

    opens_early: bool
    """Whether a stream's status and headers go out before its first event."""

    def news(self, request: ServedRequest, start: int) -> bytes:
        """Events for the output tokens from `start` on."""

    def closing(self, requests: Sequence[ServedRequest]) -> bytes:
        """Events after the last choice's end."""


MakeFormat = Callable[[wire.Head], AnswerFormat]
Read = Callable[[bytes, int], tuple[Ask, MakeFormat]]
"""Reads a body, for a model of that context length; raises `BadRequest`."""
