"""`evenkeel papers`: runs the experiments of the papers and sets them beside the published numbers.

Each table is written as it ends, so `--only` adds to a folder, and an interrupted run loses one table.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from evenkeel_cli.exitcode import ExitCode
from evenkeel_cli.output import print_error, report_console
from evenkeel_cli.trace_options import UsageError, option
from evenkeel_simulator.traffic.traces import TraceError
from rich.console import Console

from evenkeel_laboratory.commands.simulate import make_results_folder, workloads_folder
from evenkeel_laboratory.commands.simulate_options import NoPlots, Traces
from evenkeel_laboratory.papers.pictures import plot_panels
from evenkeel_laboratory.papers.registry import EXPERIMENTS, PAPERS, pages
from evenkeel_laboratory.papers.results import Table
from evenkeel_laboratory.papers.runs import Context

Only = Annotated[
    list[str] | None,
    option(f"Name of an experiment or of a paper ({', '.join(PAPERS)}); repeatable."),
]
Out = Annotated[Path, typer.Option(help="Folder for the results.")]
Seed = Annotated[int, typer.Option(help="Random seed of the workloads.")]
Quick = Annotated[bool, typer.Option("--quick", help="Shorter workloads and fewer points.")]


def papers(
    only: Only = None,
    out: Out = Path("papers"),
    seed: Seed = 0,
    quick: Quick = False,
    traces: Traces = Path(),
    no_plots: NoPlots = False,
) -> None:
    """Run the papers' experiments, beside the published numbers."""
    progress = Console(stderr=True)
    try:
        names = _chosen(only or [])
        make_results_folder(out)
        context = Context(
            workloads=workloads_folder(),
            traces=traces,
            quick=quick,
            seed=seed,
            note=lambda text: progress.print(f"  {text}", style="dim", highlight=False),
        )
        for number, name in enumerate(names, start=1):
            progress.print(f"{number}/{len(names)} {name}", highlight=False)
            table = _run(name, context)
            if table.panels and not no_plots:
                table = msgspec.structs.replace(table, picture=_drawn(table, out))
            (out / f"{name}.json").write_bytes(msgspec.json.encode(table))
            _write_pages(out, context)
            report_console().print(
                f"{name}: {table.met} of {table.compared} rows met, {table.seconds:.0f} s of CPU",
                highlight=False,
            )
    except UsageError as error:
        print_error(error)
        raise typer.Exit(ExitCode.INVALID) from error


def _chosen(only: list[str]) -> list[str]:
    if not only:
        return list(EXPERIMENTS)
    unknown = [name for name in only if name not in EXPERIMENTS and name not in PAPERS]
    if unknown:
        known = ", ".join([*PAPERS, *EXPERIMENTS])
        raise UsageError(f"--only {unknown[0]!r} is not one of {known}")
    return [
        name for name in EXPERIMENTS if name in only or any(name.startswith(f"{p}-") for p in only)
    ]


def _run(name: str, context: Context) -> Table:
    begun_s = time.process_time()
    try:
        table = EXPERIMENTS[name](context)
    except TraceError as error:
        raise UsageError(
            f"{name}: {error}; set the folder of the trace with --traces FOLDER or EVENKEEL_DATA"
        ) from error
    seconds = time.process_time() - begun_s
    return msgspec.structs.replace(table, quick=context.quick, seconds=seconds)


def _drawn(table: Table, out: Path) -> str:
    """Draw the figure of a table; returns the name of the file."""
    name = f"{table.name}.png"
    plot_panels(table.panels, out / name, title=table.title)
    return name


def _write_pages(out: Path, context: Context) -> None:
    """Write the pages of every table that the folder has."""
    tables = {
        name: msgspec.json.decode((out / f"{name}.json").read_bytes(), type=Table)
        for name in EXPERIMENTS
        if (out / f"{name}.json").is_file()
    }
    for paper, text in pages(tables, seed=context.seed).items():
        (out / f"papers-{paper}.md").write_text(text, encoding="utf-8")
