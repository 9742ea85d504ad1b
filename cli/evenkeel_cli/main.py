"""The command line: one verb per module."""

from __future__ import annotations

import typer

from evenkeel_cli.simulate import simulate

app = typer.Typer(
    name="evenkeel",
    help="Fair LLM serving: locality-aware fair scheduling for SGLang fleets.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(simulate)


@app.callback()
def _verbs() -> None:
    """Keep verbs even while there is only one."""


def main() -> None:
    """Entry point of `evenkeel`."""
    app()
