"""Plots of a run: service over time by client, latency by client. Needs matplotlib (extra `cli`).

Without pyplot: figures are plain objects, so no global state changes and no display is needed.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from evenkeel_simulator.traffic.axes import COLOURS, tidy
from evenkeel_simulator.traffic.records import Record
from evenkeel_simulator.traffic.summary import ClientSummary, Summary
from evenkeel_simulator.traffic.timeline import Span, served
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

REST = "#c9ccd1"
DPI = 144
PLOTS = ("service.png", "latency.png")
POINTS = 200
SHORTEST_S = 1e-3
"""Shorter times are drawn as this one, since a logarithmic axis has no 0."""
MARKERS = "os^Dv*Px"
MARKED = 8
"""Markers on a line, by which it is found without colours."""
MAX_CLIENTS = 20
"""Clients in a plot: those with the highest demand."""


def plot_run(
    records: Sequence[Record], summary: Summary, folder: Path, *, title: str
) -> list[Path]:
    """Write `service.png` and `latency.png`; returns their paths. A run without a served request removes old files
    and writes none."""
    if not summary.finished:
        remove_plots(folder)
        return []
    paths = [folder / name for name in PLOTS]
    colours = client_colours(summary)
    if len(colours) < len(summary.clients):
        title += f" ({len(colours)} of {len(summary.clients):,} clients)"
    _service_figure(records, summary, colours, title).savefig(paths[0], dpi=DPI)
    _latency_figure(summary, colours, title).savefig(paths[1], dpi=DPI)
    return paths


def remove_plots(folder: Path) -> None:
    """Remove the plots of an earlier run."""
    for name in PLOTS:
        (folder / name).unlink(missing_ok=True)


def client_colours(summary: Summary) -> dict[str, str]:
    """The clients that plots show, with a colour for each of those with the highest demand; the others are grey."""
    demand = {name: client.requested for name, client in summary.clients.items()}
    shown = heapq.nlargest(MAX_CLIENTS, demand, key=demand.__getitem__)
    colours = {name: REST for name in summary.clients if name in shown}
    colours.update(zip(shown, COLOURS, strict=False))
    return colours


def _order(colours: Mapping[str, str]) -> list[str]:
    """The grey ones first, so that they lie behind, then by demand, as the colours are."""
    return sorted(
        colours, key=lambda name: COLOURS.index(colours[name]) if colours[name] != REST else -1
    )


def _service_figure(
    records: Sequence[Record], summary: Summary, colours: Mapping[str, str], title: str
) -> Figure:
    figure = Figure(figsize=(9, 6.4), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    rate_axes, total_axes = figure.subplots(2, 1, sharex=True)
    makespan_s = summary.makespan_s
    half_s = min(30.0, makespan_s / 20)
    times_s = [makespan_s * point / POINTS for point in range(POINTS + 1)]
    spans = _spans(record for record in records if record.client in colours)
    rates = served(spans, [(max(0.0, t - half_s), t + half_s) for t in times_s])
    totals = served(spans, [(0.0, t) for t in times_s])
    for client in _order(colours):
        if client in rates:
            style = {"color": colours[client], "linewidth": 1.0 if colours[client] == REST else 1.8}
            rate = [amount / (2 * half_s) for amount in rates[client]]
            rate_axes.plot(times_s, rate, label=client, **style)
            total_axes.plot(times_s, totals[client], **style)
    unit = "weighted tokens"
    rate_axes.set_ylim(bottom=0)
    total_axes.set_ylim(bottom=0)
    tidy(rate_axes, title=f"Service rate, windows of {2 * half_s:.0f} s", x="", y=f"{unit} / s")
    tidy(total_axes, title="Service so far", x="time (s)", y=unit)
    _legend(figure, rate_axes, colours)
    return figure


def _legend(figure: Figure, axes: Axes, colours: Mapping[str, str]) -> None:
    handles, labels = axes.get_legend_handles_labels()
    named = [(h, n) for h, n in zip(handles, labels, strict=True) if colours[n] != REST]
    rest = [h for h, n in zip(handles, labels, strict=True) if colours[n] == REST]
    if rest:
        named.append((rest[0], f"{len(rest)} others"))
    figure.legend(
        [handle for handle, _ in named],
        [name for _, name in named],
        loc="outside right upper",
        frameon=False,
        fontsize=8,
    )


def _spans(records: Iterable[Record]) -> list[Span]:
    return [
        Span(r.client, r.first_token_s, r.finished_s, r.input_tokens + 2.0 * r.output_tokens)
        for r in records
        if r.status == "finished" and r.first_token_s is not None and r.finished_s is not None
    ]


def _latency_figure(summary: Summary, colours: Mapping[str, str], title: str) -> Figure:
    shown = {name: client for name in colours if (client := summary.clients[name]).finished}
    figure = Figure(figsize=(9, 1.6 + 0.26 * len(shown)), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, what, first in (
        (left, "ttft", "Time to first token"),
        (right, "latency", "End to end"),
    ):
        _ranges(axes, shown, what, colours)
        tidy(axes, title=f"{first}: p50 to p99", x="seconds, log scale", y="")
        axes.grid(False, axis="y")
    left.set_yticks(range(len(shown)), list(shown))
    left.invert_yaxis()
    return figure


def _ranges(
    axes: Axes, clients: Mapping[str, ClientSummary], what: str, colours: Mapping[str, str]
) -> None:
    """One line per client from the median to the 99th percentile."""
    for place, (name, client) in enumerate(clients.items()):
        low, high = (max(SHORTEST_S, getattr(client, f"{what}_{p}_s")) for p in ("p50", "p99"))
        axes.plot([low, high], [place, place], color=colours[name], linewidth=3, alpha=0.55)
        axes.plot([low], [place], "o", color=colours[name], markersize=6)
        axes.plot([high], [place], "|", color=colours[name], markersize=11, markeredgewidth=2.5)
    _logarithmic(axes)


def _logarithmic(axes: Axes) -> None:
    """Seconds on x: two figures of a plot may differ by a factor of 1000. The range has at least one number."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    low, high = axes.get_xlim()
    axes.set_xlim(low / 1.6, high * 1.6)


def pairs_figure(
    panels: Mapping[str, Mapping[str, tuple[float, float]]], *, logarithmic: Collection[str] = ()
) -> Figure:
    """A panel per title: for each client its value before and after a change, from 0 or on a logarithmic axis."""
    names = list(next(iter(panels.values())))[:MAX_CLIENTS]
    figure = Figure(figsize=(3.6 * len(panels), 1.4 + 0.34 * len(names)), layout="constrained")
    for axes, (title, pairs) in zip(
        figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels.items(), strict=True
    ):
        lowest = SHORTEST_S if title in logarithmic else 0.0
        for place, name in enumerate(names):
            before, after = (max(lowest, value) for value in pairs[name])
            axes.annotate(
                "",
                (after, place),
                (before, place),
                arrowprops={"arrowstyle": "->", "color": COLOURS[0], "linewidth": 1.6},
            )
            axes.plot([before], [place], "o", color=REST, markersize=7)
            axes.plot([after], [place], "o", color=COLOURS[0], markersize=7)
        x = "grey: today, blue: after the change"
        if title in logarithmic:
            x += "; log scale"
            _logarithmic(axes)
        else:
            axes.set_xlim(left=0)
        tidy(axes, title=title, x=x, y="")
        axes.set_yticks(range(len(names)), names)
    figure.axes[0].invert_yaxis()
    return figure


def scaling_figure(
    over_time: Mapping[str, Sequence[tuple[float, int]]],
    points: Mapping[str, tuple[float, float]],
    *,
    title: str,
) -> Figure:
    """Replicas over time for each scaler, and attainment (0 to 1) over GPU seconds."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    for number, (name, changes) in enumerate(over_time.items()):
        style = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
        times, counts = zip(*changes, strict=True)
        every = max(1, len(times) // MARKED)
        left.step(times, counts, where="post", label=name, linewidth=1.4, markevery=every, **style)
        gpu_s, part = points[name]
        right.plot(
            [gpu_s / 3600], [100 * part], markersize=9, fillstyle="none", markeredgewidth=2, **style
        )
    tidy(left, title="Replicas, starting and draining ones included", x="time (s)", y="")
    tidy(right, title="Requests in time", x="GPU hours", y="%")
    left.set_ylim(bottom=0)
    right.margins(x=0.15)
    right.set_ylim(100 * min(part for _, part in points.values()) - 5, 102)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure
