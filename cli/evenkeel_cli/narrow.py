"""Tables for terminals of any width."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from evenkeel_cli.output import UNBOUNDED


def make_table(first: str, *others: str, gap: int = 2) -> Table:
    """A table without lines: names in the first column, numbers in the others, `gap` blanks between two columns."""
    table = Table(first, box=None, header_style="bold", pad_edge=False, padding=(0, gap, 0, 0))
    for name in others:
        table.add_column(name, justify="right")
    return table


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A table, or one paragraph per row if the terminal is too narrow for its columns. Cells are markup."""

    table: Table

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        unbounded = options.update(max_width=UNBOUNDED)
        if Measurement.get(console, unbounded, self.table).maximum <= options.max_width:
            yield self.table
            return
        names, *others = (list(column.cells) for column in self.table.columns)
        headers = [column.header for column in self.table.columns][1:]
        for name, *cells in zip(names, *others, strict=True):
            yield Text.from_markup(f"[bold]{name}[/]")
            words = (f"{header} {cell}" for header, cell in zip(headers, cells, strict=True))
            yield Padding(Text.from_markup(" · ".join(words)), (0, 0, 0, 2))
