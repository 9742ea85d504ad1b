"""The command line: `evenkeel up · top · replay · demo · simulate`.

The surprising thing: only the verb that was asked for is imported. Between them they need a server stack, a
plotting library and an HTTP client; `evenkeel --help` needs none and answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Final

import typer

VERBS: Final[Mapping[str, tuple[str, str]]] = {
    "up": (
        "evenkeel_cli.up.command",
        "Run a file's fleet on this machine, and follow the file.",
    ),
    "top": (
        "evenkeel_cli.top.command",
        "Show live shares, deficits, hit rates and queues of a fleet.",
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
        "Run a trace or a workload through a fleet in virtual time.",
    ),
}
"""Verb → the module with the function of that name, and the first line of its help."""


def main() -> None:
    """Entry point of `evenkeel`."""
    build(sys.argv[1:])()


def build(arguments: Sequence[str]) -> typer.Typer:
    """The application for this command line: the verb it names is real, the others only have a name."""
    app = typer.Typer(
        name="evenkeel",
        help="Fair LLM serving: no client can take another's share.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # boxes leave half of a terminal's 80 columns to the texts
    )
    app.callback()(_options)
    asked = next((word for word in arguments if not word.startswith("-")), None)
    for verb, (module, help_line) in VERBS.items():
        if verb == asked:
            app.command(verb)(_function(module, verb))
        else:
            app.command(verb, help=help_line)(_name_only)
    return app


def _function(module: str, verb: str) -> Callable[..., None]:
    function: Callable[..., None] = getattr(import_module(module), verb)
    return function


def _options() -> None:
    """Fair LLM serving: no client can take another's share."""


def _name_only() -> None:
    """Stands for a verb that was not asked for; never called."""
