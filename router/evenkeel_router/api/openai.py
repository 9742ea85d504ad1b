"""OpenAI's completions, chat completions and embeddings: the usage in answers, and streams. Pure. `openai_requests` has the requests.

`EventScan.feed` takes bytes as they arrive, cut anywhere, and returns whole events. It keeps half an event until the rest arrives. So a
stream that breaks can still end with an error event. Nearly every event is alone in its chunk and has nothing that the router needs.
`passes` recognises such an event by four searches. `streams` has the scans of the other APIs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar, Final

import msgspec
from evenkeel_contract.messages import UNREADABLE
from evenkeel_fairshare.fleet.contract import Usage

from evenkeel_router.api import begun
from evenkeel_router.api.begun import Progress
from evenkeel_router.api.contents import written_bytes
from evenkeel_router.api.errors import UNKNOWN_FAILURE, Refusal, error_event, failure_in
from evenkeel_router.api.framing import (
    CHUNK_HEADS,
    CHUNK_TAIL,
    FIELD_BYTES,
    FIELDS,
    LINE,
    MAX_CHUNK_BYTES,
    NO_USAGE,
    START,
    begins_event,
    cut,
    end_of_cut,
    name_of,
    usual_events,
)
from evenkeel_router.api.long_events import OBJECT, LongEvent, begins_error, facts, name_in
from evenkeel_router.api.prompt import USUAL_TOKEN_BYTES

TOKEN_ROOM: Final = 48
"""Bytes of text in an event that may be one token, in JSON."""
LONG_TOKEN_BYTES: Final = 16
"""Bytes of a long token: a text has at least its bytes over these, as tokens."""


class Details(msgspec.Struct):
    cached_tokens: int | None = None


class OpenAIUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: Details | None = None


class _Chunk(msgspec.Struct):
    usage: OpenAIUsage | None = None
    choices: list[msgspec.Raw] | None = None


_CHUNK: Final = msgspec.json.Decoder(_Chunk)


def of_chunk(data: bytes) -> tuple[Usage | None, bool]:
    """The usage in an event of OpenAI's, and whether the event carries nothing else. Never raises."""
    try:
        chunk = _CHUNK.decode(data)
    except UNREADABLE:
        return None, False  # the client may understand it
    return of_openai(chunk.usage), chunk.usage is not None and not chunk.choices


def of_openai(usage: OpenAIUsage | None) -> Usage | None:
    """The usage of an answer; None if it has none."""
    if usage is None:
        return None
    details = usage.prompt_tokens_details
    return within_bounds(
        usage.prompt_tokens, details.cached_tokens if details else None, usage.completion_tokens
    )


def within_bounds(given: int | None, cached: int | None, output: int | None) -> Usage:
    """The usage, clamped to possible values, so that a replica's error cannot make a negative charge."""
    input_tokens = given if given and given > 0 else 0
    cached_tokens = cached if cached and cached > 0 else 0
    output_tokens = output if output and output > 0 else 0
    return Usage(input_tokens, min(cached_tokens, input_tokens), output_tokens)


MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""Bytes of a whole answer, and of one event of a stream, which may carry as much: /generate repeats all text in every event."""

MAX_WHOLE_EVENT_BYTES: Final = 1024 * 1024
"""A longer event is passed on as it comes (`long_events`). It has the log probabilities of a long prompt, or repeats a long request."""
TOO_LARGE: Final = f"an event of the replica's stream exceeds {MAX_ANSWER_BYTES} bytes"
MANY: Final = 1 << 62
_DONE: Final = b"[DONE]"
_DONE_EVENT: Final = b"data: [DONE]\n\n"
_USAGE_OF_EVENT: Final = re.compile(rb'"usage":\s*' + OBJECT)
_FRAMING_BYTES: Final = 16  # of a chunk and an event around the data
LONG_EVENT_BYTES: Final = 4000  # with room for a token it fits into the longest chunk that passes
_USAGE: Final = b'"usage"'


@dataclass(slots=True, kw_only=True, eq=False)
class EventScan:
    """One stream of OpenAI's. After `broken` is set nothing more may be fed. No `Struct`: each event is an assignment, which takes six
    times as long there."""

    PAYLOAD: ClassVar = b'"choices"'
    """Member of every event but errors; never within a text, where JSON escapes the quotes."""
    HAS_USUAL: ClassVar = True
    """Whether there are usual events, which need no look inside."""
    FACTS: ClassVar = facts(usage=OBJECT, finish_reason=rb'"\w+"')
    """What is looked for in an event that is too long to be read."""

    drops_usage: bool
    """Whether the client did not ask for the usage event."""
    continuous: bool = False
    """Whether the router asked for usage in every event, which its client did not."""
    most_events: int = MANY
    """More events from the first content on show that the engine goes on beyond the bound of the output."""
    left: int = MANY
    """How many of them may still come."""
    packed: int = 0
    """Events of several tokens."""
    begun: bool = False
    """The answer has begun: with its first content (R19), or with its end if it has no content."""
    done: bool = False
    """The replica sent its last event. A stream that is done and has not begun was empty."""
    failure: Refusal | None = None
    """The error event that the replica sent, or what ends a stream that is cut; None: neither."""
    cut: bool = False
    """The engine goes on beyond the bound of the output: nothing more of its answer is passed on."""
    broken: str | None = None
    """Why the stream is invalid, once that is known."""
    _packed_bytes: int = 0
    """Bytes of text of the events of several tokens."""
    _opening: int = 0
    """Events before the first content: a role, as chats begin."""
    _ends: bool = False
    """The answer has ended, by a reason and by usage, whether or not `[DONE]` follows."""
    _fresh: bool = True
    """No bytes are kept, the stream has not ended, and the last event had content."""
    _long: LongEvent | None = None
    """An event that is passed on as it comes, until it ends."""
    _tail: bytes = b""
    _tail_bytes: int = 0
    """Size of `_tail` and `_more`."""
    _more: list[bytes] = field(default_factory=list)
    """What follows `_tail` of a long event; joined at its end."""
    _usage: Usage | None = None
    _rewritten: bytes | None = None
    """What the client gets instead of the current event; None: the event itself."""
    _usual_bytes: int = MAX_CHUNK_BYTES
    """Size of an event of one token. Larger ones are counted by their text."""
    _usual_chunk: int = MAX_CHUNK_BYTES
    """Size of its chunk."""
    _passable: int = MAX_CHUNK_BYTES
    """Size of a chunk that may pass now; 0 unless `_fresh`."""

    @property
    def events(self) -> int:
        """Events so far, without those of usage alone."""
        return self._opening + self.content_events

    @property
    def usage(self) -> Usage | None:
        """The usage that the replica has reported so far."""
        return self._usage

    @property
    def ended(self) -> bool:
        """Whether the answer is whole, with or without its last event."""
        return self.done or self._ends

    @property
    def failed(self) -> bool:
        """Whether the replica sent an error event of its own, or its stream is cut with one."""
        return self.failure is not None

    @property
    def content_events(self) -> int:
        """Events from the first content on so far."""
        return self.most_events - self.left

    @property
    def output_tokens(self) -> int:
        """About the output tokens so far: one for each event with content, and more for one with a long text."""
        tokens = self.most_events - self.left
        if self.packed:
            tokens += max(0, self._packed_bytes // USUAL_TOKEN_BYTES - self.packed)
        return tokens

    @property
    def least_tokens(self) -> int:
        """Output tokens that were certainly streamed, but for events without a token."""
        tokens = self.most_events - self.left
        if self.packed:
            tokens += max(0, self._packed_bytes // LONG_TOKEN_BYTES - self.packed)
        return tokens

    @property
    def packs_tokens(self) -> bool:
        """Whether most events carry several tokens."""
        return 2 * self.packed > self.events

    def passes(self, chunk: bytes) -> bool:
        """Whether a chunk, framing included, is one usual event. Then it is counted, and may be passed on as it is.

        Runs once for each event of each stream, so it calls nothing but the searches.
        """
        size = len(chunk)
        if (
            size < self._passable
            and chunk.startswith(CHUNK_HEADS[size])
            and chunk.endswith(CHUNK_TAIL)
            and chunk.find(b"\n", 8) == size - 4  # behind the framing: one line
            and self.left
        ):
            self.left -= 1
            return True
        return False

    def feed(self, data: bytes) -> bytes:
        """Whole events that may go to the client now. Sets `done`, `failed` or `broken`."""
        # One whole event of one line. It is quick to search for single bytes, and slow to search for pairs.
        if self._fresh and data.startswith(START) and data.endswith(b"\n\n"):
            if data.find(b"\n") == len(data) - 2:
                passes = self._data(data[6:-2].strip())
                if self.cut or self._rewritten is not None:
                    return self._replaced()
                return data if passes else b""
            if self.HAS_USUAL and self.begun:
                count = usual_events(data, self._usual_bytes)
                if 0 < count <= self.left:
                    self.left -= count
                    return data
        return self._slowly(data)

    def close(self) -> None:
        """The connection ended, perhaps without the last event. Sets `broken` if that was too early."""
        if self._ends:
            self.begun = True
        elif self.broken is None and not self.done and not self.failed:
            where = (
                "in the middle of an event" if self._tail or self._long else "before its last event"
            )
            self.broken = f"the replica's stream ended {where}"

    def error_event(self, refusal: Refusal) -> bytes:
        """The event that ends a stream which failed after its first byte."""
        return error_event(refusal)

    def last_event(self) -> bytes:
        """The event that ends a whole stream whose replica left it out."""
        return _DONE_EVENT

    def _slowly(self, data: bytes) -> bytes:
        if self._long is not None:
            return self._more_of_long(self._long, data)
        if self._tail:
            if data.find(b"\n") < 0:
                if len(self._tail) < FIELD_BYTES:
                    self._tail += data  # so that it begins with a whole name of a field
                else:
                    self._more.append(data)
                self._tail_bytes += len(data)
                self._check_size(self._tail_bytes)
                return self._begin_long() if self._tail_bytes > MAX_WHOLE_EVENT_BYTES else b""
            data = b"".join((self._tail, *self._more, data))
            self._more.clear()
        events, tail = cut(data)
        passed = []
        for event in events:
            if self._event(event):
                passed.append(event if self._rewritten is None else self._replaced())
            elif self.cut or self.broken is not None:
                self._tail = b""
                return b"".join(passed) + self._replaced()
        self._tail, self._tail_bytes = tail, len(tail)
        self._fresh = not tail and not self.done and (self.begun or not self._opening)
        self._passable = self._usual_chunk if self._fresh else 0
        if tail and not begins_event(tail):
            self._break("the replica's stream contains no events")
        self._check_size(len(tail))
        if len(tail) > MAX_WHOLE_EVENT_BYTES:  # of several lines
            passed.append(self._begin_long())
        return b"".join(passed)

    def _begin_long(self) -> bytes:
        """Pass on what is there of an event that is too long to be read."""
        if self.broken is not None:
            return b""
        data = b"".join((self._tail, *self._more))
        self._more.clear()
        self._tail, self._tail_bytes = b"", 0
        self._fresh, self._passable = False, 0
        name = name_in(data)
        if name is None:
            return self._break("an event of the replica's stream is too long and has no data")
        self._long = self._begin_named(name, data)
        if self._long is None:
            return self._replaced()
        self._long.feed(data)
        return data

    def _begin_named(self, name: bytes, head: bytes) -> LongEvent | None:
        """Note the beginning of a long event; None: it is beyond the bound of the output, and the stream is cut."""
        if name == b"error" or begins_error(head):
            self._fails(b"")
        elif not self._counts_long():
            return None
        return LongEvent(name, self.FACTS)

    def _counts_long(self) -> bool:
        """Count a long event with content, as one token."""
        if not self.left:
            self.cut = self.done = True
            self._rewritten = self._end_of_cut(b"")
            return False
        self.left -= 1
        self.begun = True
        return True

    def _long_ends(self, event: LongEvent) -> None:
        """Note what was found in a long event."""
        usage, _ = of_chunk(event.members)
        self._usage = usage or self._usage
        self._ends = usage is not None and event.members.find(b'"finish_reason"') >= 0

    def _more_of_long(self, event: LongEvent, data: bytes) -> bytes:
        size = event.feed(data)
        if size is None:
            self._check_size(event.size_bytes)
            return data
        self._long = None
        self._long_ends(event)
        self._fresh, self._passable = not self.done, 0 if self.done else self._usual_chunk
        rest = data[size:]
        return data[:size] + self._slowly(rest) if rest else data

    @property
    def is_within(self) -> bool:
        return self._long is not None

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > MAX_ANSWER_BYTES:
            self._break(TOO_LARGE)

    def _event(self, event: bytes) -> bool:
        """Note one whole event; returns whether to pass it on."""
        if self.done:
            return False  # after the end
        # The usual case, one line: several times faster than the general one.
        if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2:
            return self._data(event[6:-2].strip())
        lines = [line for line in LINE.split(event) if line]
        if not all(line.startswith(FIELDS) for line in lines):
            self._break("the replica's stream contains no events")
            return False
        if any(line.startswith(b"error:") for line in lines):
            return self._fails(b"\n".join(line[6:].strip() for line in lines))
        data = b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))
        # Without data it is a comment, passed on too: it may keep a connection alive.
        return not data or self._named(name_of(lines), data)

    def _named(self, name: bytes, data: bytes) -> bool:
        """Note an event with its name, which OpenAI's completions and `/generate` use for errors at most."""
        return self._fails(data) if name == b"error" else self._data(data)

    def _fails(self, data: bytes) -> bool:
        """Note an error of the replica."""
        self.failure = failure_in(data) or UNKNOWN_FAILURE
        return True

    def _data(self, data: bytes) -> bool:
        """Note the data of an event; returns whether to pass the event on."""
        if data == _DONE:
            self.done, self.begun = True, self.begun or self._ends
        elif not (data.startswith(b"{") and data.endswith(b"}")):
            self._break("an event of the replica's stream is not JSON")
            return False
        elif data.find(self.PAYLOAD) < 0 and failure_in(data) is not None:
            return self._fails(data)
        else:
            return self._content(data)
        return True

    def _content(self, data: bytes) -> bool:
        if not data.endswith(NO_USAGE) and data.find(_USAGE) >= 0:
            usage, alone = of_chunk(data)
            self._usage = usage or self._usage
            # Usage in every event says nothing of the end: then the usage event follows.
            self._ends = alone or (
                usage is not None and not self.continuous and begun.has_ended(data)
            )
            if alone:
                return not self.drops_usage
            if usage is not None and self.continuous:
                self._rewritten = b"data: " + _USAGE_OF_EVENT.sub(b'"usage":null', data) + b"\n\n"
        if not self.begun and not self._begins(data, begun.of_chunk(data)):
            return True
        if len(data) > self._usual_bytes or not self.left:
            return self._count(data)
        self.left -= 1
        return True

    def _begins(self, data: bytes, progress: Progress) -> bool:
        """Note an event before the first content; returns whether it brings that."""
        if progress is Progress.CONTENT:
            self.begun = True
            self._sample(data)
            return True
        self._opening += 1
        self._fresh = False
        self._passable = 0
        self._ends = self._ends or progress is Progress.END
        return False

    def _sample(self, data: bytes) -> None:
        """The first event with content shows how large an event of one token is."""
        if len(data) >= LONG_EVENT_BYTES:
            return
        # The last string is the text: what follows it is null. Without one the length is of something else, which is short.
        start = data.rfind(b'":"') + 3
        usual = self._usual_bytes = len(data) - data.find(b'"', start) + start + TOKEN_ROOM
        self._passable = self._usual_chunk = usual + _FRAMING_BYTES

    def _count(self, data: bytes) -> bool:
        """Count an event with content; returns whether to pass it on."""
        if not self.left:
            if written_bytes(data):
                self.cut = self.done = True
                self._rewritten = self._end_of_cut(data)
            return not self.cut
        self.left -= 1
        if len(data) > self._usual_bytes and (written := written_bytes(data)) > LONG_TOKEN_BYTES:
            self.packed += 1
            self._packed_bytes += written
        return True

    def _end_of_cut(self, data: bytes) -> bytes:
        """The end of a stream that is cut, made of the event that is beyond the bound."""
        return end_of_cut(data) + _DONE_EVENT

    def _replaced(self) -> bytes:
        """Take what the client gets instead of the event."""
        data, self._rewritten = self._rewritten or b"", None
        return data

    def _break(self, why: str) -> bytes:
        self.broken = why
        return b""
