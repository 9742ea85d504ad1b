"""Scans streams of named events: OpenAI's responses, and Anthropic's messages.

An event's name decides whether its data is parsed: only events that carry usage are. The names are in the `event:` line,
and once more in the data as `type`, which counts where an engine leaves out the line.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

import msgspec
from evenkeel_fairshare.fleet.contract import Usage

from evenkeel_router.api.endpoints import Dialect
from evenkeel_router.api.errors import Refusal, anthropic_error_event, response_error_event
from evenkeel_router.api.event_stream import EventScan
from evenkeel_router.api.usage import of_message_event, of_response_event


class _Typed(msgspec.Struct):
    type: str = ""


_TYPED: Final = msgspec.json.Decoder(_Typed)
_PREFIX: Final = b"event: "
_DATA: Final = b"data: "


def scan_of(dialect: Dialect, *, drops_usage: bool) -> EventScan:
    """The scan of a stream. `drops_usage`: the client did not ask for the usage event."""
    if dialect is Dialect.RESPONSES:
        return ResponsesScan()
    if dialect is Dialect.ANTHROPIC:
        return MessagesScan()
    return EventScan(cumulative=dialect is Dialect.SGLANG, drops_usage=drops_usage)


class _NamedScan(EventScan, ABC):
    """What both have in common."""

    __slots__ = ("passed",)

    def __init__(self) -> None:
        super().__init__(cumulative=False, drops_usage=False)
        self.passed = 0
        """Events so far, of any kind."""

    def passes(self, chunk: bytes) -> bool:
        return False  # every event is counted by its name

    def _event(self, event: bytes) -> bool:
        if self.done:
            return False  # after the end
        # The usual case, a name and one line of data: several times faster than the general one.
        if event.startswith(_PREFIX):
            end = event.find(b"\n")
            data = event[end + 1 : -2]
            if data.startswith(_DATA) and data.find(b"\n") < 0:
                return self._named(event[len(_PREFIX) : end].strip(), data[len(_DATA) :].strip())
        return super()._event(event)

    def _data(self, data: bytes) -> bool:
        return self._named(b"", data)

    def _named(self, name: bytes, data: bytes) -> bool:
        if data == b"[DONE]":  # some engines send it here, too
            self.done = True
            return True
        if not (data.startswith(b"{") and data.endswith(b"}")):
            self._break("an event of the replica's stream is not JSON")
            return False
        self.passed += 1
        self._note(name or _type_of(data), data)
        return True

    @abstractmethod
    def _note(self, name: bytes, data: bytes) -> None:
        """Take what an event says about usage, failure or the end."""


class ResponsesScan(_NamedScan):
    """`/v1/responses`."""

    __slots__ = ()

    def _note(self, name: bytes, data: bytes) -> None:
        if name.endswith(b".delta"):
            self.events += 1
        elif name in (b"response.completed", b"response.incomplete", b"response.failed"):
            self._usage = of_response_event(data)
            self.done = True
            self.failed = name == b"response.failed"
        elif name == b"error":
            self.failed = True

    def error_event(self, refusal: Refusal) -> bytes:
        return response_error_event(refusal, self.passed)


class MessagesScan(_NamedScan):
    """`/v1/messages`. The first event has the input, the last but one the output so far."""

    __slots__ = ("_input", "_output_tokens")

    def __init__(self) -> None:
        super().__init__()
        self._input: Usage | None = None
        self._output_tokens: int | None = None

    @property
    def usage(self) -> Usage | None:
        """As reported. Until the output is, its events count; None without the input."""
        if self._input is None:
            return None
        output = self.events if self._output_tokens is None else self._output_tokens
        return self._input._replace(output_tokens=output)

    def _note(self, name: bytes, data: bytes) -> None:
        if name == b"content_block_delta":
            self.events += 1
        elif name in (b"message_start", b"message_delta"):
            usage = of_message_event(data)
            if usage is None:
                return
            if usage.input_tokens:
                self._input = usage
            if name == b"message_delta":
                self._output_tokens = usage.output_tokens
        elif name == b"message_stop":
            self.done = True
        elif name == b"error":
            self.failed = True

    def error_event(self, refusal: Refusal) -> bytes:
        return anthropic_error_event(refusal)


def _type_of(data: bytes) -> bytes:
    try:
        return _TYPED.decode(data).type.encode()
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return b""
