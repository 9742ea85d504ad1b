"""The command line as a whole: help, and the requested command."""

from __future__ import annotations

import subprocess
import sys
from inspect import getdoc

import pytest
from evenkeel_cli import main
from typer.testing import CliRunner


def test_help_lists_every_command_with_the_first_line_of_its_own_help() -> None:
    listed = CliRunner().invoke(main.build(["--help"]), ["--help"], env={"COLUMNS": "200"})
    assert listed.exit_code == 0
    for name, (module, help_line) in main.COMMANDS.items():
        doc = getdoc(main._function(module, name))
        assert doc is not None
        assert doc.splitlines()[0] == help_line
        assert help_line in listed.output


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_has_help(name: str) -> None:
    result = CliRunner().invoke(main.build([name]), [name, "--help"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("arguments", [[], *([name] for name in main.COMMANDS)])
def test_help_fits_a_terminal_of_80_columns_and_cuts_nothing(arguments: list[str]) -> None:
    requested = [*arguments, "--help"]
    text = CliRunner().invoke(main.build(requested), requested, env={"COLUMNS": "80"}).output
    assert max(map(len, text.splitlines())) <= 80
    assert "..." not in text.replace("[ARGS]...", "")
    assert "…" not in text


def test_an_unknown_command_is_a_usage_error() -> None:
    assert CliRunner().invoke(main.build(["upp"]), ["upp"]).exit_code == 2


def test_help_imports_no_command() -> None:
    code = (
        "import sys; sys.path[:0] = %r; from evenkeel_cli.main import build; build(['--help']);"
        "print([name for name in ('aiohttp', 'httpx', 'matplotlib', 'msgspec') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code % sys.path], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
