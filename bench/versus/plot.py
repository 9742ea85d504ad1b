"""The picture of a head to head: a row for each workload, a column for each figure, a bar for each contender."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from textwrap import fill
from typing import Final

from evenkeel_simulator.traffic.axes import COLOURS, tidy
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.versus.contenders import CONTENDERS
from bench.versus.figures import Figures
from bench.versus.page import OURS, Found, duration
from bench.versus.workloads import CASES

_OWN, _OTHER = COLOURS[0], "#b4bac2"


def percent(value: float) -> str:
    """A part in whole per cents."""
    return f"{value:.0%}"


PANELS: Final[Mapping[str, tuple[str, Callable[[float], str], bool]]] = {
    "ttft_p95_s": ("small team: TTFT p95", duration, True),
    "gap_p95_s": ("small team: between tokens p95", duration, False),
    "answered": ("small team: answered", percent, False),
    "tokens_per_s": ("tokens/s of both teams", "{:,.0f}".format, False),
    "idle": ("idle although a request waited", percent, False),
}
"""Figure → title, words for a value, whether the axis is logarithmic."""


def plot(found: Found, path: Path) -> None:
    """Write the picture as PNG; raises `OSError`."""
    picture = Figure(figsize=(15, 2.7 * len(found)), layout="constrained")
    rows = picture.subplots(len(found), len(PANELS), squeeze=False)
    for axes, (case, own) in zip(rows, found.items(), strict=True):
        for one, field in zip(axes, PANELS, strict=True):
            _panel(one, field, own)
        title = fill(CASES[case].title, 16)
        axes[0].set_ylabel(title, fontsize=11, fontweight="bold")
        for one in axes[1:]:
            one.set_yticklabels([])
    picture.savefig(path, dpi=110)


def _panel(axes: Axes, field: str, own: Mapping[str, Figures]) -> None:
    title, words, logarithmic = PANELS[field]
    values = [getattr(figures, field) for figures in own.values()]
    shown = [value if isfinite(value) else 0.0 for value in values]
    bars = axes.barh(
        [CONTENDERS[name].title for name in own],
        shown,
        color=[_OWN if name in OURS else _OTHER for name in own],
        height=0.7,
    )
    axes.bar_label(bars, [words(value) for value in values], padding=3, fontsize=8)
    tidy(axes, title=title, x="", y="")
    axes.invert_yaxis()
    axes.grid(False)
    if logarithmic and all(value > 0 for value in shown):
        axes.set_xscale("log")
        axes.set_xlim(min(shown) / 2, max(shown) * 4)
    else:
        axes.margins(x=0.25)
    axes.set_xticks([])
    axes.minorticks_off()
