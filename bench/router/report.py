"""From single runs to medians, ratios, a table and a plot.

A ratio compares runs of the same round, which are minutes apart at most. The median is taken over the ratios, so a machine that
is slower in one round slows both sides of a ratio.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Run:
    """One contender in one scenario in one round."""

    round: int
    scenario: str
    contender: str
    figures: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and greatest of several rounds."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(median(values), min(values), max(values))

    def text(self, digits: int) -> str:
        """As `12.3 (11.0–14.0)`."""
        return f"{self.median:,.{digits}f} ({self.least:,.{digits}f}–{self.greatest:,.{digits}f})"


_COLUMNS = (
    ("requests_per_s", "requests/s", 0),
    ("cpu_us_per_request", "CPU µs/request", 0),
    ("requests_per_cpu_s", "requests/CPU s", 0),
    ("ttft_p50_ms", "TTFT p50 ms", 2),
    ("ttft_p99_ms", "TTFT p99 ms", 1),
    ("total_p99_ms", "total p99 ms", 1),
    ("peak_rss_mib", "peak MiB", 0),
    ("events_per_read", "events/read", 2),
    ("hit_rate", "hit rate", 2),
    ("least_share", "least share", 2),
)


def spread(runs: Iterable[Run], *, scenario: str, contender: str, figure: str) -> Spread | None:
    """Of one figure over the rounds; None where it has no meaning."""
    values = [
        run.figures[figure]
        for run in runs
        if (run.scenario, run.contender) == (scenario, contender)
        and run.figures[figure] is not None
    ]
    return Spread.of(values) if values else None


def ratio(runs: Sequence[Run], *, scenario: str, contender: str, reference: str) -> Spread | None:
    """Throughput per CPU second of `contender` over that of `reference`, round by round."""
    per_cpu = {
        (run.round, run.contender): run.figures["requests_per_cpu_s"]
        for run in runs
        if run.scenario == scenario
    }
    rounds = {number for number, name in per_cpu if name == contender}
    values = [
        per_cpu[number, contender] / per_cpu[number, reference]
        for number in sorted(rounds)
        if per_cpu.get((number, reference)) and per_cpu[number, contender]
    ]
    return Spread.of(values) if values else None


def markdown(runs: Sequence[Run], references: Sequence[str]) -> str:
    """A table per scenario: median (least–greatest) over the rounds."""
    lines: list[str] = []
    titles = [title for _, title, _ in _COLUMNS] + [f"per CPU s, of {name}" for name in references]
    for scenario in _in_order(run.scenario for run in runs):
        lines += [f"### {scenario}", "", f"| router | {' | '.join(titles)} |"]
        lines.append(f"|---|{'---:|' * len(titles)}")
        for contender in _in_order(run.contender for run in runs):
            cells = [_cell(runs, scenario, contender, name, digits=n) for name, _, n in _COLUMNS]
            for reference in references:
                times = ratio(runs, scenario=scenario, contender=contender, reference=reference)
                cells.append("–" if times is None else times.text(2))
            lines.append(f"| {contender} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def plot(runs: Sequence[Run], path: Path) -> None:
    """CPU per request by scenario and router, with the range over the rounds."""
    from matplotlib.figure import Figure

    scenarios = _in_order(run.scenario for run in runs)
    names = _in_order(run.contender for run in runs)
    figure = Figure(figsize=(1.5 + 2 * len(scenarios), 4), layout="constrained")
    axes = figure.subplots(1, len(scenarios), squeeze=False)[0]
    for axis, scenario in zip(axes, scenarios, strict=True):
        for place, name in enumerate(names):
            of = spread(runs, scenario=scenario, contender=name, figure="cpu_us_per_request")
            if of is not None:
                error = [[of.median - of.least], [of.greatest - of.median]]
                axis.bar(place, of.median, yerr=error, capsize=3, label=name)
        axis.set_title(scenario, fontsize=9)
        axis.set_xticks([])
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("router CPU per request, µs")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(names), frameon=False)
    figure.savefig(path)


def _cell(runs: Sequence[Run], scenario: str, contender: str, figure: str, *, digits: int) -> str:
    of = spread(runs, scenario=scenario, contender=contender, figure=figure)
    return "–" if of is None else of.text(digits)


def _in_order(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
