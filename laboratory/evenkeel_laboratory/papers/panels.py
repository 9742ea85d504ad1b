"""What a figure of a paper shows, as numbers: the panels of its picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from evenkeel_simulator.traffic.timeline import served

from evenkeel_laboratory.papers.runs import Run

POINTS = 120
"""Points of a curve over time."""


class Line(msgspec.Struct, frozen=True):
    """One series of points."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """One pair of axes."""

    title: str
    x: str
    """Label of the axis, with the unit; so is `y`."""
    y: str
    lines: tuple[Line, ...]
    groups: tuple[str, ...] = ()
    """Names of the places 0, 1, … on the x axis. With them the lines are drawn as bars."""
    marked: bool = False
    """Whether each point is marked: few points that were measured, not a course over time."""


def curves(
    title: str, points: Mapping[str, Iterable[tuple[float, float]]], *, x: str, y: str
) -> Panel:
    """A curve by name, through measured points."""
    return Panel(title=title, x=x, y=y, lines=_lines(points), marked=True)


def bars(title: str, values: Mapping[str, Mapping[str, float]], *, y: str) -> Panel:
    """Groups of bars: values by group, and in each group by name."""
    names = dict.fromkeys(name for group in values.values() for name in group)
    points = {
        name: [(place, group[name]) for place, group in enumerate(values.values()) if name in group]
        for name in names
    }
    return Panel(title=title, x="", y=y, lines=_lines(points), groups=tuple(values))


def over_time(title: str, points: Mapping[str, Iterable[tuple[float, float]]], *, y: str) -> Panel:
    """A course by name; x is in seconds."""
    return Panel(title=title, x="time (s)", y=y, lines=_lines(points))


def service_rates(title: str, result: Run, *, window_s: float = 60.0) -> Panel:
    """Each client's service rate while requests arrive, in windows around each time."""
    end_s = max(one.arrival_s for one in result.records)
    times_s = [end_s * point / POINTS for point in range(POINTS + 1)]
    windows = [(max(0.0, at - window_s / 2), at + window_s / 2) for at in times_s]
    rates = {
        client: zip(
            times_s,
            (amount / (end - start) for amount, (start, end) in zip(got, windows, strict=True)),
            strict=True,
        )
        for client, got in sorted(served(result.spans(), windows).items())
    }
    return over_time(title, rates, y="weighted tokens/s")


def _lines(points: Mapping[str, Iterable[tuple[float, float]]]) -> tuple[Line, ...]:
    return tuple(Line(name, *_columns(list(given))) for name, given in points.items())


def _columns(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """All x, and all y."""
    return tuple(float(x) for x, _ in points), tuple(float(y) for _, y in points)
