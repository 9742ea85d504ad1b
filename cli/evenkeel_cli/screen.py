"""Where reports are printed. Into a pipe or a file a table is as wide as its content: there is no edge to fit."""

from __future__ import annotations

import os
from typing import Final

from rich.console import Console

_UNBOUNDED: Final = 10_000


def report_console() -> Console:
    """Standard output; not cut to 80 columns where no terminal says a width (nor `COLUMNS`)."""
    console = Console()
    if not console.file.isatty() and "COLUMNS" not in os.environ:
        console.width = _UNBOUNDED
    return console
