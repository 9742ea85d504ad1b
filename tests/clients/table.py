"""Writes what clients reported as the table of docs/reference/clients.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

MARKS = {True: "✓", False: "**✗**", None: "–"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One flow of one API of a client."""

    client: str
    version: str
    api: str
    flow: str
    passed: bool | None
    """None: the client or its API does not have the flow."""
    detail: str
    """The reason, or the error."""


def write_table(page: Path, target: str, cells: Sequence[Cell]) -> None:
    """Replace the table of `target`."""
    between(page, target, _lines(cells))


def between(page: Path, name: str, lines: Iterable[str]) -> None:
    """Replace the lines between the markers of `name`."""
    start, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, rest = page.read_text().split(start)
    _, after = rest.split(end)
    page.write_text(f"{before}{start}{''.join(lines)}{end}{after}")


def _lines(cells: Sequence[Cell]) -> Iterator[str]:
    flows = list(dict.fromkeys(cell.flow for cell in cells))
    yield f"| client | version | API | {' | '.join(flows)} |\n"
    yield f"|---|---|---|{'---|' * len(flows)}\n"
    missing = []
    for (client, version, api), found in groupby(cells, lambda c: (c.client, c.version, c.api)):
        row = {cell.flow: cell for cell in found}
        marks = [MARKS[row[flow].passed] if flow in row else "" for flow in flows]
        yield f"| {client} | {version} | {api} | {' | '.join(marks)} |\n"
        missing += [f"- {client}, {api}: {reason}.\n" for reason in _reasons(row.values())]
    yield "\nWhat a client or its API does not have (–):\n\n"
    yield from missing


def _reasons(cells: Iterable[Cell]) -> Iterator[str]:
    by_reason: dict[str, list[str]] = {}
    for cell in cells:
        if cell.passed is None:
            by_reason.setdefault(cell.detail, []).append(cell.flow)
    for reason, flows in by_reason.items():
        yield f"{', '.join(flows)}: {reason}"
