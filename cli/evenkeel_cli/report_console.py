"""The console for reports. In a pipe or a file a table is as wide as its contents."""

from __future__ import annotations

import os
from typing import Final

from rich.console import Console

_UNBOUNDED: Final = 10_000


def report_console() -> Console:
    """Standard output. Without a terminal and `COLUMNS` it has no limit of width."""
    console = Console()
    if not console.file.isatty() and "COLUMNS" not in os.environ:
        console.width = _UNBOUNDED
    return console
