"""The least rate of a body that arrives: `STEP_BYTES` in each step of time, or its end.

A step is 20 s (`settings.Timing.body_timeout_s`), so that the rate is 1 KiB/s. Apache requests 500 bytes/s after 20 s
(`RequestReadTimeout`), and Kestrel 240 bytes/s after 5 s.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

STEP_BYTES: Final = 20 * 1024


class InSteps:
    """The pieces of a body; `clock` gets another `step_s` with each `STEP_BYTES`."""

    __slots__ = ("_clock", "_pieces", "_step_bytes", "_step_s")

    def __init__(self, pieces: AsyncIterator[bytes], clock: asyncio.Timeout, step_s: float) -> None:
        self._pieces = pieces
        self._clock = clock
        self._step_s = step_s
        self._step_bytes = 0

    def __aiter__(self) -> InSteps:
        return self

    async def __anext__(self) -> bytes:
        piece = await self._pieces.__anext__()
        self._step_bytes += len(piece)
        if self._step_bytes >= STEP_BYTES:
            self._step_bytes = 0
            self._clock.reschedule(asyncio.get_running_loop().time() + self._step_s)
        return piece
