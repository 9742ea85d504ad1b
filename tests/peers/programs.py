"""Checkers in the environment of `make test-peers`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
BIN: Final = ROOT / ".venv-peers" / "bin"


def said_by(name: str, *arguments: str | Path) -> str:
    """The output of a checker, which fails where it finds something."""
    program = shutil.which(name, path=str(BIN))
    if program is None:
        pytest.skip(f"no {name} here (make test-peers installs it)")
    command = [program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
