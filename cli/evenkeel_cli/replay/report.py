"""The results of a replay: a table per client for the terminal, and a JSON file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path

import msgspec
from evenkeel_simulator.traffic.summary import Summary
from rich.console import Group, RenderableType

from evenkeel_cli.narrow import FittedTable, make_table
from evenkeel_cli.output import write_json
from evenkeel_cli.replay.run import Outcome

_LATE_S = 0.25  # smaller delays come from the granularity of timers


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the file `--out`."""

    url: str
    model: str
    trace: str
    speed: float
    max_concurrency: int
    """Most requests in flight at a time; 0: no limit."""
    interrupted: bool
    errors: dict[str, int]
    """Failed requests by cause: a status, `stream`, `connection`, `timeout`."""
    errors_by_client: dict[str, int]
    latest_s: float
    """The largest delay of a request before it was sent, caused by this machine or by --max-concurrency."""
    summary: Summary
    """The figures of `evenkeel simulate`; times count from the moment that a request is sent."""


def make_report(
    outcomes: Collection[Outcome],
    *,
    summary: Summary,
    url: str,
    model: str,
    trace: str,
    speed: float,
    max_concurrency: int,
    interrupted: bool,
) -> ReplayReport:
    """All figures of a replay."""
    failed = [outcome for outcome in outcomes if outcome.answer.error is not None]
    lateness = (outcome.answer.sent_s - outcome.due_s for outcome in outcomes)
    return ReplayReport(
        url=url,
        model=model,
        trace=trace,
        speed=speed,
        max_concurrency=max_concurrency,
        interrupted=interrupted,
        errors=dict(Counter(outcome.answer.error or "" for outcome in failed).most_common()),
        errors_by_client=dict(Counter(outcome.client for outcome in failed)),
        latest_s=max(lateness, default=0.0),
        summary=summary,
    )


def write_report(report: ReplayReport, path: Path) -> None:
    """Write the file; raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(report, path)


def table_of(report: ReplayReport, outcomes: Collection[Outcome]) -> RenderableType:
    """The table per client, the totals, and the failures."""
    summary = report.summary
    times = ("TTFT p50", "p99", "latency p50", "p99")
    table = make_table("client", "requests", "failed", *times, "hit", "service/s", gap=1)
    for name, client in summary.clients.items():
        table.add_row(
            name,
            str(client.requests),
            str(report.errors_by_client.get(name, 0)),
            seconds(client.ttft_p50_s),
            seconds(client.ttft_p99_s),
            seconds(client.latency_p50_s),
            seconds(client.latency_p99_s),
            f"{client.hit_rate:.0%}",
            f"{client.service / summary.makespan_s:,.0f}" if summary.makespan_s else "–",
        )
    totals = (
        f"{summary.finished} of {summary.requests} requests in {summary.makespan_s:,.1f} s",
        f"{summary.throughput_tokens_per_s:,.0f} tokens/s in and out ({summary.output_tokens_per_s:,.0f} out)",
        f"hit rate {summary.hit_rate:.1%}",
        f"Jain {summary.jain_index:.3f}",
    )
    lines = [" · ".join(totals)]
    lines.append(summary.verdict)
    if report.latest_s > _LATE_S:
        cause = "--max-concurrency or the speed of this machine"
        if not report.max_concurrency:
            cause = "this machine was too slow"
        lines.append(
            f"requests were sent up to {report.latest_s:.1f} s late ({cause}), so the load was lower than in the trace"
        )
    lines += _failures(report, outcomes)
    return Group(FittedTable(table), "", *lines)


def _failures(report: ReplayReport, outcomes: Collection[Outcome]) -> list[str]:
    details = {
        outcome.answer.error: outcome.answer.detail
        for outcome in outcomes
        if outcome.answer.error is not None
    }
    return [
        f"{count} failed with {error}: {details.get(error) or 'no details'}"
        for error, count in report.errors.items()
    ]


def seconds(value: float | None) -> str:
    """A time for a table, in milliseconds below one second."""
    if value is None:
        return "–"
    if value < 1:
        return f"{value * 1000:,.0f} ms"
    return f"{value:,.2f} s" if value < 10 else f"{value:,.1f} s"
