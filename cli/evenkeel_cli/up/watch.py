"""Notices that a file has changed.

By reading it a few times a second: a manifest is a few kilobytes, and reading copes with every way in which
editors write (in place, or a new file renamed over the old one), on every system.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

INTERVAL_S: Final = 0.3


async def changes(path: Path, seen: bytes) -> AsyncIterator[bytes]:
    """The contents of `path` whenever they differ from the last (at first from `seen`), without end.

    New contents must stand still for one interval, so that a file half written is not taken for a
    change. A file that is gone is no change: it may come back.
    """
    pending: bytes | None = None
    while True:
        await asyncio.sleep(INTERVAL_S)
        try:
            data = path.read_bytes()  # noqa: ASYNC240 - a small local file, as quick as a stat
        except OSError:
            continue
        if data == seen:
            pending = None
        elif data == pending:
            seen, pending = data, None
            yield data
        else:
            pending = data
