"""Bodies of requests and answers that would stop the event loop, read by a process of their own (`body_worker`).

Small bodies are read at once. Whether one is small is seen without building anything: by its size, and above `SMALL_BYTES` by the
commas and brackets in it, of which no structure has less than values. One body at a time is read beside the loop; tenants take
turns, so that one of them can delay another by one body.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from array import array
from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO
from socket import AF_UNIX, SO_SNDBUF, SOCK_STREAM, SOL_SOCKET, socketpair
from typing import Final, Self

import msgspec
from evenkeel_fairshare.fleet.contract import Usage
from evenkeel_fairshare.prefix.index import namespace_seed

from evenkeel_router.api.answers import ErrorAnswer, GarbageError
from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.api.errors import Outcome, Refusal
from evenkeel_router.api.identity import Client
from evenkeel_router.api.inference import Hashed, Inference, Limits
from evenkeel_router.api.named import Named
from evenkeel_router.request import body_worker
from evenkeel_router.request.body_worker import (
    ANSWER,
    QUESTION,
    Answer,
    Piece,
    Question,
    ReadAnswer,
    ReadInference,
    ReadName,
    ReadNamed,
    ReadRequest,
    ReadUsage,
    Refused,
    marks_in,
)

_log = logging.getLogger(__name__)
SMALL_BYTES: Final = 16 * 1024
"""Read at once whatever it is: 5,000 lists take about 4 ms at worst."""
LARGE_BYTES: Final = 1024 * 1024
"""A body from which on it is never read at once: a megabyte of text takes about 4 ms until it is matched."""
MOST_MARKS: Final = 8192
"""Read at once with so many commas and brackets: values that the router reads take up to 0.7 µs each."""
LARGE_ANSWER_BYTES: Final = 256 * 1024
"""An answer from which on it is read beside the loop."""
SLICE_BYTES: Final = 1024 * 1024
"""Copied in one go, in about half a millisecond."""
SILENT_S: Final = 30.0
"""Silence after which the process is killed: ten times what the worst body takes."""
_SOCKET_BYTES: Final = 1024 * 1024


def is_large(body: bytes) -> bool:
    """Whether reading a request's body could stop the event loop for more than about 5 ms."""
    size_bytes = len(body)
    return size_bytes > SMALL_BYTES and (size_bytes > LARGE_BYTES or marks_in(body) > MOST_MARKS)


class LargeBodies:
    """The process, started when it is first needed."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._turns: dict[str, asyncio.Lock] = {}
        """Tenant → its turn to wait for the process. As many tenants as the configuration names."""
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._answers = msgspec.msgpack.Decoder(Answer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._end()

    async def start(self) -> None:
        """Start the process before a body needs it: that takes a fifth of a second."""
        async with self._turn:
            with suppress(OSError):
                await self._started()

    async def inference(  # noqa: PLR0917 - as `Api.parse`, and whose it is
        self,
        endpoint: Endpoint,
        body: bytes,
        limits: Limits,
        content_type: str,
        *,
        client: Client,
        block_bytes: int,
    ) -> Inference:
        """What `Api.parse` makes of a client's body, with hashes in place of its text. Raises `Refusal`."""
        seed = namespace_seed(client.cache_salt)
        question = ReadRequest(endpoint.value, limits, content_type, block_bytes, seed)
        read = await self._ask(client.tenant_identity, question, body)
        if isinstance(read, Refused):
            raise read.refusal()
        assert isinstance(read, ReadInference)
        hashes = array("Q", read.hashes)
        return msgspec.structs.replace(
            read.inference,
            body=await _joined(read.pieces, body),
            hashed=Hashed(hashes, block_bytes, read.text_bytes),
            values=read.values,
        )

    async def named(
        self,
        endpoint: Endpoint,
        body: bytes,
        content_type: str,
        *,
        tenant: str,
        renames: Mapping[str, str],
    ) -> Named:
        """What `read_named` makes of a body; raises `Refusal`."""
        read = await self._ask(tenant, ReadName(endpoint.value, content_type, renames), body)
        if isinstance(read, Refused):
            raise read.refusal()
        assert isinstance(read, ReadNamed)
        return Named(read.model, await _joined(read.pieces, body))

    async def answer(
        self, endpoint: Endpoint, body: bytes, content_type: str, *, tenant: str, counts_text: bool
    ) -> tuple[Usage | None, int]:
        """What `of_reply` makes of an answer, and bytes of text in it. Raises `GarbageError`, `ErrorAnswer`, `Refusal`."""
        question = ReadAnswer(endpoint.value, content_type, counts_text)
        read = await self._ask(tenant, question, body)
        if isinstance(read, Refused):
            raise ErrorAnswer(read.refusal())
        if not isinstance(read, ReadUsage):
            raise GarbageError(read.why if isinstance(read, body_worker.Unreadable) else "")
        return read.usage, read.written

    async def _ask(self, tenant: str, question: Question, body: bytes) -> Answer:
        turn = self._turns.get(tenant)
        if turn is None:
            turn = self._turns[tenant] = asyncio.Lock()
        async with turn:
            await self._turn.acquire()
            exchange = asyncio.create_task(self._exchange(question, body))
            # A client that leaves must not end the exchange halfway: the process would end with it.
            exchange.add_done_callback(self._exchanged)
            return await asyncio.shield(exchange)

    def _exchanged(self, exchange: asyncio.Task[Answer]) -> None:
        self._turn.release()
        if not exchange.cancelled():
            exchange.exception()

    async def _exchange(self, question: Question, body: bytes) -> Answer:
        try:
            async with asyncio.timeout(SILENT_S):
                reader, writer = await self._started()
                head = msgspec.msgpack.encode(question)
                writer.write(QUESTION.pack(len(head), len(body)) + head)
                writer.write(body)
                (size,) = ANSWER.unpack(await reader.readexactly(ANSWER.size))
                answer: Answer = self._answers.decode(await reader.readexactly(size))
        except (OSError, EOFError, TimeoutError) as error:  # it was killed, or cannot be started
            await self._end()
            _log.warning("the process that reads large bodies ended; the next body starts one")
            message = "The router could not read the body. Send the request again."
            raise Refusal(
                Outcome.UNAVAILABLE, message, code="overloaded", retry_after_s=1.0
            ) from error
        return answer

    async def _started(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is None or self._writer is None:
            ours, theirs = socketpair(AF_UNIX, SOCK_STREAM)
            with theirs:
                for end in (ours, theirs):
                    end.setsockopt(SOL_SOCKET, SO_SNDBUF, _SOCKET_BYTES)
                # Isolated from the working folder. `Popen` forks without copying this process's tables of pages.
                command = (sys.executable, "-P", "-m", body_worker.__name__)
                try:
                    self._process = subprocess.Popen(command, stdin=theirs.fileno())  # noqa: ASYNC220 - a millisecond
                except OSError:
                    ours.close()
                    raise
            ours.setblocking(False)
            self._reader, self._writer = await asyncio.open_connection(sock=ours)
        return self._reader, self._writer

    async def _end(self) -> None:
        process, writer = self._process, self._writer
        self._process = self._reader = self._writer = None
        if writer is not None:
            writer.close()
        if process is not None:
            process.kill()
            await asyncio.to_thread(process.wait)


async def _joined(pieces: list[Piece], of: bytes) -> bytes:
    """The body that a replica receives; other requests are served while it is copied."""
    if pieces == [(0, len(of))]:
        return of
    whole, view = BytesIO(), memoryview(of)
    for piece in pieces:
        if isinstance(piece, bytes):
            whole.write(piece)
            continue
        for at in range(*piece, SLICE_BYTES):
            whole.write(view[at : min(at + SLICE_BYTES, piece[1])])
            await asyncio.sleep(0)
    return whole.getvalue()
