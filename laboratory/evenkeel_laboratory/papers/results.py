"""One table of results, and the page of a paper's tables."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

from evenkeel_laboratory.papers.panels import Panel


class Verdict(Enum):
    """How a row of ours compares with the paper's."""

    MET = "met"
    WITHIN = "within our range"
    """The paper's number lies between the least and the largest of our runs, but not near enough to their median."""
    NOT_MET = "not met"
    NOT_COMPARED = "–"
    """The paper has no such number."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a table."""

    cells: tuple[str, ...]
    verdict: Verdict


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """One table or figure of a paper."""

    name: str
    title: str
    about: str
    """Workload, measures, what the verdict demands, and the reason of a difference."""
    headings: tuple[str, ...]
    rows: tuple[Outcome, ...]
    figure_only: bool = False
    """The paper prints no number: only its claim can be compared."""
    quick: bool = False
    """Whether the experiment was run with shorter workloads."""
    seconds: float = 0.0
    """CPU time of the run."""
    panels: tuple[Panel, ...] = ()
    """The figure as numbers; none for a table of the paper."""
    picture: str | None = None
    """File of the drawn panels, beside the page."""

    @property
    def met(self) -> int:
        return sum(row.verdict is Verdict.MET for row in self.rows)

    @property
    def within(self) -> int:
        return sum(row.verdict is Verdict.WITHIN for row in self.rows)

    @property
    def compared(self) -> int:
        return sum(row.verdict is not Verdict.NOT_COMPARED for row in self.rows)

    def markdown(self) -> str:
        """A section with the table."""
        only = " (figure only)" if self.figure_only else ""
        about = f"{self.about} Run with `--quick`." if self.quick else self.about
        lines = [f"## {self.title}{only}", "", about, ""]
        lines.append(f"| {' | '.join((*self.headings, 'verdict'))} |")
        lines.append("|---" + "|---:" * (len(self.headings) - 1) + "|---|")
        lines += [f"| {' | '.join((*row.cells, row.verdict.value))} |" for row in self.rows]
        if self.picture is not None:
            lines += ["", f"![{self.title}]({self.picture})"]
        return "\n".join([*lines, ""])


def verdict(is_met: bool | None) -> Verdict:
    """The verdict on a claim; None: the claim is not compared."""
    if is_met is None:
        return Verdict.NOT_COMPARED
    return Verdict.MET if is_met else Verdict.NOT_MET


def row(*cells: object, met: bool | Verdict | None) -> Outcome:
    """A row of text and numbers; numbers are rounded to what is worth reading."""
    judged = met if isinstance(met, Verdict) else verdict(met)
    return Outcome(cells=tuple(map(_cell, cells)), verdict=judged)


def percent(ours: float, published: float) -> str:
    """The signed difference of ours."""
    return f"{ours / published - 1:+.1%}"


def page(title: str, about: Sequence[str], tables: Sequence[Table]) -> str:
    """The page of a paper, in Markdown."""
    met, compared = sum(t.met for t in tables), sum(t.compared for t in tables)
    within = sum(t.within for t in tables)
    more = (
        f"; in {within} more the paper's number lies within the range of our runs" if within else ""
    )
    head = [f"# {title}", "", *about, "", f"{met} of {compared} compared rows are met{more}.", ""]
    return "\n".join(head) + "\n" + "\n".join(table.markdown() for table in tables)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.2f}"
    return "" if value is None else str(value)
