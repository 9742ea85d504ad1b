"""An event loop on a clock that jumps to the next event, and pauses without jitter."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from random import Random
from typing import Any


class _VirtualSelector(selectors.SelectSelector):
    """Does not wait: the clock goes on instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "all tasks wait for ever"
        self.now_s += max(0.0, timeout)
        return []


def run_virtually(main: Coroutine[Any, Any, None]) -> None:
    """Run to its end, on a clock that jumps to the next event."""
    selector = _VirtualSelector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now_s  # type: ignore[method-assign]
    try:
        loop.run_until_complete(main)
    finally:
        loop.close()


class Longest(Random):
    """Spreads nothing: of a range it takes the upper end."""

    def uniform(self, a: float, b: float) -> float:
        return b
