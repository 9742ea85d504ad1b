"""The command line as a whole: quick help, the right verb, no traceback."""

from __future__ import annotations

import subprocess
import sys
from inspect import getdoc

import pytest
from evenkeel_cli import main
from typer.testing import CliRunner


def test_help_lists_every_verb_with_the_first_line_of_its_own_help() -> None:
    listed = CliRunner().invoke(main.build(["--help"]), ["--help"], env={"COLUMNS": "200"})
    assert listed.exit_code == 0
    for verb, (module, help_line) in main.VERBS.items():
        doc = getdoc(main._function(module, verb))
        assert doc is not None
        assert doc.splitlines()[0] == help_line
        assert help_line in listed.output


@pytest.mark.parametrize("verb", main.VERBS)
def test_every_verb_has_help(verb: str) -> None:
    result = CliRunner().invoke(main.build([verb]), [verb, "--help"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("arguments", [[], *([verb] for verb in main.VERBS)])
def test_help_fits_a_terminal_of_80_columns_and_cuts_nothing(arguments: list[str]) -> None:
    asked = [*arguments, "--help"]
    text = CliRunner().invoke(main.build(asked), asked, env={"COLUMNS": "80"}).output
    assert max(map(len, text.splitlines())) <= 80
    assert "..." not in text.replace("[ARGS]...", "")
    assert "…" not in text


def test_an_unknown_verb_is_a_usage_error() -> None:
    assert CliRunner().invoke(main.build(["upp"]), ["upp"]).exit_code == 2


def test_help_imports_no_verb() -> None:
    code = (
        "import sys; sys.path[:0] = %r; from evenkeel_cli.main import build; build(['--help']);"
        "print([name for name in ('aiohttp', 'httpx', 'matplotlib', 'msgspec') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code % sys.path], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
