"""`evenkeel plan`: replays a recording with today's and with changed settings, and says who gains and who loses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from evenkeel_cli.exitcode import ExitCode
from evenkeel_cli.narrow import FittedTable, make_table
from evenkeel_cli.output import (
    make_output_folder,
    print_error,
    print_json,
    print_note,
    report_console,
    working,
)
from evenkeel_cli.trace_options import UsageError, isolation_share
from evenkeel_cli.yamlfile import YamlFault
from evenkeel_contract.enginesettings import ISOLATION
from evenkeel_simulator.traffic.traces import TraceError
from rich.markup import escape

from evenkeel_laboratory.commands.planning import (
    ChangeError,
    Plan,
    calibrated,
    changed,
    make_plan,
    read_change,
    today,
)
from evenkeel_laboratory.experiments.engine_fit import FitError
from evenkeel_laboratory.experiments.plots import DPI, pairs_figure
from evenkeel_laboratory.experiments.recording import Recording, read_recording
from evenkeel_laboratory.experiments.setup import SetupError, find_profile
from evenkeel_laboratory.experiments.whatif import ClientFigures

PLOT = "plan.png"
_CAUSE = {"client_gone": "given up", "rate_limited": "refused by a limit"}


def plan(
    *,
    recording: Annotated[Path, typer.Option(help="File of `evenkeel record fetch`.")],
    change: Annotated[
        Path, typer.Option(help="YAML file with the settings to change, such as weights.")
    ],
    profile: Annotated[
        str | None,
        typer.Option(
            help="Cost profile of the replicas, a name or a JSON file. Default: fitted to the recording.",
            show_default=False,
        ),
    ] = None,
    isolation: Annotated[
        str,
        typer.Option(help="spec.scheduling.isolation of the recorded fleet.", metavar="PERCENT"),
    ] = f"{ISOLATION:.0%}",
    out: Annotated[Path, typer.Option(help="Folder for the plot.")] = Path("plan"),
    no_plots: Annotated[bool, typer.Option("--no-plots", help="Write no plot.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Predict from a recording who gains and who loses by a change."""
    try:
        with working("reading the recording"):
            traffic = read_recording(recording)
            wanted = read_change(change, traffic)
        share = isolation_share(isolation)
        with working("replaying"):
            fit, before = (
                (None, today(traffic, find_profile(profile), isolation=share))
                if profile is not None
                else calibrated(traffic, isolation=share)
            )
            found = make_plan(traffic, before, changed(before, wanted), fit)
        if not no_plots:
            _plot(found, out)
    except (UsageError, TraceError, ChangeError, YamlFault, SetupError, FitError) as error:
        print_error(error)
        raise typer.Exit(ExitCode.INVALID) from error
    if json:
        print_json(found)
    else:
        _report(found, traffic)
        if not no_plots:
            report_console().print(f"written to {out}/", highlight=False)


def _plot(found: Plan, out: Path) -> None:
    pairs: dict[str, Callable[[ClientFigures], float]] = {
        "Share of the service (%)": lambda one: 100 * one.share,
        "Output tokens per second": lambda one: one.tokens_per_s,
        "Time to first token, p95 (s)": lambda one: one.ttft_p95_s,
    }
    try:
        make_output_folder(out)
        pairs_figure(
            {
                title: {
                    name: (of(found.today.clients[name]), of(found.changed.clients[name]))
                    for name in found.changed.clients
                    if name in found.today.clients
                }
                for title, of in pairs.items()
            },
            logarithmic=[title for title in pairs if title.endswith("(s)")],
        ).savefig(out / PLOT, dpi=DPI)
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}") from error


def _report(found: Plan, traffic: Recording) -> None:
    console = report_console()
    table = make_table(
        "client", "share", "→", "output/s", "→", "TTFT p50", "→", "p95", "→", "GPU s", "→"
    )
    for name, before in found.today.clients.items():
        after = found.changed.clients.get(name)
        if after is None:
            continue
        table.add_row(
            escape(name), f"{before.share:.1%}", f"{after.share:.1%}",
            f"{before.tokens_per_s:,.1f}", f"{after.tokens_per_s:,.1f}",
            f"{before.ttft_p50_s:,.2f} s", f"{after.ttft_p50_s:,.2f} s",
            f"{before.ttft_p95_s:,.2f} s", f"{after.ttft_p95_s:,.2f} s",
            f"{before.gpu_s:,.0f}", f"{after.gpu_s:,.0f}",
        )  # fmt: skip
    now, then = found.today, found.changed
    table.add_row(
        "all", "", "", f"{now.tokens_per_s:,.1f}", f"{then.tokens_per_s:,.1f}",
        f"{now.ttft_p50_s:,.2f} s", f"{then.ttft_p50_s:,.2f} s", "", "",
        f"{now.gpu_s:,.0f}", f"{then.gpu_s:,.0f}", style="bold",
    )  # fmt: skip
    console.print(FittedTable(table))
    console.print()
    for when, run in (("Recorded", found.recorded), ("Replayed", now), ("Changed", then)):
        console.print(escape(f"{when}: {run.verdict}"), highlight=False)
    console.print()
    for verdict in found.verdicts:
        console.print(escape(verdict.sentence), highlight=False)
    console.print(
        f"\n{len(traffic.requests):,} requests in {now.window_s:,.0f} s. The replay of today's settings differs from the "
        f"recording by at most {100 * found.share_error:.1f} points of a share and {found.ttft_error:+.0%} of the median "
        f"TTFT ({now.ttft_p50_s:,.2f} s replayed, {found.recorded.ttft_p50_s:,.2f} s recorded).",
        highlight=False,
    )
    if found.fit_error is not None:
        console.print(
            f"The engine profile is fitted to {found.fit_answers:,} answers; its median error is {found.fit_error:.1%} of "
            f"an answer's decode time.",
            highlight=False,
        )
    if found.not_replayed:
        left_out = sum(found.not_replayed.values())
        causes = ", ".join(
            f"{_CAUSE.get(name, name)} {count:,}" for name, count in found.not_replayed.items()
        )
        print_note(
            console,
            f"{left_out:,} of {left_out + len(traffic.requests):,} requests {'is' if left_out == 1 else 'are'} not in the replay, "
            f"because no replica served {'it' if left_out == 1 else 'them'}: "
            f"{causes}. So the replay has less load than the fleet had",
        )
    if len(traffic.replica_counts) > 1:
        print_note(
            console,
            f"the number of replicas changed during the recording; the replay has {traffic.replicas}",
        )
