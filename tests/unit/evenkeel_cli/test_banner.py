"""What `up` prints, so that it can be pasted."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from evenkeel_cli.up.run import command


@pytest.mark.parametrize(
    ("called", "on_path", "want"),
    [
        (".venv/bin/evenkeel", False, ".venv/bin/evenkeel"),
        ("my venv/bin/evenkeel", False, "'my venv/bin/evenkeel'"),
        (".venv/bin/evenkeel", True, "evenkeel"),
        ("-c", False, "evenkeel"),
    ],
)
def test_the_program_is_named_as_the_shell_finds_it(
    called: str, on_path: bool, want: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / called
    program.parent.mkdir(parents=True, exist_ok=True)
    program.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(program.parent) if on_path else os.devnull)
    monkeypatch.setattr(sys, "argv", [str(program) if on_path else called, "up"])
    assert command() == want
