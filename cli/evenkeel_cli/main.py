"""The command line: `evenkeel up`, `check`, `status`, `route`, `top`, `why`, `replay`, `record`, `keys`, `plan`, `demo`, `simulate` and `papers`.

Only the requested command is imported. Together they need an HTTP client, a plotting library and more;
`evenkeel --help` needs none of them and answers at once. Shell completion works in the same way.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Annotated, Final

import typer

from evenkeel_cli.commands import Command
from evenkeel_cli.exitcode import ExitCode

DISTRIBUTION: Final = "evenkeel-llm"
"""The name on the package index, where another project has the name evenkeel."""

GROUP: Final = "evenkeel.commands"
"""The group of entry points by which other packages add verbs: each names a mapping like `COMMANDS`."""

COMMANDS: Final[Mapping[str, Command]] = {
    "up": Command(
        "evenkeel_cli.up.command",
        "Run the fleet of a file as local processes, and apply edits.",
    ),
    "check": Command(
        "evenkeel_cli.check",
        "Find every fault of files without running them.",
    ),
    "status": Command(
        "evenkeel_cli.status",
        "Show what runs where on this machine, and whether it is ready.",
    ),
    "route": Command(
        "evenkeel_cli.route.command",
        "Run a fair router in front of engines that run already.",
    ),
    "top": Command(
        "evenkeel_cli.top.command",
        "Show shares, hit rates and queues, and whether they are fair.",
    ),
    "why": Command(
        "evenkeel_cli.why",
        "Show why a request was slow: where it waited, and who was ahead.",
    ),
    "replay": Command(
        "evenkeel_cli.replay.command",
        "Send a trace to an OpenAI endpoint, and report per client.",
    ),
    "record": Command(
        "evenkeel_cli.record",
        "Record traffic, without text, for `evenkeel plan`.",
    ),
    "keys": Command(
        "evenkeel_cli.keys.command",
        "Create signed API keys, and revoke them.",
    ),
    "demo": Command(
        "evenkeel_cli.demo.command",
        "Flood a local fleet, with and without fair scheduling.",
    ),
}
"""The verbs of this package."""


@cache
def verbs() -> dict[str, Command]:
    """Every verb by its name, in the order of the help: those of this package and those of other packages' entry points."""
    found = list(COMMANDS.items())
    for point in entry_points(group=GROUP):
        added: Mapping[str, Command] = point.load()
        for name, command in added.items():
            names = [verb for verb, _ in found]
            place = names.index(command.after) + 1 if command.after in names else len(names)
            found.insert(place, (name, command))
    return dict(found)


def main() -> None:
    """Entry point of `evenkeel`."""
    build([*sys.argv[1:], *_words_to_complete(os.environ)])(prog_name="evenkeel")


def build(arguments: Sequence[str]) -> typer.Typer:
    """The application for these arguments: the requested command is complete, the others have only name and help."""
    app = typer.Typer(
        name="evenkeel",
        help="Fair LLM serving: no client can take the share of another.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # boxes would take half of the 80 columns of a terminal
    )
    app.callback()(_options)
    requested = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, command in verbs().items():
        if name == requested:
            app.command(name)(_interruptible(_function(command.module, name)))
        else:
            app.command(name, help=command.help)(_name_only)
    return app


def _words_to_complete(environment: Mapping[str, str]) -> list[str]:
    """The words after `evenkeel` on the line that a shell wants to complete; none otherwise.

    Bash passes the line in COMP_WORDS, zsh and fish in _TYPER_COMPLETE_ARGS (typer's scripts).
    """
    if "_EVENKEEL_COMPLETE" not in environment:
        return []
    line = environment.get("_TYPER_COMPLETE_ARGS") or environment.get("COMP_WORDS", "")
    return line.split()[1:]


def _function(module: str, name: str) -> Callable[..., None]:
    function: Callable[..., None] = getattr(import_module(module), name)
    return function


def _interruptible(function: Callable[..., None]) -> Callable[..., None]:
    """The command `function` with the exit code of an interrupt; typer's is that of a failure."""

    @wraps(function)
    def run(*arguments: object, **options: object) -> None:
        try:
            function(*arguments, **options)
        except KeyboardInterrupt as error:
            raise typer.Exit(ExitCode.INTERRUPTED) from error

    return run


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"evenkeel {version(DISTRIBUTION)}")
        except PackageNotFoundError:  # run from the source tree
            typer.echo("evenkeel (not installed)")
        raise typer.Exit


def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Fair LLM serving: no client can take the share of another."""


def _name_only() -> None:
    """The placeholder for a command that was not requested; never called."""
