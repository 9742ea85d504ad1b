"""What commands print and write: the console for reports, error messages, and the folder for results."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape

_UNBOUNDED: Final = 10_000


def report_console() -> Console:
    """Standard output. Without a terminal and `COLUMNS` it has no limit of width."""
    console = Console()
    if not console.file.isatty() and "COLUMNS" not in os.environ:
        console.width = _UNBOUNDED
    return console


def print_error(text: object) -> None:
    """Print `error: …` to standard error, on one line."""
    console = Console(stderr=True)
    console.print(f"[red]error[/]: {escape(str(text))}", highlight=False, soft_wrap=True)


def make_output_folder(folder: Path) -> None:
    """Create `folder` before a long run; raises `OSError` if files cannot be written to it."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(13, "cannot be written to", str(folder))
