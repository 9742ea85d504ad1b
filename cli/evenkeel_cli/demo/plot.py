"""Draws the results of the demo: waiting times of the ordinary clients, and the throughput."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")  # writes files, so it needs no display

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.layout_engine import ConstrainedLayoutEngine

from evenkeel_cli.demo.figures import Figures, ordinary_requests
from evenkeel_cli.demo.phases import PhaseResult
from evenkeel_cli.replay.report import seconds

COLOURS: Final = {"baseline": "#8a8f98", "round_robin": "#d1495b", "evenkeel": "#00798c"}
_INK: Final = "#22262b"


def plot(results: Sequence[PhaseResult], figures: Mapping[str, Figures], path: Path) -> None:
    """Write the picture as PNG; raises `OSError`."""
    style: Any = {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": "#c4c9d0",
        "axes.labelcolor": _INK,
        "text.color": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
    }
    with plt.rc_context(style):
        figure, axes = plt.subplots(
            1,
            3,
            figsize=(12, 4.2),
            width_ratios=[2.4, 1.1, 1.0],
            layout=ConstrainedLayoutEngine(wspace=0.06),
        )
        figure.suptitle(
            "One client floods the fleet: waiting times of the three others",
            fontsize=13,
            weight="bold",
        )
        _over_time(axes[0], results)
        _bars(
            axes[1],
            "p99 time to first token",
            {name: one.ttft_p99_s for name, one in figures.items()},
            figures,
            words=seconds,
        )
        _bars(
            axes[2],
            "tokens per second, all clients",
            {name: one.tokens_per_s for name, one in figures.items() if name != "baseline"},
            figures,
            words=lambda value: f"{value:,.0f}" if value is not None else "–",
        )
        figure.savefig(path, dpi=150)
        plt.close(figure)


def _over_time(axes: Axes, results: Sequence[PhaseResult]) -> None:
    for one in results:
        requests = ordinary_requests(one)
        axes.scatter(
            [request.arrival_s for request in requests],
            [request.ttft_s for request in requests],
            s=14,
            alpha=0.75,
            linewidths=0,
            color=COLOURS[one.phase.name],
            label=one.phase.title,
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("arrival of the request, s")
    axes.set_ylabel("time to first token, s")
    axes.grid(axis="y", color="#e6e8eb")
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="upper left", ncols=3, bbox_to_anchor=(0, 1.12))


def _bars(
    axes: Axes,
    title: str,
    values: Mapping[str, float],
    figures: Mapping[str, Figures],
    *,
    words: Callable[[float | None], str],
) -> None:
    names = list(values)
    bars = axes.bar(
        names, list(values.values()), color=[COLOURS[name] for name in names], width=0.6
    )
    axes.bar_label(bars, [words(value) for value in values.values()], padding=3, weight="bold")
    axes.set_xticks(
        range(len(names)), [figures[name].title.replace(" + ", "\n+ ") for name in names]
    )
    axes.set_title(title, fontsize=10)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="x", length=0)
    axes.margins(y=0.15)
