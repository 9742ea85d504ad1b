"""Scans the streams of the other APIs: SGLang's `/generate`, OpenAI's responses, and Anthropic's messages.

Events of responses and messages have names. A name decides whether the data of an event is parsed: only events that
carry usage are. It is in the `event:` line, and once more in the data as `type`, which counts where an engine leaves
out the line. Readers of events never raise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

import msgspec
from evenkeel_contract.messages import UNREADABLE
from evenkeel_fairshare.fleet.contract import Usage

from evenkeel_router.api import begun
from evenkeel_router.api.answers import (
    GENERATED_ONE,
    MessageReply,
    Response,
    end_of,
    of_generated,
    of_message,
    of_response,
)
from evenkeel_router.api.begun import Progress
from evenkeel_router.api.errors import (
    Dialect,
    Outcome,
    Refusal,
    aborted,
    anthropic_error_event,
    failure_in,
    response_error_event,
)
from evenkeel_router.api.long_events import OBJECT, LongEvent, facts
from evenkeel_router.api.openai import EventScan


class _Typed(msgspec.Struct):
    type: str = ""


class _ResponseEvent(msgspec.Struct):
    response: Response | None = None


class _MessageEvent(MessageReply):
    message: MessageReply | None = None


_TYPED: Final = msgspec.json.Decoder(_Typed)
_RESPONSE_EVENT: Final = msgspec.json.Decoder(_ResponseEvent)
_MESSAGE_EVENT: Final = msgspec.json.Decoder(_MessageEvent)
_FIRST_TYPE: Final = re.compile(rb'data:\s*\{\s*"type":\s*"([\w.]+)"')
_INDEX: Final = re.compile(rb'"index":\s*(\d+)')
_PREFIX: Final = b"event: "
_DATA: Final = b"data: "
_MESSAGE_STOP: Final = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'


# With slots the class is made twice, and `super()` would mean the first one.
@dataclass(slots=True, kw_only=True, eq=False)
class GeneratedScan(EventScan):
    """`/generate`, where every event repeats all of its sequence and counts up."""

    PAYLOAD: ClassVar = b'"meta_info"'
    HAS_USUAL: ClassVar = False
    FACTS: ClassVar = facts(
        index=rb"\d+", prompt_tokens=rb"-?\d+", completion_tokens=rb"-?\d+", cached_tokens=rb"-?\d+", finish_reason=OBJECT
    )  # fmt: skip

    _newest: dict[bytes, bytes] = field(default_factory=dict)
    """Index of a sequence → its last event."""

    @property
    def usage(self) -> Usage | None:
        """The sum over the sequences; each event has the figures of one."""
        try:
            replies = [GENERATED_ONE.decode(event) for event in self._newest.values()]
        except UNREADABLE:
            return None
        return of_generated(replies)

    def passes(self, chunk: bytes) -> bool:
        return False

    def _content(self, data: bytes) -> bool:
        index = _INDEX.search(data)
        self._newest[b"" if index is None else index[1]] = data
        if not self.begun and not self._begins(data, begun.of_generated(data)):
            return True
        if not self.left:
            self.cut = self.done = True
            self._rewritten = b"data: [DONE]\n\n"
            return False
        self.left -= 1
        return True

    def _long_ends(self, event: LongEvent) -> None:
        index = _INDEX.search(event.members)
        self._newest[b"" if index is None else index[1]] = b'{"meta_info":%b}' % event.members

    def close(self) -> None:
        self._note_end()
        EventScan.close(self)

    def _data(self, data: bytes) -> bool:
        if data == b"[DONE]":
            self._note_end()
        return EventScan._data(self, data)

    def _note_end(self) -> None:
        """The last event of each sequence has the reason of its end."""
        reasons = [end_of(event) for event in self._newest.values()]
        self._ends = bool(reasons) and all(reasons)
        failures = filter(None, map(aborted, reasons))
        self.failure = next(failures, self.failure)


@dataclass(slots=True, kw_only=True, eq=False)
class _NamedScan(EventScan):
    """What the scans of responses and messages have in common."""

    CONTENT: ClassVar[tuple[bytes, ...]] = ()
    """Ends of the names of events with content."""
    HAS_USUAL: ClassVar = False

    passed: int = 0
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
        return EventScan._event(self, event)

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
        name = name or _type_of(data)
        if name == b"error" or (not name and failure_in(data) is not None):
            return self._fails(data)
        self._note(name, data)
        return not self.cut

    def _begin_named(self, name: bytes, head: bytes) -> LongEvent | None:
        self.passed += 1
        if not name and (found := _FIRST_TYPE.match(head)) is not None:
            name = found[1]
        if name == b"error":
            self._fails(b"")
        elif name.endswith(self.CONTENT) and not self._counts_long():
            return None
        return LongEvent(name, self.FACTS)

    def _long_ends(self, event: LongEvent) -> None:
        if not event.name.endswith(self.CONTENT):
            self._note(event.name, self._excerpt(event))

    def _excerpt(self, event: LongEvent) -> bytes:
        """An event with what is known of a long one."""
        return event.members

    def _written(self, data: bytes) -> None:
        """Count an event with content."""
        self.begun = True
        if not self.content_events:
            self._sample(data)
        self._count(data)

    def _note(self, name: bytes, data: bytes) -> None:
        """Take what an event says about usage, failure or the end."""
        raise NotImplementedError


@dataclass(slots=True, kw_only=True, eq=False)
class ResponsesScan(_NamedScan):
    """`/v1/responses`."""

    CONTENT: ClassVar = (b".delta",)

    def _excerpt(self, event: LongEvent) -> bytes:
        return b'{"response":%b}' % event.members

    def _note(self, name: bytes, data: bytes) -> None:
        if name.endswith(b".delta"):
            if self.begun or begun.of_response(name, data) is Progress.CONTENT:
                self._written(data)
        elif name in (b"response.completed", b"response.incomplete"):
            self._usage = _of_response(data)
            self.done = self.begun = True
        elif name == b"response.failed":
            self._usage = _of_response(data)
            self.done = self._fails(data)
        elif not self.begun:
            self.begun = begun.of_response(name, data) is Progress.CONTENT

    def error_event(self, refusal: Refusal) -> bytes:
        return response_error_event(refusal, self.passed)

    def last_event(self) -> bytes:
        return b""

    def _end_of_cut(self, data: bytes) -> bytes:
        self.failure = _beyond("max_output_tokens")
        return self.error_event(self.failure)


@dataclass(slots=True, kw_only=True, eq=False)
class MessagesScan(_NamedScan):
    """`/v1/messages`. The first event has the input, the last but one the output so far."""

    CONTENT: ClassVar = (b"content_block_delta",)
    _input: Usage | None = None
    _output_tokens: int | None = None

    @property
    def usage(self) -> Usage | None:
        """The reported usage. Events count as output tokens until those are reported; None without the input."""
        if self._input is None:
            return None
        output = self.output_tokens if self._output_tokens is None else self._output_tokens
        return self._input._replace(output_tokens=output)

    def _note(self, name: bytes, data: bytes) -> None:
        if name == b"content_block_delta":
            if self.begun or begun.of_message(name, data) is Progress.CONTENT:
                self._written(data)
        elif name in (b"message_start", b"message_delta"):
            usage = _of_message(data)
            if usage is None:
                return
            if usage.input_tokens:
                self._input = usage
            if name == b"message_delta":
                self._output_tokens = usage.output_tokens
                self._ends = begun.has_stopped(data)
        elif name == b"message_stop":
            self.done = True
            self.begun = self.begun or self._ends
        elif not self.begun:
            self.begun = begun.of_message(name, data) is Progress.CONTENT

    def error_event(self, refusal: Refusal) -> bytes:
        return anthropic_error_event(refusal)

    def last_event(self) -> bytes:
        return _MESSAGE_STOP

    def _end_of_cut(self, data: bytes) -> bytes:
        self.failure = _beyond("max_tokens")
        return self.error_event(self.failure)


def _beyond(field: str) -> Refusal:
    """Why a stream is cut."""
    return Refusal(
        Outcome.REPLICA_FAILED,
        f"The replica went on beyond {field}; the router ended its answer.",
        code="output_too_long",
    )


def _type_of(data: bytes) -> bytes:
    try:
        return _TYPED.decode(data).type.encode()
    except UNREADABLE:
        return b""


def _of_response(data: bytes) -> Usage | None:
    """The usage in the last event of `/v1/responses`."""
    try:
        response = _RESPONSE_EVENT.decode(data).response
    except UNREADABLE:
        return None
    return None if response is None else of_response(response.usage)


def _of_message(data: bytes) -> Usage | None:
    """The usage in `message_start` or `message_delta`; 0 input tokens where it has none."""
    try:
        event = _MESSAGE_EVENT.decode(data)
    except UNREADABLE:
        return None
    return of_message(event.usage if event.message is None else event.message.usage)


SCANS: Final[Mapping[Dialect, type[EventScan]]] = {
    Dialect.OPENAI: EventScan,
    Dialect.AUDIO: EventScan,
    Dialect.SGLANG: GeneratedScan,
    Dialect.RESPONSES: ResponsesScan,
    Dialect.ANTHROPIC: MessagesScan,
}
"""The scan of a stream. `drops_usage`: the client did not ask for the usage event."""
