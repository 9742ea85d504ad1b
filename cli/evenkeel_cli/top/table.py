"""Renders a view as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from evenkeel_contract.adminstate import FleetState
from evenkeel_fairshare.verdict import Level, RunRecord, judge
from evenkeel_fairshare.window import WindowShares
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from evenkeel_cli.narrow import FittedTable, make_table
from evenkeel_cli.top.view import View, Views

_LEVEL_STYLE = {
    Level.OUT.value: "red",
    Level.HELD_UP.value: "red",
    Level.UNFAIR.value: "yellow",
    Level.UNJUDGED.value: "dim",
    Level.NOTHING.value: "dim",
}
_STATE_STYLE = {
    "ready": "green",
    "returning": "green",
    "suspect": "red",
    "silent": "red",
    "not ready": "yellow",
    "loading": "yellow",
    "gone": "red",
}


def render(view: View | Views, *, verbose: bool = False) -> RenderableType:
    """The whole screen. `verbose` adds figures for the developers of the scheduler."""
    if isinstance(view, Views):
        return Group(
            *(part for one in view.services for part in (render(one, verbose=verbose), ""))
        )
    parts: list[RenderableType] = [Text.from_markup(_header(view, verbose)), ""]
    parts += [f"[yellow]config:[/] {escape(fault)}" for fault in view.config_faults]
    parts += [f"[yellow]{escape(warning)}[/]" for warning in _warnings(view)]
    parts += [_fairness(view, verbose)]
    if verbose and view.qoe:
        each = " · ".join(f"{tenant} {mean:.2f}" for tenant, mean in view.qoe.items())
        parts.append(Text(f"QoE of streams: {each}"))
    parts += ["", Text(_windows(view), style="dim"), FittedTable(_clients(view, verbose)), ""]
    parts += [FittedTable(_replicas(view))]
    return Group(*parts)


def _header(view: View, verbose: bool) -> str:
    words = [
        f"[bold]{escape(view.service)}[/]  {escape(_model(view))}  {view.fleet_policy}",
        f"up {view.uptime_s:,.0f} s",
        f"{view.in_flight} in flight",
        f"{view.waiting} waiting",
    ]
    if verbose:
        words.append(f"{view.prefix_blocks:,} prefix blocks")
    if view.draining:
        words.append("[yellow]draining[/]")
    return " · ".join(words)


def _windows(view: View) -> str:
    """What the figures of the tables are of: the verdict is on the last minute."""
    return f"share, owed, serv/s, ITL and hit: the last {view.window_s:,.0f} s · verdict and lost: the last minute · the rest: now"


def _model(view: View) -> str:
    """What clients send, and what the engines know where that differs."""
    name = view.names[0] if view.names else view.model
    return name if name == view.model else f"{name} ({view.model})"


def _fairness(view: View, verbose: bool) -> Text:
    fleet = view.fleet
    words = [fleet.verdict or _of_older(fleet)]
    if verbose:
        words += [
            f"{fleet.backlogged} backlogged",
            f"share error {fleet.share_error:.1%} over {fleet.window_s:.0f} s",
            f"lead {fleet.lead_s:.1f} s",
            f"Jain {fleet.jain:.3f}",
            f"bound ratio {fleet.bound_ratio:.2f}",
            f"closed totals version {view.ledger.closed_totals_version}, {view.ledger.open_accounts} open replica accounts",
        ]
    if view.peers:
        words.append(f"{sum(not peer.error for peer in view.peers)} of {len(view.peers)} peers")
    return Text(" · ".join(words), style=_LEVEL_STYLE.get(fleet.level, ""))


def _of_older(fleet: FleetState) -> str:
    """The verdict where the router gives none."""
    parts = {"a client": 1 - fleet.share_error} if fleet.backlogged else {}
    return judge(RunRecord(shares=WindowShares(parts), minute=True, answered=1)).sentence


def _warnings(view: View) -> Iterator[str]:
    """Why no replica takes requests, and which parts of the ledger are missing."""
    for row in view.replicas:
        if row.suspicion:
            yield f"replica {row.name} is {row.suspicion}"
        if row.unready_reason:
            yield f"replica {row.name} is {row.state}: {row.unready_reason}"
    if not any(row.state in ("ready", "returning", "silent") for row in view.replicas):
        yield (
            f"none of {len(view.replicas)} replicas takes requests: new ones wait, and then get 503"
            if view.replicas
            else "no replica is configured"
        )
    if view.ledger.store_error:
        yield f"store {view.ledger.store}: {view.ledger.store_error}"
    for peer in view.peers:
        if peer.error:
            yield f"router {peer.name}: {peer.error}"
    if view.ledger.uncounted:
        yield f"not counted: the service of {', '.join(view.ledger.uncounted)}"


def _clients(view: View, verbose: bool) -> Table:
    names = ["client", "weight", "share", "owed", "serv/s", "flight", "wait", "ITL", "hit", "lost"]
    table = make_table(*names, *(("deficit", "lead") if verbose else ()), gap=1)
    for row in sorted(view.clients, key=lambda row: -(row.share or 0.0)):
        internals = _range(row.deficit_min, row.deficit_max), f"{row.lead_s:.0f}s"
        table.add_row(
            escape(f"{row.tenant}/{row.client or '(other clients)'}"),
            *(row.weight, _percent(row.share), _percent(row.owed), f"{row.service_per_s:,.0f}"),
            *(str(row.in_flight), str(row.waiting)),
            "–" if row.itl_s is None else f"{1000 * row.itl_s:.0f}ms",
            *(_percent(row.hit_rate), _count(row.lost)),
            *(internals if verbose else ()),
        )
    return table


def _replicas(view: View) -> Table:
    names = ["replica", "state", "policy", "quantum", "flight", "run", "wait", "service/s", "hit"]
    table = make_table(*names, "lost", gap=1)
    for row in view.replicas:
        table.add_row(
            escape(row.name),
            f"[{_STATE_STYLE[row.state]}]{row.state}[/]",
            escape(row.policy),
            _short(row.quantum) if row.quantum else "–",
            *map(str, (row.in_flight, row.running, row.waiting)),
            *(f"{row.service_per_s:,.0f}", _percent(row.hit_rate), _count(row.here.lost)),
        )
    return table


def _count(value: int | None) -> str:
    return "–" if value is None else str(value)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _range(low: float | None, high: float | None) -> str:
    """`-1.2k…8.0k`, or one figure if both are equal."""
    if low is None or high is None:
        return "–"
    return _short(low) if _short(low) == _short(high) else f"{_short(low)}…{_short(high)}"


def _short(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value / 1000:.0f}k"
    return f"{value / 1000:.1f}k" if abs(value) >= 1000 else f"{value:.0f}"
