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


Contents = bytes | str
"""What a file holds, or why it cannot be read."""


async def changes(path: Path, seen: Contents) -> AsyncIterator[Contents]:
    """What `path` holds whenever it differs from the last (at first from `seen`), without end.

    It must stand still for one interval, so that neither a file half written nor one that an editor
    is about to put in its place is taken for a change.
    """
    pending: Contents | None = None
    while True:
        await asyncio.sleep(INTERVAL_S)
        found = _read(path)
        if found == seen:
            pending = None
        elif found == pending:
            seen, pending = found, None
            yield found
        else:
            pending = found


def _read(path: Path) -> Contents:
    try:
        return path.read_bytes()
    except OSError as error:
        return error.strerror or str(error)
