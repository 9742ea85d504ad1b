"""Long answers made in slices (`evenkeel_router.slices`), shared, and sent in pieces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from typing import Final

from aiohttp import web

from evenkeel_router.slices import in_slices

LINES_PER_PIECE: Final = 512
PIECE_BYTES: Final = 64 * 1024
PAUSE_PER_COST: Final = 9.0
"""Pause between two renderings, in costs of the last one: renderings take at most a tenth of the time."""
MAX_SENDING: Final = 8
SEND_TIMEOUT_S: Final = 10.0


class SharedText:
    """A text rendered on demand. Requests that come at about the same time share one rendering.

    A request gets the rendering in progress, or one that ended at most `PAUSE_PER_COST` times its cost ago.
    """

    def __init__(self, render: Callable[[], Iterable[str]]) -> None:
        self._render = render
        self._task: asyncio.Task[Sequence[bytes]] | None = None
        self._fresh_until_s = 0.0

    async def get(self) -> Sequence[bytes]:
        """The text, in pieces."""
        if self._task is None or (self._task.done() and time.monotonic() >= self._fresh_until_s):
            self._task = asyncio.create_task(self._make())
        return await asyncio.shield(self._task)  # a request that is cancelled does not end it

    async def close(self) -> None:
        """End the rendering in progress."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _make(self) -> Sequence[bytes]:
        pieces, cost_s = await in_slices(_pieces(self._render()))
        self._fresh_until_s = time.monotonic() + PAUSE_PER_COST * cost_s
        return pieces


class Sender:
    """Sends long answers. It bounds the memory that slow readers hold: few at a time, each for a limited time."""

    def __init__(self) -> None:
        self._sending = 0

    async def send(
        self, request: web.Request, text: SharedText, content_type: str
    ) -> web.StreamResponse:
        """Answer with the text, or with 503 if `MAX_SENDING` answers are on their way."""
        if self._sending >= MAX_SENDING:
            message = f"{MAX_SENDING} answers are being sent already.\n"
            return web.Response(status=503, headers={"Retry-After": "1"}, text=message)
        self._sending += 1
        try:
            return await send_pieces(request, await text.get(), content_type)
        finally:
            self._sending -= 1


async def send_pieces(
    request: web.Request,
    pieces: Sequence[bytes | memoryview],
    content_type: str,
    headers: Iterable[tuple[str, str]] = (),
) -> web.StreamResponse:
    """Answer with the pieces; a reader that takes longer than `SEND_TIMEOUT_S` is disconnected."""
    response = web.StreamResponse(headers=[("Content-Type", content_type), *headers])
    response.content_length = sum(map(len, pieces))
    try:
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await response.prepare(request)
            for piece in pieces:
                await response.write(piece)  # waits while the reader does not read
                await asyncio.sleep(0)
            await response.write_eof()
    except (TimeoutError, ConnectionError):
        if request.transport is not None:
            request.transport.abort()
    return response


def _pieces(lines: Iterable[str]) -> Generator[None, None, Sequence[bytes]]:
    """The lines in pieces of some 50 kB."""
    pieces: list[bytes] = []
    pending: list[str] = []
    for line in lines:
        pending.append(line)
        if len(pending) == LINES_PER_PIECE:
            pieces.append("".join(pending).encode())
            pending.clear()
        yield
    pieces.append("".join(pending).encode())
    return pieces


def cut(body: bytes) -> list[memoryview]:
    """The body in pieces."""
    whole = memoryview(body)
    return [whole[at : at + PIECE_BYTES] for at in range(0, len(body), PIECE_BYTES)]
