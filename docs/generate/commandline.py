"""Pages of the command line, from the argument parsers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

import typer.main
from evenkeel_cli.main import build, verbs
from evenkeel_operator.settings import argument_parser as operator_parser
from evenkeel_router.__main__ import argument_parser as router_parser
from evenkeel_simulator.server.settings import argument_parser as simulator_parser

from docs.generate.pages import code, entry, page


def pages() -> Iterator[tuple[str, str]]:
    """Path and text of each page."""
    intro = (
        "After this page you know every option of `evenkeel`. [Commands](commands.md) describes what they do; "
        "`keys` and `why` have [a page of their own](command-line-keys.md). "
        "The exit status is 0 on success, 1 on failure, 2 for invalid input, and 130 after an interrupt."
    )
    apart = ("keys", "why")  # a page has at most 1,500 words
    entries = [_command(name) for name in verbs() if name not in apart]
    yield "reference/command-line.md", page("Options of evenkeel", intro, *entries)
    intro = "After this page you know every option of `evenkeel keys` and `evenkeel why`. [Commands](commands.md) describes what they do."
    further = [_command(name) for name in apart]
    yield (
        "reference/command-line-keys.md",
        page("Options of evenkeel keys and why", intro, *further),
    )
    intro = (
        "After this page you know the options of the processes that the operator and `evenkeel up` start. "
        "You need them only if you start these processes yourself."
    )
    parsers = (
        ("python -m evenkeel_router", router_parser()),
        ("python -m evenkeel_operator", operator_parser()),
        ("python -m evenkeel_simulator.server", simulator_parser()),
    )
    servers = [_server(name, parser) for name, parser in parsers]
    yield (
        "reference/servers.md",
        page("Options of router, operator and simulated replica", intro, *servers),
    )


def _command(name: str) -> str:
    group = typer.main.get_command(build([name]))
    assert isinstance(group, typer.core.TyperGroup)
    command = group.commands[name]
    context = command.make_context(f"evenkeel {name}", [], resilient_parsing=True)
    usage = " ".join(command.collect_usage_pieces(context))
    options = [
        _line(*record)
        for parameter in command.params
        if (record := parameter.get_help_record(context)) is not None
    ]
    about = " ".join((command.help or "").split("\n\n", maxsplit=1)[0].split())
    return entry(
        f"evenkeel {name}",
        about,
        f"Usage: {code(f'evenkeel {name} {usage}')}",
        "\n".join(options),
        level=2,
    )


def _server(name: str, parser: argparse.ArgumentParser) -> str:
    formatter = parser._get_formatter()
    lines = []
    for action in parser._actions:
        if action.help != argparse.SUPPRESS and action.dest != "help":
            flags = formatter._format_action_invocation(action)
            lines.append(_line(flags, formatter._expand_help(action) if action.help else ""))
    return entry(code(name), parser.description or "", "\n".join(lines), level=2)


def _line(flags: str, text: str) -> str:
    flat = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())
    return f"- {code(flags.strip())}" + (f": {flat}" if flat else "")
