"""The command `evenkeel check`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from evenkeel_cli.exitcode import ExitCode
from evenkeel_cli.faults import FileFault, ManifestFaults
from evenkeel_cli.manifest import load_manifest, load_resources
from evenkeel_cli.output import print_faults, print_json, print_note, report_console


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `--json`."""

    valid: bool
    faults: tuple[FileFault, ...]
    notes: tuple[str, ...]
    """One sentence for each field that `evenkeel up` ignores."""


def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="YAML files.")],
    cluster: Annotated[
        bool,
        typer.Option(
            "--cluster",
            help="The files are for `kubectl apply`: other files may contain Secrets and services.",
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Find every fault of files without running them.

    Each file must be complete: one FairInferenceService, its tenants and their Secrets, as for
    `evenkeel up`. The exit code is 2 if a file has a fault.
    """
    found = [_check(path, cluster=cluster) for path in files]
    if json:
        report = CheckReport(
            valid=all(one.valid for one in found),
            faults=tuple(fault for one in found for fault in one.faults),
            notes=tuple(note for one in found for note in one.notes),
        )
        print_json(report)
    else:
        _print(list(zip(files, found, strict=True)), cluster=cluster)
    if not all(one.valid for one in found):
        raise typer.Exit(ExitCode.INVALID)


def _check(path: Path, *, cluster: bool) -> CheckReport:
    try:
        notes = load_resources(path) if cluster else load_manifest(path).warnings
    except ManifestFaults as error:
        return CheckReport(valid=False, faults=error.faults, notes=())
    return CheckReport(valid=True, faults=(), notes=notes)


def _print(found: Sequence[tuple[Path, CheckReport]], *, cluster: bool) -> None:
    console = report_console()
    for path, report in found:
        for note in report.notes:
            print_note(console, f"{path}: {note}")
        if report.valid:
            use = "kubectl apply" if cluster else "evenkeel up"
            console.print(f"{path}: valid for {use}", highlight=False, soft_wrap=True, markup=False)
        print_faults(report.faults)
    if not cluster and not all(report.valid for _, report in found):
        print_note(
            Console(stderr=True),
            "checked for `evenkeel up`; with --cluster, Secrets and services may be in other files",
        )
