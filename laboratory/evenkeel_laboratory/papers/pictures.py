"""Draws the panels of a figure. Needs matplotlib (extra `cli`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evenkeel_simulator.traffic.axes import COLOURS, tidy
from matplotlib.artist import Artist
from matplotlib.figure import Figure

from evenkeel_laboratory.papers.panels import Panel


def plot_panels(panels: Sequence[Panel], path: Path, *, title: str) -> None:
    """Panels side by side, with the names of all lines at the right."""
    figure = Figure(figsize=(4.6 * len(panels) + 1.6, 3.6), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines))
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(names)}
    drawn: dict[str, Artist] = {}
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        width = 0.8 / len(panel.lines)
        for number, line in enumerate(panel.lines):
            colour = colours[line.name]
            if panel.groups:
                shift = (number - (len(panel.lines) - 1) / 2) * width
                drawn[line.name] = axes.bar(
                    [x + shift for x in line.x], line.y, width, color=colour
                )
            else:
                mark = "o" if panel.marked else ""
                (drawn[line.name],) = axes.plot(
                    line.x, line.y, marker=mark, markersize=5, color=colour, linewidth=1.6
                )
        tidy(axes, title=panel.title, x=panel.x, y=panel.y)
        if panel.groups:
            turned = {"rotation": 30, "ha": "right"} if len(panel.groups) > 4 else {}
            axes.set_xticks(range(len(panel.groups)), panel.groups, **turned)
        axes.set_ylim(0, 1.06 * max(y for line in panel.lines for y in line.y))
    if len(names) > 1:
        figure.legend(
            list(drawn.values()), list(drawn), loc="outside right center", frameon=False, fontsize=8
        )
    figure.savefig(path, dpi=110)
