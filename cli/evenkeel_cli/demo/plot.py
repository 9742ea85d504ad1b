"""Draws the results of the demo: waiting times of the ordinary clients, and the throughput."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from evenkeel_simulator.traffic.axes import tidy
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evenkeel_cli.demo.figures import PhaseFigures, ordinary_requests
from evenkeel_cli.demo.phases import PhaseResult
from evenkeel_cli.replay.report import seconds

COLOURS: Final = {"baseline": "#8a8f98", "round_robin": "#d1495b", "evenkeel": "#00798c"}


def plot(results: Sequence[PhaseResult], figures: Mapping[str, PhaseFigures], path: Path) -> None:
    """Write the picture as PNG; raises `OSError`."""
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    title = "One client floods the fleet: waiting times of the three others"
    figure.suptitle(title, fontsize=13, fontweight="bold")
    over_time, ttft, throughput = figure.subplots(1, 3, width_ratios=[2.4, 1.1, 1.0])
    _over_time(over_time, results)
    ttfts = {name: one.ttft_p99_s for name, one in figures.items()}
    _bars(ttft, "p99 time to first token", ttfts, figures, words=seconds)
    rates = {name: one.tokens_per_s for name, one in figures.items() if name != "baseline"}
    _bars(throughput, "tokens per second, all clients", rates, figures, words="{:,.0f}".format)
    figure.savefig(path, dpi=150)


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
    tidy(axes, title="", x="arrival of the request, s", y="time to first token, s")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.legend(frameon=False, loc="upper left", ncols=3, bbox_to_anchor=(0, 1.12))


def _bars(
    axes: Axes,
    title: str,
    values: Mapping[str, float],
    figures: Mapping[str, PhaseFigures],
    *,
    words: Callable[[float], str],
) -> None:
    names = list(values)
    bars = axes.bar(
        names, list(values.values()), color=[COLOURS[name] for name in names], width=0.6
    )
    axes.bar_label(bars, [words(value) for value in values.values()], padding=3, weight="bold")
    tidy(axes, title=title, x="", y="")
    axes.grid(False)
    axes.set_xticks(
        range(len(names)), [figures[name].title.replace(" + ", "\n+ ") for name in names]
    )
    axes.set_yticks([])
    axes.margins(y=0.15)
