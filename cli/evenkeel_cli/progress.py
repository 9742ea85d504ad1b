"""The progress bar of commands that take long, on standard error."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn


def progress_bar(title: str, *columns: ProgressColumn, transient: bool = True) -> Progress:
    """A title, the bar, `columns`, and the time; a transient one goes when it ends."""
    shown = (TextColumn(f"[bold]{title}"), BarColumn(), *columns, TimeElapsedColumn())
    return Progress(*shown, console=Console(stderr=True), transient=transient)
