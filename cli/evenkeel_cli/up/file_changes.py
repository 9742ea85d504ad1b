"""Notices that a file has changed.

It reads the file a few times a second. A manifest has a few kilobytes, and reading works on every system and
with every editor: those that write in place and those that rename a new file over the old one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

INTERVAL_S: Final = 0.3


Contents = bytes | str
"""The bytes of a file, or why it cannot be read."""


async def changes(path: Path, seen: Contents) -> AsyncIterator[Contents]:
    """The contents of `path` whenever they differ from the last ones (at first from `seen`), without end.

    The contents must stay equal for one interval, so that neither a half-written file nor the moment between
    two files of an editor counts as a change.
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
