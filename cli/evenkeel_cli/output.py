"""What commands print and write: the console for reports, error messages, and the folder for results."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.status import Status

UNBOUNDED: Final = 10_000
"""Columns of an output without a width."""


def report_console() -> Console:
    """Standard output. Without a terminal and `COLUMNS` it has no limit of width."""
    console = Console()
    if not console.file.isatty() and "COLUMNS" not in os.environ:
        console.width = UNBOUNDED
    return console


def print_error(text: object) -> None:
    """Print `error: …` to standard error, on one line."""
    console = Console(stderr=True)
    console.print(f"[red]error[/]: {escape(str(text))}", highlight=False, soft_wrap=True)


def print_faults(faults: Iterable[object]) -> None:
    """Print faults to standard error as `file:line: …`, which editors and terminals show as a link."""
    console = Console(stderr=True)
    for fault in faults:
        console.print(escape(str(fault)), style="red", highlight=False, soft_wrap=True)


def print_note(console: Console, text: str) -> None:
    """Print `note: …`, on one line."""
    console.print(f"[yellow]note[/]: {escape(text)}", highlight=False, soft_wrap=True)


def print_json(value: object) -> None:
    """Print one JSON document on one line, and nothing else, to standard output."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def write_json(value: object, path: Path) -> None:
    """Write one JSON document, indented; raises `OSError`."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def working(text: str) -> Status:
    """A context that shows `text` and a moving sign while a terminal is standard error."""
    return Console(stderr=True).status(text)


def make_output_folder(folder: Path) -> None:
    """Create `folder` before a long run; raises `OSError` if files cannot be written to it."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(13, "cannot be written to", str(folder))
