"""Long work on the event loop, in steps: streams are served after each millisecond of it.

A thread would not help: it holds the interpreter's lock for 5 ms at a time. What is asked for first ends first, so a prompt that is
matched after another was stored finds it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Generator, Iterator
from typing import Final, TypeVar

from evenkeel_router.api.inference import Inference
from evenkeel_router.fleet.long_prompts import NOT_LOOKED_UP, LookedUp, hashing, is_long, look_up
from evenkeel_router.fleet.prediction import Pages
from evenkeel_router.fleet.selection import Fleet

SLICE_S: Final = 0.001
_Result = TypeVar("_Result")
_ENDED: Final = object()


class LongWork:
    """The work of one router."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Iterator[object]] = deque()

    def add(self, steps: Iterator[object]) -> None:
        """Do all steps, soon."""
        self._waiting.append(steps)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._slice)

    async def run(self, steps: Generator[object, None, _Result]) -> _Result:
        """Do all steps, in their turn; returns their result. A caller that is cancelled ends them."""
        done: asyncio.Future[_Result] = self._loop.create_future()
        self.add(_into(done, steps))
        return await done

    async def looked_up(
        self, fleet: Fleet, inference: Inference, pages: Pages | None, cache_salt: str
    ) -> LookedUp:
        """A long prompt, looked up in the index; `NOT_LOOKED_UP` for any other."""
        if not is_long(inference, pages, fleet.block_bytes):
            return NOT_LOOKED_UP
        hashed = inference.hashed
        if pages is None and hashed is None:
            hashed = await self.run(hashing(inference.text, fleet.block_bytes, cache_salt))
        return await self.run(look_up(fleet.index, hashed, pages, fleet.routable))

    def _slice(self) -> None:
        """Some steps, at least one."""
        until_s = time.perf_counter() + SLICE_S
        try:
            while self._waiting:
                steps = self._waiting.popleft()  # for good if it raises, which the loop logs
                if next(steps, _ENDED) is not _ENDED:
                    self._waiting.appendleft(steps)
                if time.perf_counter() >= until_s:
                    break
        finally:
            if self._waiting:
                self._loop.call_soon(self._slice)


def _into(done: asyncio.Future[_Result], steps: Generator[object, None, _Result]) -> Iterator[None]:
    """The steps; `done` takes their result, or the exception that ends them: a request waits for it."""
    while not done.done():
        try:
            next(steps)
        except StopIteration as end:
            done.set_result(end.value)
            return
        except Exception as error:  # noqa: BLE001 - who waits raises it
            done.set_exception(error)
            return
        yield
