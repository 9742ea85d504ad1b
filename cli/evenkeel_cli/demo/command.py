"""The command `evenkeel demo`."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from evenkeel_contract.queueorder import QuantumSetting
from evenkeel_contract.spec.resources import Scheduling
from evenkeel_fairshare.verdict import judge
from rich.console import Console
from rich.progress import TextColumn
from rich.table import Table

from evenkeel_cli.demo.figures import PhaseFigures, make_figures
from evenkeel_cli.demo.phases import PROFILE, REPLICAS, Flood, Phase, PhaseResult, phases, run_phase
from evenkeel_cli.exitcode import ExitCode
from evenkeel_cli.narrow import FittedTable, make_table
from evenkeel_cli.output import make_output_folder, print_error, report_console, working, write_json
from evenkeel_cli.progress import progress_bar
from evenkeel_cli.replay.report import seconds
from evenkeel_cli.up.errors import FleetError


class DemoReport(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of `demo.json`."""

    replicas: int
    client_quantum: int | str
    profile: str
    load: Flood
    phases: dict[str, PhaseFigures]


def _quantum(text: str) -> str:
    try:
        QuantumSetting.from_plain(int(text) if text.isdecimal() else text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the plot and the results.")] = Path(
        "out/demo"
    ),
    duration: Annotated[
        float, typer.Option(min=1.0, max=600.0, help="Seconds during which requests arrive.")
    ] = Flood().duration_s,
    quantum: Annotated[
        str,
        typer.Option(
            metavar="TOKENS",
            help="spec.scheduling.clientQuantum: Auto or weighted tokens.",
            callback=_quantum,
        ),
    ] = str(Scheduling().client_quantum.to_plain()),
) -> None:
    """Flood a local fleet, with and without fair scheduling.

    Three ordinary clients share three simulated replicas with a client that sends ten times as much.
    First the ordinary clients run alone, then all under round robin + LPM, then all under D2LPM + DLPM.
    Processes and requests are real. The table shows the waiting times of the ordinary clients.
    It takes about three minutes.
    """
    console = report_console()
    flood = Flood(duration_s=duration)
    console.print(
        f"{REPLICAS} replicas ({PROFILE}), clientQuantum {quantum} · "
        f"3 clients at {flood.ordinary_per_s:g} requests/s, "
        f"one at {flood.ordinary_per_s * flood.flood_factor:g} · {duration:g} s per phase",
        highlight=False,
    )
    try:
        make_output_folder(out)
        results = asyncio.run(_run_all(phases(flood, quantum)))
        report = DemoReport(
            replicas=REPLICAS,
            client_quantum=int(quantum) if quantum.isdecimal() else quantum,
            profile=PROFILE,
            load=flood,
            phases={one.phase.name: make_figures(one) for one in results},
        )
        _print(report, console)
        _write(report, results, out)
    except (FleetError, OSError) as error:
        words = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        print_error(words)
        raise typer.Exit(ExitCode.FAILED) from error
    console.print(f"\nwritten to {out}/demo.png and {out}/demo.json", highlight=False)


async def _run_all(wanted: Sequence[Phase]) -> list[PhaseResult]:
    """Run the phases one after another."""
    with tempfile.TemporaryDirectory(prefix="evenkeel-demo-") as folder:
        results = []
        for phase in wanted:
            with _progress(phase) as progress:
                results.append(await run_phase(phase, state_root=Path(folder), progress=progress))
        return results


@contextmanager
def _progress(phase: Phase) -> Iterator[Callable[[float, int], None]]:
    with progress_bar(
        f"{phase.title:20}", TextColumn("{task.description}"), transient=False
    ) as bar:
        task = bar.add_task("starting", total=phase.flood.duration_s)
        yield lambda now_s, in_flight: bar.update(
            task, completed=now_s, description=f"{in_flight} in flight"
        )


def _print(report: DemoReport, console: Console) -> None:
    figures = list(report.phases.values())
    console.print(FittedTable(_table(figures)), highlight=False)
    console.print()
    for one in figures:
        console.print(f"{one.title}: {judge(one.record).sentence}", highlight=False)


def _table(figures: Sequence[PhaseFigures]) -> Table:
    table = make_table("", *(figure.title for figure in figures))
    rows: Sequence[tuple[str, Callable[[PhaseFigures], str]]] = (
        ("TTFT p50, ordinary clients", lambda f: seconds(f.ttft_p50_s)),
        ("TTFT p99, ordinary clients", lambda f: _at_least(f) + seconds(f.ttft_p99_s)),
        ("latency p50, ordinary clients", lambda f: seconds(f.latency_p50_s)),
        ("latency p99, ordinary clients", lambda f: _at_least(f) + seconds(f.latency_p99_s)),
        ("inter-token p50, ordinary clients", lambda f: _milliseconds(f.itl_p50_s)),
        ("inter-token p99, ordinary clients", lambda f: _milliseconds(f.itl_p99_s)),
        ("tokens/s, all clients", lambda f: f"{f.tokens_per_s:,.0f}"),
        ("cache hit rate", lambda f: f"{f.hit_rate:.0%}"),
        ("Jain's index, given over owed", lambda f: f"{f.jain:.3f}"),
        ("failed requests", lambda f: str(f.failed)),
    )
    for name, cell in rows:
        table.add_row(name, *(cell(figure) for figure in figures))
    return table


def _milliseconds(value: float | None) -> str:
    return "–" if value is None else f"{1000 * value:.0f} ms"


def _at_least(figures: PhaseFigures) -> str:
    return "≥ " if figures.unfinished else ""


def _write(report: DemoReport, results: Sequence[PhaseResult], out: Path) -> None:
    from evenkeel_cli.demo.plot import plot  # imported late: matplotlib takes a second to import

    write_json(report, out / "demo.json")
    with working("drawing the plot"):
        plot(results, report.phases, out / "demo.png")
