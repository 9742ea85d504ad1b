"""What `evenkeel` shows to a person who gives it no command, or one that it does not have."""

from __future__ import annotations

import pytest
from evenkeel_cli.main import build, verbs
from typer.testing import CliRunner


def test_without_a_command_all_commands_are_listed() -> None:
    shown = CliRunner().invoke(build([]), [])
    assert "Fair LLM serving" in shown.output
    assert all(f"  {name} " in shown.output for name in verbs())


@pytest.mark.parametrize("word", ["nonsense", "--nonsense"])
def test_an_unknown_word_is_an_error_that_names_it(word: str) -> None:
    shown = CliRunner().invoke(build([word]), [word])
    assert shown.exit_code == 2
    assert word in shown.output
