"""The common style of all plots: colours and axes. Needs matplotlib (extra `cli`)."""

from __future__ import annotations

from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b59b00", "#555555")
"""Okabe and Ito's, which colour-blind readers can distinguish; the yellow is darker for white paper."""


def tidy(axes: Axes, *, title: str, x: str, y: str) -> None:
    """Common style of all axes: few lines, light grid, named units."""
    axes.set_title(title, loc="left", fontsize=10, color="#222222")
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8, length=0)
    axes.grid(True, color="#e6e8eb", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#999999")
