"""Python's garbage collector in the scheduler's process: full collections happen while the engine is idle.

A full collection visits every object of the process and stops the scheduler meanwhile. Its imports alone leave
700,000 objects, and each waiting request adds some. By default a collection starts in any pass, after a number of new objects.
"""

from __future__ import annotations

import gc
from typing import Final

WHEN_IDLE: Final = 100
"""Collections of younger objects after which an idle engine runs a full one."""
WHEN_BUSY: Final = 2000
"""The same for a busy engine (Python: 10). These are about 14 million new objects."""


class Collector:
    """The collector's settings, made at the first look."""

    def __init__(self) -> None:
        self._is_set = False

    def look(self, *, idle: bool) -> None:
        """Between passes, with everything loaded."""
        if not self._is_set:
            self._is_set = True
            gc.freeze()  # objects of the start-up are never visited again
            young, middle, old = gc.get_threshold()
            gc.set_threshold(young, middle, max(old, WHEN_BUSY))
        if idle and gc.get_count()[2] >= WHEN_IDLE:
            gc.collect()
