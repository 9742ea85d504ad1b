"""What a replica answers: the usage in whole answers, and the scan of a stream for its end, errors and usage. Pure.

Only the numbers that the router needs are decoded; the rest is checked to be JSON. Numbers that are missing or null
count as 0.

`EventScan.feed` takes bytes as they arrive, cut anywhere, and returns whole events. It keeps half an event until the
rest arrives, so that a stream that breaks can still end with an error event. Nearly every event of OpenAI's streams is
alone in its chunk and carries nothing that the router needs: `passes` recognises those by four searches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Final

import msgspec
from evenkeel_fairshare.fleet.contract import Usage

from evenkeel_router.api.audio import TOKENS_PER_S
from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.api.errors import Dialect, Refusal, error_event

JSON: Final = "application/json"
TEXT_BYTES_PER_TOKEN: Final = 4
"""Of a transcript, for its estimate. Engines do not report its tokens."""
_LONGEST_S: Final = 1e6


class GarbageError(ValueError):
    """An invalid answer of a replica."""


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _OpenAIUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _OpenAIReply(msgspec.Struct):
    usage: _OpenAIUsage | None = None


class _Chunk(msgspec.Struct):
    usage: _OpenAIUsage | None = None
    choices: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    delta: dict[str, object]


class _Deltas(msgspec.Struct):
    choices: list[_Choice]


class _Meta(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class Generated(msgspec.Struct):
    meta_info: _Meta | None = None


class _ResponsesUsage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None


class Response(msgspec.Struct):
    usage: _ResponsesUsage | None = None


class _AnthropicUsage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class Message(msgspec.Struct):
    usage: _AnthropicUsage | None = None


class _Heard(msgspec.Struct):
    seconds: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class _Transcript(msgspec.Struct):
    text: str = ""
    usage: _Heard | None = None


_OPENAI: Final = msgspec.json.Decoder(_OpenAIReply)
_CHUNK: Final = msgspec.json.Decoder(_Chunk)
_DELTAS: Final = msgspec.json.Decoder(_Deltas)
GENERATED: Final = msgspec.json.Decoder(Generated | list[Generated])
_RANKING: Final = msgspec.json.Decoder(_OpenAIReply | list[Generated])
_RESPONSE: Final = msgspec.json.Decoder(Response)
_MESSAGE: Final = msgspec.json.Decoder(Message)
_TRANSCRIPT: Final = msgspec.json.Decoder(_Transcript)
NOT_DECODED: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


def of_reply(endpoint: Endpoint, body: bytes, content_type: str = JSON) -> Usage | None:
    """The usage of a whole answer; None if it has none. Raises `GarbageError`."""
    api = endpoint.api
    if api.form and not content_type.startswith(JSON):
        return None  # a transcript as text
    try:
        return _READERS[api.dialect](body)
    except NOT_DECODED as error:
        raise GarbageError(f"the answer is not valid for {endpoint.value}: {error}") from error


def _of_ranking(body: bytes) -> Usage | None:
    ranking = _RANKING.decode(body)
    return of_generated(ranking) if isinstance(ranking, list) else _of_openai(ranking.usage)


def only_opens(data: bytes) -> bool:
    """Whether an event of a chat has no content, only a role. Never raises."""
    try:
        choices = _DELTAS.decode(data).choices
    except NOT_DECODED:
        return False
    return not any(value for one in choices for name, value in one.delta.items() if name != "role")


def of_chunk(data: bytes) -> tuple[Usage | None, bool]:
    """The usage in an event of OpenAI's, and whether the event carries nothing else. Never raises."""
    try:
        chunk = _CHUNK.decode(data)
    except NOT_DECODED:
        return None, False  # the client may understand it
    return _of_openai(chunk.usage), chunk.usage is not None and not chunk.choices


def _of_openai(usage: _OpenAIUsage | None) -> Usage | None:
    if usage is None:
        return None
    details = usage.prompt_tokens_details
    return _usage(
        usage.prompt_tokens, details.cached_tokens if details else None, usage.completion_tokens
    )


def of_response(usage: _ResponsesUsage | None) -> Usage | None:
    if usage is None:
        return None
    details = usage.input_tokens_details
    cached = None if details is None else details.cached_tokens
    return _usage(usage.input_tokens, cached, usage.output_tokens)


def of_message(usage: _AnthropicUsage | None) -> Usage | None:
    """Anthropic's `input_tokens` are those beside the cache."""
    if usage is None:
        return None
    read = max(0, usage.cache_read_input_tokens or 0)
    rest = max(0, usage.input_tokens or 0) + max(0, usage.cache_creation_input_tokens or 0)
    return _usage(rest + read, read, usage.output_tokens)


def _of_transcript(reply: _Transcript) -> Usage | None:
    usage = reply.usage
    if usage is None or not (usage.seconds or usage.input_tokens):
        return None
    heard = usage.input_tokens or int(TOKENS_PER_S * min(usage.seconds or 0, _LONGEST_S))
    written = usage.output_tokens
    return _usage(heard, 0, len(reply.text) // TEXT_BYTES_PER_TOKEN if written is None else written)


def of_generated(reply: Generated | list[Generated]) -> Usage | None:
    metas = [one.meta_info for one in (reply if isinstance(reply, list) else [reply])]
    usages = [
        _usage(meta.prompt_tokens, meta.cached_tokens, meta.completion_tokens)
        for meta in metas
        if meta is not None
    ]
    if not usages:
        return None
    return Usage(
        sum(usage.input_tokens for usage in usages),
        sum(usage.cached_tokens for usage in usages),
        sum(usage.output_tokens for usage in usages),
    )


def _usage(given: int | None, cached: int | None, output: int | None) -> Usage:
    """Clamped to possible values, so that a replica's error cannot make a negative charge."""
    input_tokens = max(0, given or 0)
    return Usage(input_tokens, min(max(0, cached or 0), input_tokens), max(0, output or 0))


_READERS: Final[Mapping[Dialect, Callable[[bytes], Usage | None]]] = {
    Dialect.OPENAI: lambda body: _of_openai(_OPENAI.decode(body).usage),
    Dialect.SGLANG: lambda body: of_generated(GENERATED.decode(body)),
    Dialect.RANKING: _of_ranking,
    Dialect.RESPONSES: lambda body: of_response(_RESPONSE.decode(body).usage),
    Dialect.ANTHROPIC: lambda body: of_message(_MESSAGE.decode(body).usage),
    Dialect.AUDIO: lambda body: _of_transcript(_TRANSCRIPT.decode(body)),
}


MAX_EVENT_BYTES: Final = 4 * 1024 * 1024  # /generate repeats all text in every event

_DONE: Final = b"[DONE]"
_START: Final = b'data: {"'
_USAGE: Final = b'"usage"'
_ROLE: Final = b'"role"'  # never within a text, where JSON escapes the quotes
_NO_USAGE: Final = b'"usage":null}'  # how SGLang ends every event but the last when asked for usage
_END: Final = re.compile(rb"\r\n\r\n|\n\n")  # \r\r is legal, too, but no server sends it
_LINE: Final = re.compile(rb"\r?\n")
_FIELDS: Final = (b"data:", b"event:", b"id:", b"retry:", b":")
_CHUNK_TAIL: Final = _NO_USAGE + b"\n\n\r\n"


def _chunk_head(size_bytes: int) -> bytes:
    """How a chunk of this size (framing included) begins if it is an event; a line end if no chunk has this size."""
    for digits in range(1, 4):
        head = b"%x\r\n" % max(0, size_bytes - digits - 4)
        if len(head) == digits + 2:
            return head + _START
    return b"\n"


_MAX_CHUNK_BYTES: Final = 4096
_CHUNK_HEADS: Final = [_chunk_head(size_bytes) for size_bytes in range(_MAX_CHUNK_BYTES)]
"""By size, so that one comparison checks both the framing and the beginning of the event."""


class EventScan:
    """One stream of OpenAI's. After `broken` is set nothing more may be fed."""

    __slots__ = (
        "_drops_usage", "_fresh", "_has_content", "_opening", "_tail", "_usage", "broken", "done", "events",
        "failed",
    )  # fmt: skip

    def __init__(self, *, drops_usage: bool) -> None:
        """`drops_usage`: the client did not ask for the usage event."""
        self._drops_usage = drops_usage
        self._fresh = (
            True  # no bytes are kept, the stream has not ended, and the last event had content
        )
        self._tail = b""
        self._usage: Usage | None = None
        self.events = 0
        """Events so far, without those of usage alone."""
        self._opening = 0
        """Events before the first content: a role, as chats begin."""
        self._has_content = False
        self.done = False
        """The replica sent its last event."""
        self.failed = False
        """The replica sent an error event of its own."""
        self.broken: str | None = None
        """Why the stream is invalid, once that is known."""

    @property
    def usage(self) -> Usage | None:
        """The usage that the replica has reported so far."""
        return self._usage

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
        """The connection ended. Sets `broken` if that was too early."""
        if self.broken is None and not self.done and not self.failed:
            where = "in the middle of an event" if self._tail else "before its last event"
            self.broken = f"the replica's stream ended {where}"

    def error_event(self, refusal: Refusal) -> bytes:
        """The event that ends a stream which failed after its first byte."""
        return error_event(refusal)

    def _slowly(self, data: bytes) -> bytes:
        events, tail = _cut(self._tail + data)
        passed = []
        for event in events:
            if self._event(event):
                passed.append(event)
            if self.broken is not None:
                self._tail = b""
                return b"".join(passed)
        self._tail = tail
        self._fresh = not tail and not self.done and (self._has_content or not self._opening)
        if len(tail) > MAX_EVENT_BYTES:
            self._break(f"an event of the replica's stream exceeds {MAX_EVENT_BYTES} bytes")
        elif tail and not _begins_event(tail):
            self._break("the replica's stream contains no events")
        return b"".join(passed)

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
        data = b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))
        # Without data it is a comment, passed on too: it may keep a connection alive.
        return not data or self._named(_name(lines), data)

    def _named(self, name: bytes, data: bytes) -> bool:
        """Note an event with its name, which OpenAI's completions and `/generate` do not use."""
        return self._data(data)

    def _data(self, data: bytes) -> bool:
        """The same for the data of an event."""
        if data == _DONE:
            self.done = True
        elif not (data.startswith(b"{") and data.endswith(b"}")):
            self._break("an event of the replica's stream is not JSON")
            return False
        elif data.startswith(b'{"error"'):
            self.failed = True
        else:
            return self._content(data)
        return True

    def _content(self, data: bytes) -> bool:
        if not data.endswith(_NO_USAGE) and _USAGE in data:
            usage, alone = of_chunk(data)
            self._usage = usage or self._usage
            if alone:
                return not self._drops_usage
        if not self._has_content:
            if _ROLE in data and only_opens(data):
                self._opening += 1
                self._fresh = False
            else:
                self._has_content = True
        self.events += 1
        return True

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
