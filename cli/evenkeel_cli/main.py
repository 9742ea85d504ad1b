"""The command line: `evenkeel up`, `top`, `replay`, `demo` and `simulate`.

Only the requested command is imported. Together they need an HTTP client, a plotting library and more;
`evenkeel --help` needs none of them and answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Final

import typer

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "up": (
        "evenkeel_cli.up.command",
        "Run the fleet of a file as local processes, and apply edits.",
    ),
    "top": (
        "evenkeel_cli.top.command",
        "Show shares, hit rates and queues, and whether they are fair.",
    ),
    "replay": (
        "evenkeel_cli.replay.command",
        "Send a trace to an OpenAI endpoint, and report per client.",
    ),
    "demo": (
        "evenkeel_cli.demo.command",
        "Flood a local fleet, with and without fair scheduling.",
    ),
    "simulate": (
        "evenkeel_cli.simulate",
        "Simulate a fleet under a trace or a workload, in virtual time.",
    ),
}
"""Command → the module with the function of that name, and the first line of its help."""


def main() -> None:
    """Entry point of `evenkeel`."""
    build(sys.argv[1:])()


def build(arguments: Sequence[str]) -> typer.Typer:
    """The application for these arguments: the requested command is complete, the others have only name and help."""
    app = typer.Typer(
        name="evenkeel",
        help="Fair LLM serving: no client can take the share of another.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # boxes would take half of the 80 columns of a terminal
    )
    app.callback()(_options)
    requested = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, (module, help_line) in COMMANDS.items():
        if name == requested:
            app.command(name)(_function(module, name))
        else:
            app.command(name, help=help_line)(_name_only)
    return app


def _function(module: str, name: str) -> Callable[..., None]:
    function: Callable[..., None] = getattr(import_module(module), name)
    return function


def _options() -> None:
    """Fair LLM serving: no client can take the share of another."""


def _name_only() -> None:
    """The placeholder for a command that was not requested; never called."""
