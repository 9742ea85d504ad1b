"""A process of its own that reads large bodies: reading one holds the interpreter, and with it every stream, for up to a second.

`large_bodies` starts this module as a program and asks one thing at a time over a socket. A question is the sizes of two parts, then
the parts: what to do (MessagePack) and the body. An answer is its size and itself (MessagePack). The values of a request are counted
before any is built. Its blocks are hashed here too, so the answer has neither its text nor what of the body is unchanged.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import struct
from array import array
from collections.abc import Mapping
from typing import BinaryIO, Final, TypeAlias

import msgspec
from evenkeel_contract.messages import UNREADABLE
from evenkeel_fairshare.fleet.contract import Usage
from evenkeel_fairshare.prefix.index import text_blocks

from evenkeel_router.api.answers import ErrorAnswer, GarbageError, of_reply, written_in
from evenkeel_router.api.endpoints import ENDPOINTS
from evenkeel_router.api.errors import Outcome, Refusal, invalid
from evenkeel_router.api.inference import Inference, Limits
from evenkeel_router.api.named import NotNamed, read_named

QUESTION: Final = struct.Struct(">IQ")
ANSWER: Final = struct.Struct(">I")
MAX_VALUES: Final = 1_048_576
"""Values in one body: a context of a million token ids, and what comes with them."""
NICE: Final = 5
"""The router goes first where both share a core."""
_LARGE_MEMBER: Final = 64 * 1024
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


Piece: TypeAlias = bytes | tuple[int, int]
"""Bytes, or begin and end of a part of the body that was sent."""


class ReadRequest(msgspec.Struct, frozen=True, tag="request"):
    """Parse a request's body, and hash its text."""

    path: str
    limits: Limits
    content_type: str
    block_bytes: int
    """Bytes of a block; 0: no hashes are wanted."""
    seed: int


class ReadName(msgspec.Struct, frozen=True, tag="name"):
    """Read which model a request's body names."""

    path: str
    content_type: str
    renames: Mapping[str, str]
    """Names that replicas do not get as they are."""


class ReadAnswer(msgspec.Struct, frozen=True, tag="answer"):
    """Read a replica's whole answer."""

    path: str
    content_type: str
    counts_text: bool
    """Whether the text that the model wrote is to be counted."""


class ReadInference(msgspec.Struct, frozen=True, tag="inference"):
    """A request that was parsed."""

    inference: Inference
    """The request without its body and its text."""
    pieces: list[Piece]
    """What a replica receives."""
    text_bytes: int
    hashes: bytes
    """64 bits for each block."""
    values: int
    """Values of the body, or a few more."""


class ReadNamed(msgspec.Struct, frozen=True, tag="named"):
    """The model of a request."""

    model: str | None
    pieces: list[Piece]
    """The body with the name that replicas know."""


class ReadUsage(msgspec.Struct, frozen=True, tag="usage"):
    """What an answer reports, and what it shows."""

    usage: Usage | None
    written: int
    """Bytes of text that the model wrote, if they were to be counted."""


class Unreadable(msgspec.Struct, frozen=True, tag="unreadable"):
    """An answer that is not JSON."""

    why: str


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A `Refusal`."""

    outcome: Outcome
    message: str
    code: str
    param: str | None
    retry_after_s: float | None
    status: int
    more: tuple[tuple[str, str], ...]
    """Headers."""

    @classmethod
    def of(cls, refusal: Refusal) -> Refused:
        """What was raised."""
        return cls(
            refusal.outcome,
            refusal.message,
            refusal.code,
            refusal.param,
            refusal.retry_after_s,
            refusal.status,
            tuple(refusal.more),
        )

    def refusal(self) -> Refusal:
        """What is to be raised."""
        return Refusal(
            self.outcome,
            self.message,
            code=self.code,
            param=self.param,
            retry_after_s=self.retry_after_s,
            status=self.status,
            more=self.more,
        )


Question: TypeAlias = ReadRequest | ReadName | ReadAnswer
Answer: TypeAlias = ReadInference | ReadNamed | ReadUsage | Unreadable | Refused


def answer_to(question: Question, body: bytes) -> Answer:
    """Do what is asked."""
    if isinstance(question, ReadAnswer):
        return _read_answer(question, body)
    try:
        if isinstance(question, ReadName):
            return _read_name(question, body)
        return _read_request(question, body)
    except Refusal as refusal:
        return Refused.of(refusal)


def marks_in(body: bytes) -> int:
    """A bound of the values in a body beyond the first: commas and brackets, also those within strings."""
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def values_in(body: bytes) -> int:
    """Values of an encoded body, or more: exactly, where they might be more than `MAX_VALUES`; or at least, where they certainly are."""
    most = 1 + marks_in(body)
    if most <= MAX_VALUES:
        return most
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # so a quote begins or ends a string
    least = bare.count(b'"') // 4  # a value has one string at most, and its name one
    return least if least > MAX_VALUES else 1 + marks_in(b"".join(bare.split(b'"')[::2]))


def _read_name(question: ReadName, body: bytes) -> ReadNamed:
    endpoint = ENDPOINTS[question.path]
    try:
        named = read_named(endpoint, body, question.content_type, question.renames)
    except NotNamed as error:
        message = (
            "The body cannot be read, so it names no model; send valid JSON with the field model."
        )
        raise invalid(message, code="invalid_json", param="model") from error
    return ReadNamed(named.model, _pieces(named.body, body, 0))


def _read_request(question: ReadRequest, body: bytes) -> ReadInference:
    api = ENDPOINTS[question.path].api
    size_bytes, body = len(body), body.lstrip(b" \t\r\n")
    values = 0 if api.form else values_in(body)
    if values > MAX_VALUES:
        message = f"The body has {values} values or more; send at most {MAX_VALUES}."
        raise invalid(message, code="too_many_values")
    inference = api.parse(body, question.limits, question.content_type)
    hashes = b""
    if question.block_bytes and inference.text:
        blocks = text_blocks(inference.text, block_bytes=question.block_bytes, seed=question.seed)
        hashes = array("Q", blocks).tobytes()
    return ReadInference(
        msgspec.structs.replace(inference, body=b"", text=b""),
        _pieces(inference.body, body, size_bytes - len(body)),
        len(inference.text),
        hashes,
        values,
    )


def _pieces(changed: bytes, body: bytes, skipped: int) -> list[Piece]:
    """The changed body, as pieces of the one that was sent where they are large; so much was `skipped` of that."""
    return [
        piece if isinstance(piece, bytes) else (piece[0] + skipped, piece[1] + skipped)
        for piece in _pieces_of(changed, body)
    ]


def _pieces_of(changed: bytes, body: bytes) -> list[Piece]:
    if changed == body:
        return [(0, len(body))]
    start = body.find(b"{") + 1
    rest = body[start:]
    if changed.endswith(rest):  # a member was added
        return [changed[: len(changed) - len(rest)], (start, len(body))]
    pieces: list[Piece] = []
    done = 0
    try:
        members = _MEMBERS.decode(changed)
    except UNREADABLE:
        return [changed]
    for member in members.values():
        raw = bytes(member)
        if len(raw) < _LARGE_MEMBER:
            continue
        at, was_at = changed.find(raw, done), body.find(raw)
        if at >= 0 and was_at >= 0:
            pieces += changed[done:at], (was_at, was_at + len(raw))
            done = at + len(raw)
    return [*pieces, changed[done:]]


def _read_answer(question: ReadAnswer, body: bytes) -> Answer:
    endpoint = ENDPOINTS[question.path]
    try:
        usage = of_reply(endpoint, body, question.content_type)
    except ErrorAnswer as error:
        return Refused.of(error.refusal)
    except GarbageError as error:
        return Unreadable(str(error))
    return ReadUsage(usage, written_in(body) if question.counts_text else 0)


def main() -> None:
    """Answer until the router closes the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the router, which closes the socket
    os.nice(NICE)
    connection = socket.socket(fileno=0)
    source: BinaryIO = connection.makefile("rb")
    questions = msgspec.msgpack.Decoder(Question)
    gc.collect()
    gc.freeze()
    gc.disable()
    while sizes := source.read(QUESTION.size):
        head_bytes, body_bytes = QUESTION.unpack(sizes)
        question = questions.decode(source.read(head_bytes))
        answer = msgspec.msgpack.encode(answer_to(question, source.read(body_bytes)))
        connection.sendall(ANSWER.pack(len(answer)))
        connection.sendall(answer)
        del question, answer
        gc.collect()


if __name__ == "__main__":
    main()
