"""OpenAI's completions, chat completions and embeddings: requests, the usage in answers, and streams. Pure.

`EventScan.feed` takes bytes as they arrive, cut anywhere, and returns whole events. It keeps half an event until the rest
arrives. So a stream that breaks can still end with an error event. Nearly every event is alone in its chunk and has nothing
that the router needs. `passes` recognises such an event by four searches. `streams` has the scans of the
other APIs.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import ClassVar, Final

import msgspec
from evenkeel_contract.messages import UNREADABLE
from evenkeel_fairshare.fleet.contract import Usage
from msgspec import UNSET, Raw, UnsetType

from evenkeel_router.api import begun
from evenkeel_router.api.begun import Progress
from evenkeel_router.api.errors import Outcome, Refusal, error_event, failure_in
from evenkeel_router.api.inference import (
    Guarded,
    Inference,
    Input,
    Limits,
    Message,
    Prompt,
    adapter_of,
    check_choices,
    check_not_empty,
    check_output,
    members_of,
    prompt_of_input,
    prompt_of_messages,
    splice,
    without_guarded,
)

DEFAULT_COMPLETION: Final = 16  # OpenAI's default `max_tokens` of completions
_USAGE_MEMBER: Final = b'"stream_options":{"include_usage":true}'


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _OpenAI(Guarded, kw_only=True):
    model: str
    n: int | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | UnsetType | None = UNSET
    lora_path: str | list[str | None] | None = None


class _Completions(_OpenAI, kw_only=True):
    prompt: Input


class _Chat(_OpenAI, kw_only=True):
    messages: list[Message]
    max_completion_tokens: int | None = None
    tools: Raw | UnsetType = UNSET


class _Embeddings(_OpenAI, kw_only=True):
    input: Input


_COMPLETIONS: Final = msgspec.json.Decoder(_Completions)
_CHAT: Final = msgspec.json.Decoder(_Chat)
_EMBEDDINGS: Final = msgspec.json.Decoder(_Embeddings)


def completions(body: bytes, limits: Limits) -> Inference:
    """`/v1/completions`."""
    fields = _COMPLETIONS.decode(body)
    check_output("max_tokens", fields.max_tokens, limits)
    text = prompt_of_input(fields.prompt, "prompt")
    bound = DEFAULT_COMPLETION if fields.max_tokens is None else fields.max_tokens
    return _openai(body, fields, text, limits, bound=bound)


def embeddings(body: bytes, limits: Limits) -> Inference:
    """`/v1/embeddings`."""
    fields = _EMBEDDINGS.decode(body)
    fields.stream = None
    text = prompt_of_input(fields.input, "input")
    return _openai(body, fields, text, limits, bound=0)


def chat(body: bytes, limits: Limits) -> Inference:
    """`/v1/chat/completions`."""
    fields = _CHAT.decode(body)
    # As in SGLang: 0 only computes the prompt, and a max_completion_tokens of 0 counts as not set.
    check_output("max_tokens", fields.max_tokens, limits, least=0)
    check_output("max_completion_tokens", fields.max_completion_tokens, limits, least=0)
    check_not_empty("messages", fields.messages)
    bound = fields.max_completion_tokens or fields.max_tokens
    text = prompt_of_messages(fields.messages, fields.tools)
    return _openai(body, fields, text, limits, bound=bound)


def _openai(
    body: bytes, fields: _OpenAI, text: Prompt, limits: Limits, *, bound: int | None
) -> Inference:
    adapter = adapter_of(fields.model, limits, fields.lora_path)
    check_choices("n", fields.n)
    body, stripped = without_guarded(body, fields)
    stream = bool(fields.stream)
    options = fields.stream_options
    wants_usage = isinstance(options, _StreamOptions) and bool(options.include_usage)
    if stream and options is UNSET:
        body = splice(body, _USAGE_MEMBER)
    elif stream and not wants_usage:
        body = _with_usage_option(body)
    return Inference(
        body=body,
        text=text.first,
        prompt_bytes=text.size_bytes,
        prompt_tokens=text.tokens,
        max_output_tokens=None if bound is None else bound * (fields.n or 1) * text.prompts,
        stream=stream,
        wants_usage=wants_usage,
        stripped=stripped,
        adapter=adapter,
    )


def _with_usage_option(body: bytes) -> bytes:
    """Change the client's `stream_options`. A second member with that name would have no effect: engines would use the client's."""
    members = members_of(body)
    raw = bytes(members["stream_options"])
    options = {} if raw == b"null" else members_of(raw)
    options["include_usage"] = Raw(b"true")
    members["stream_options"] = Raw(msgspec.json.encode(options))
    return msgspec.json.encode(members)


class Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: Details | None = None


class OpenAIReply(msgspec.Struct):
    usage: _Usage | None = None


class _Chunk(msgspec.Struct):
    usage: _Usage | None = None
    choices: list[msgspec.Raw] | None = None


OPENAI: Final = msgspec.json.Decoder(OpenAIReply)
_CHUNK: Final = msgspec.json.Decoder(_Chunk)


def of_chunk(data: bytes) -> tuple[Usage | None, bool]:
    """The usage in an event of OpenAI's, and whether the event carries nothing else. Never raises."""
    try:
        chunk = _CHUNK.decode(data)
    except UNREADABLE:
        return None, False  # the client may understand it
    return of_openai(chunk.usage), chunk.usage is not None and not chunk.choices


def of_openai(usage: _Usage | None) -> Usage | None:
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

TOO_LARGE: Final = f"an event of the replica's stream exceeds {MAX_ANSWER_BYTES} bytes"
_UNKNOWN_FAILURE: Final = Refusal(
    Outcome.REPLICA_FAILED, "The replica ended the stream with an error.", code="replica_failed"
)
_DONE: Final = b"[DONE]"
_LAST_EVENT: Final = b"data: [DONE]\n\n"
_START: Final = b'data: {"'
_USAGE: Final = b'"usage"'
_NO_USAGE: Final = b'"usage":null}'  # how SGLang ends every event but the last when asked for usage
_END: Final = re.compile(rb"\r\n\r\n|\n\n")  # \r\r is legal, too, but no server sends it
_LINE: Final = re.compile(rb"\r?\n")
_FIELDS: Final = (b"data:", b"event:", b"id:", b"retry:", b":", b"error:")
"""Beginnings of lines. `error:` is llama.cpp's, with the error as its data."""
_CHUNK_TAIL: Final = _NO_USAGE + b"\n\n\r\n"


def _chunk_head(size_bytes: int) -> bytes:
    """How a chunk of this size (framing included) begins if it is an event. A line end: no chunk of an event has this size."""
    for digits in range(1, 4):
        head = b"%x\r\n" % max(0, size_bytes - digits - 4)
        if len(head) == digits + 2:
            return head + _START
    return b"\n"


_MAX_CHUNK_BYTES: Final = 4096  # an event of one token has about 250
_CHUNK_HEADS: Final = [_chunk_head(size_bytes) for size_bytes in range(_MAX_CHUNK_BYTES)]
"""Beginnings of chunks, by size: one comparison checks both the framing and the beginning of the event."""


class EventScan:
    """One stream of OpenAI's. After `broken` is set nothing more may be fed."""

    __slots__ = (
        "_drops_usage", "_ends", "_fresh", "_more", "_opening", "_tail", "_usage", "begun", "broken", "done", "events",
        "failure",
    )  # fmt: skip

    PAYLOAD: ClassVar = b'"choices"'
    """Member of every event but errors; never within a text, where JSON escapes the quotes."""

    def __init__(self, *, drops_usage: bool) -> None:
        """`drops_usage`: the client did not ask for the usage event."""
        self._drops_usage = drops_usage
        self._fresh = (
            True  # no bytes are kept, the stream has not ended, and the last event had content
        )
        self._tail = b""
        self._more: list[bytes] = []
        """What follows `_tail` of a long event; joined at its end."""
        self._usage: Usage | None = None
        self.events = 0
        """Events so far, without those of usage alone."""
        self._opening = 0
        """Events before the first content: a role, as chats begin."""
        self._ends = False
        """The answer has ended, by a reason and by usage, whether or not `[DONE]` follows."""
        self.begun = False
        """The answer has begun: with its first content (R19), or with its end if it has no content."""
        self.done = False
        """The replica sent its last event. A stream that is done and has not begun was empty."""
        self.failure: Refusal | None = None
        """The error event that the replica sent; None: it sent none."""
        self.broken: str | None = None
        """Why the stream is invalid, once that is known."""

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
        """Whether the replica sent an error event of its own."""
        return self.failure is not None

    @property
    def output_tokens(self) -> int:
        """Events with content so far, which is about the number of output tokens."""
        return self.events - self._opening

    def passes(self, chunk: bytes) -> bool:
        """Whether a chunk, framing included, is one usual event. Then it is counted, and may be passed on as it is.

        Runs once for each event of each stream, so it calls nothing but the searches.
        """
        size = len(chunk)
        if (
            self._fresh
            and size < _MAX_CHUNK_BYTES
            and chunk.startswith(_CHUNK_HEADS[size])
            and chunk.endswith(_CHUNK_TAIL)
            and chunk.find(b"\n", 8) == size - 4  # behind the framing: one line
        ):
            self.events += 1
            return True
        return False

    def feed(self, data: bytes) -> bytes:
        """Whole events that may go to the client now. Sets `done`, `failed` or `broken`."""
        # One whole event of one line. It is quick to search for single bytes, and slow to search for pairs.
        if (
            self._fresh
            and data.startswith(_START)
            and data.find(b"\n") == len(data) - 2
            and data.endswith(b"\n")
        ):
            return data if self._data(data[6:-2].strip()) else b""
        return self._slowly(data)

    def close(self) -> None:
        """The connection ended, perhaps without the last event. Sets `broken` if that was too early."""
        if self._ends:
            self.begun = True
        elif self.broken is None and not self.done and not self.failed:
            where = "in the middle of an event" if self._tail else "before its last event"
            self.broken = f"the replica's stream ended {where}"

    def error_event(self, refusal: Refusal) -> bytes:
        """The event that ends a stream which failed after its first byte."""
        return error_event(refusal)

    def last_event(self) -> bytes:
        """The event that ends a whole stream whose replica left it out."""
        return _LAST_EVENT

    def _slowly(self, data: bytes) -> bytes:
        if self._tail:
            if b"\n" not in data:
                self._more.append(data)
                self._check_size(len(self._tail) + sum(map(len, self._more)))
                return b""
            data = b"".join((self._tail, *self._more, data))
            self._more.clear()
        events, tail = _cut(data)
        passed = []
        for event in events:
            if self._event(event):
                passed.append(event)
            if self.broken is not None:
                self._tail = b""
                return b"".join(passed)
        self._tail = tail
        self._fresh = not tail and not self.done and (self.begun or not self._opening)
        if len(tail) > MAX_ANSWER_BYTES:
            self._check_size(len(tail))
        elif tail and not _begins_event(tail):
            self._break("the replica's stream contains no events")
        return b"".join(passed)

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
        lines = [line for line in _LINE.split(event) if line]
        if not all(line.startswith(_FIELDS) for line in lines):
            self._break("the replica's stream contains no events")
            return False
        if any(line.startswith(b"error:") for line in lines):
            return self._fails(b"\n".join(line[6:].strip() for line in lines))
        data = b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))
        # Without data it is a comment, passed on too: it may keep a connection alive.
        return not data or self._named(_name(lines), data)

    def _named(self, name: bytes, data: bytes) -> bool:
        """Note an event with its name, which OpenAI's completions and `/generate` use for errors at most."""
        return self._fails(data) if name == b"error" else self._data(data)

    def _fails(self, data: bytes) -> bool:
        """Note an error of the replica."""
        self.failure = failure_in(data) or _UNKNOWN_FAILURE
        return True

    def _data(self, data: bytes) -> bool:
        """Note the data of an event; returns whether to pass the event on."""
        if data == _DONE:
            self.done = True
            self.begun = self.begun or self._ends
        elif not (data.startswith(b"{") and data.endswith(b"}")):
            self._break("an event of the replica's stream is not JSON")
            return False
        elif self.PAYLOAD not in data and failure_in(data) is not None:
            return self._fails(data)
        else:
            return self._content(data)
        return True

    def _content(self, data: bytes) -> bool:
        if not data.endswith(_NO_USAGE) and _USAGE in data:
            usage, alone = of_chunk(data)
            self._usage = usage or self._usage
            self._ends = alone or (usage is not None and begun.has_ended(data))
            if alone:
                return not self._drops_usage
        if not self.begun:
            self._begin(begun.of_chunk(data))
        self.events += 1
        return True

    def _begin(self, progress: Progress) -> None:
        """Note what an event brings, before the first content."""
        if progress is Progress.CONTENT:
            self.begun = True
            return
        self._opening += 1
        self._fresh = False
        self._ends = self._ends or progress is Progress.END

    def _break(self, why: str) -> bytes:
        self.broken = why
        return b""


def _cut(data: bytes) -> tuple[list[bytes], bytes]:
    """Whole events, each with its end, and what is left."""
    if b"\r" not in data:  # the usual case; a split is several times faster than the pattern
        *events, tail = data.split(b"\n\n")
        return [event + b"\n\n" for event in events], tail
    ends = [0, *(end.end() for end in _END.finditer(data))]
    return [data[start:end] for start, end in pairwise(ends)], data[ends[-1] :]


def _name(lines: list[bytes]) -> bytes:
    """The event's name; empty if it has none."""
    return next((line[6:].strip() for line in lines if line.startswith(b"event:")), b"")


def _begins_event(tail: bytes) -> bool:
    """Whether these bytes can begin an event."""
    tail = tail.lstrip(b"\r\n")
    return not tail or any(tail.startswith(field) or field.startswith(tail) for field in _FIELDS)
