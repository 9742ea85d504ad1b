"""Work made in slices; the event loop serves requests between two slices.

A thread beside the loop would delay streams more: it holds the interpreter's lock for 5 ms at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import Final, TypeVar

SLICE_S: Final = 0.002
"""A token takes about three passes of the loop from replica to client; each pass may wait for one slice."""

_Result = TypeVar("_Result")


async def in_slices(steps: Generator[object, None, _Result]) -> tuple[_Result, float]:
    """Run all steps; returns their result and their cost in seconds. Other tasks run after each slice."""
    cost_s, begin_s = 0.0, time.perf_counter()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _Result = end.value
            return result, cost_s + time.perf_counter() - begin_s
        if (took_s := time.perf_counter() - begin_s) >= SLICE_S:
            cost_s += took_s
            await asyncio.sleep(0)
            begin_s = time.perf_counter()
