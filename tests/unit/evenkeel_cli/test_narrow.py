"""Tables on narrow terminals: every cell stays readable."""

from __future__ import annotations

import io

import pytest
from evenkeel_cli.narrow import FittedTable
from rich.console import Console
from rich.table import Table


def shown(width: int) -> str:
    table = Table(box=None)
    for name in ("client", "requests", "TTFT p50", "p99"):
        table.add_column(name, no_wrap=True)
    table.add_row("team-a/chat", "1,234", "[green]56 ms[/]", "1.20 s")
    table.add_row("team-b/chat", "5,678", "90 ms", "3.40 s")
    output = io.StringIO()
    Console(file=output, width=width).print(FittedTable(table))
    return output.getvalue()


def test_a_wide_terminal_shows_columns() -> None:
    lines = shown(80).splitlines()
    assert len(lines) == 3
    assert lines[0].split() == ["client", "requests", "TTFT", "p50", "p99"]


@pytest.mark.parametrize("width", [20, 30, 40])
def test_a_narrow_terminal_shows_each_row_as_a_paragraph_and_cuts_nothing(width: int) -> None:
    text = shown(width)
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    for cell in (
        "team-a/chat",
        "requests 1,234",
        "TTFT p50 56 ms",
        "p99 1.20 s",
        "5,678",
        "3.40 s",
    ):
        assert cell in words
    assert "…" not in text
