"""A view as tables for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from evenkeel_cli.top.view import View

_STATE_STYLE = {"ready": "green", "not ready": "yellow", "gone": "red"}


def render(view: View) -> RenderableType:
    """The whole screen."""
    parts: list[RenderableType] = [Text.from_markup(_header(view)), ""]
    parts += [f"[yellow]config:[/] {escape(fault)}" for fault in view.config_faults]
    parts += [_clients(view), "", _replicas(view)]
    return Group(*parts)


def _header(view: View) -> str:
    words = [
        f"[bold]{escape(view.service)}[/]  {escape(view.model)}  {view.fleet_policy}",
        f"up {view.uptime_s:,.0f} s",
        f"{view.in_flight} in flight",
        f"{view.held} held",
        f"{view.prefix_blocks:,} prefix blocks",
    ]
    if view.draining:
        words.append("[yellow]draining[/]")
    return " · ".join(words)


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index == 0 else "right", no_wrap=True)
    return table


def _clients(view: View) -> Table:
    table = _table(
        "client",
        "weight",
        "share",
        "owed",
        "service/s",
        "flight",
        "wait",
        "deficit",
        "hit",
        "errors",
    )
    for row in sorted(view.clients, key=lambda row: -(row.share or 0.0)):
        table.add_row(
            escape(f"{row.tenant}/{row.client}"),
            row.weight,
            _percent(row.share),
            _percent(row.owed),
            f"{row.service_per_s:,.0f}",
            str(row.in_flight),
            str(row.waiting),
            _range(row.deficit_min, row.deficit_max),
            _percent(row.hit_rate),
            str(row.errors),
        )
    return table


def _replicas(view: View) -> Table:
    table = _table(
        "replica", "state", "policy", "flight", "run", "wait", "service/s", "hit", "failed"
    )
    for row in view.replicas:
        table.add_row(
            escape(row.name),
            f"[{_STATE_STYLE[row.state]}]{row.state}[/]",
            escape(row.policy),
            str(row.in_flight),
            str(row.running),
            str(row.waiting),
            f"{row.service_per_s:,.0f}",
            _percent(row.hit_rate),
            str(row.failures),
        )
    return table


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _range(low: float | None, high: float | None) -> str:
    """`-1.2k…8.0k`, or one figure where both are alike."""
    if low is None or high is None:
        return "–"
    return _short(low) if _short(low) == _short(high) else f"{_short(low)}…{_short(high)}"


def _short(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value / 1000:.0f}k"
    return f"{value / 1000:.1f}k" if abs(value) >= 1000 else f"{value:.0f}"
