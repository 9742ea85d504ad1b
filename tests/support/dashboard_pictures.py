"""Pictures of the dashboards: each panel at its place, drawn from what a real Prometheus answers to its queries."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import DateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

STEP_S: Final = 2
COLUMN_IN: Final = 0.55  # of Grafana's 24
ROW_IN: Final = 0.30  # 8 of them for a panel
MAX_LEGEND: Final = 8

Plain = Mapping[str, Any]
Line = tuple[str, Sequence[tuple[float, float]]]
"""(legend, (time in s, value) of each sample)."""

UNITS: Final[Mapping[str, Callable[[float], str]]] = {
    "percentunit": lambda value: f"{value:.0%}",
    "s": lambda value: f"{value:.3g} s",
    "reqps": lambda value: f"{value:.3g} req/s",
    "bytes": lambda value: f"{value / 2**20:.3g} MiB",
    "short": lambda value: f"{value / 1000:.3g} K" if abs(value) >= 1000 else f"{value:.3g}",
}


async def draw(
    dashboard: Plain,
    api: httpx.AsyncClient,
    path: Path,
    *,
    labels: Mapping[str, str],
    period_s: tuple[float, float],
) -> list[str]:
    """Write the picture of a dashboard; `labels` are the values of its variables. Returns titles of empty panels."""
    panels = dashboard["panels"]
    height = max(one["gridPos"]["y"] + one["gridPos"]["h"] for one in panels)
    figure = Figure(figsize=(24 * COLUMN_IN, height * ROW_IN + 0.5), facecolor="#f4f5f5")
    FigureCanvasAgg(figure)
    figure.text(0.012, 1 - 0.3 / figure.get_figheight(), dashboard["title"], size=13, weight="bold")
    empty = []
    for panel in panels:
        x, y, w, h = (panel["gridPos"][key] for key in "xywh")
        top = 1 - (y * ROW_IN + 0.5) / figure.get_figheight()
        if panel["type"] == "row":
            below = top - 0.2 / figure.get_figheight()
            figure.text(0.012, below, panel["title"], size=10, weight="bold", color="#444")
            continue
        lines = [
            line
            for target in panel["targets"]
            for line in await _answer(target, api, labels=labels, period_s=period_s)
        ]
        size = h * ROW_IN / figure.get_figheight()
        place = ((x + 1.3) / 24, top - 0.80 * size, (w - 1.8) / 24, 0.63 * size)
        axes = figure.add_axes(place, facecolor="white")
        _draw_panel(axes, panel, lines)
        if not lines:
            empty.append(panel["title"])
    figure.savefig(path, dpi=75)
    return empty


async def _answer(
    target: Plain,
    api: httpx.AsyncClient,
    *,
    labels: Mapping[str, str],
    period_s: tuple[float, float],
) -> list[Line]:
    query = target["expr"]
    for variable, value in labels.items():
        query = query.replace(variable, value)
    start, end = period_s
    given = {"query": query, "start": start, "end": end, "step": STEP_S}
    answer = (await api.get("/query_range", params=given)).raise_for_status().json()
    return [
        (
            re.sub(
                r"\{\{(\w+)\}\}",
                lambda found, metric=series["metric"]: metric.get(found[1], ""),
                target["legendFormat"],
            ),
            [(float(at), float(value)) for at, value in series["values"]],
        )
        for series in answer["data"]["result"]
    ]


def _draw_panel(axes: Axes, panel: Plain, lines: Sequence[Line]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    unit = UNITS[defaults["unit"]]
    axes.set_title(panel["title"], loc="left", size=9)
    for side in axes.spines.values():
        side.set_color("#ccc")
    if panel["type"] == "stat":
        axes.set_axis_off()
        text = unit(lines[0][1][-1][1]) if lines else "No data"
        axes.text(0.5, 0.5, text, ha="center", va="center", size=20, transform=axes.transAxes)
        return
    for name, samples in lines:
        times = [datetime.fromtimestamp(at, UTC) for at, _ in samples]
        axes.plot(times, [value for _, value in samples], label=name, linewidth=1.2)
    if not lines:
        axes.text(0.5, 0.5, "No data", ha="center", va="center", transform=axes.transAxes)
    if "min" in defaults:  # with a margin, so that a line at the edge is seen
        top = max((value for _, samples in lines for _, value in samples), default=1.0) or 1.0
        axes.set_ylim(defaults["min"] - 0.04 * top, 1.08 * top)
    axes.tick_params(labelsize=7)
    axes.grid(color="#eee")
    axes.xaxis.set_major_formatter(DateFormatter("%H:%M:%S"))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: unit(value)))
    if lines:
        below = {"loc": "upper left", "bbox_to_anchor": (-0.02, -0.12), "ncols": 4}
        axes.legend(*_first(axes), **below, fontsize=7, frameon=False)


def _first(axes: Axes) -> tuple[list[Any], list[str]]:
    handles, names = axes.get_legend_handles_labels()
    return handles[:MAX_LEGEND], names[:MAX_LEGEND]
