"""promtool and Prometheus, where this machine has them (`make tools`)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import IO

import pytest


def program(name: str) -> str:
    """The program; skips the test where there is none."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}: `make tools` installs it on Debian")
    return found


def promtool(*arguments: str | Path, given: IO[str] | None = None) -> tuple[int, str]:
    """Its exit code and its output; `given` is its input."""
    command = [program("promtool"), *map(str, arguments)]
    done = subprocess.run(command, stdin=given, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr
